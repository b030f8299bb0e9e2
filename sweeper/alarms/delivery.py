"""Sends the unsent messages of a sweep by command, webhook, Slack or e-mail, and retries failed
deliveries. Secrets are removed from error texts."""

import json
import os
import signal
import smtplib
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from http.client import HTTPException
from typing import NamedTuple

from sweeper.common.backoff import delay
from sweeper.common.last_line import last_line
from sweeper.common.redaction import Redactor, secret_values
from sweeper.common.sanitize import sanitize, sanitize_lines
from sweeper.errors import NotFound, StoreError, SweeperError
from sweeper.recipe.command_template import render_command
from sweeper.sweep import messages
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Email, Message, Notify
from sweeper.sweep.settled import changing

SECONDS = 15.0
"""Time limit in seconds for the whole answer of a web server, or for each answer of a mail
server."""
_MAIL_SECONDS = 60.0
_COMMAND_SECONDS = 60.0
_SHOWN_BYTES = 65_536
_PORTS = {"ssl": 465, "starttls": 587, "none": 25}


class Undelivered(Exception):
    """The error for a message that was not delivered. Its text gives the reason."""


class Letter(NamedTuple):
    """A message to send. `identity` is unique. `lines` is the text; the first line is the subject.
    `verdict` is the line with the sweep's verdict (None: no verdict)."""

    identity: str
    sweep: str
    root: str
    kind: str
    time: str
    lines: tuple[str, ...]
    verdict: str | None = None

    @property
    def text(self) -> str:
        """Return the whole text of the message."""
        return sanitize_lines("\n".join(self.lines))


def send(
    way: str, letter: Letter, notify: Notify, environment: Mapping[str, str], cwd: str | None = None
) -> None:
    """Send a message by `way`: "command", "webhook", "slack" or "email". `environment` has the
    variables to which `notify` refers. Raises `Undelivered`."""
    ways: Mapping[str, Callable[[], None]] = {
        "command": lambda: _by_command(letter, notify.command or (), environment, cwd),
        "webhook": lambda: _by_webhook(letter, _value(notify.webhook, environment)),
        "slack": lambda: _by_slack(letter, _value(notify.slack, environment)),
        "email": lambda: _within(
            _MAIL_SECONDS, lambda: _by_email(letter, notify.email, environment)
        ),
    }
    try:
        ways[way]()
    except Undelivered as error:
        raise Undelivered(_without_secrets(str(error), notify, environment)) from None
    except (OSError, ValueError, SweeperError, HTTPException, smtplib.SMTPException) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Undelivered(_without_secrets(reason, notify, environment)) from None


def _without_secrets(text: str, notify: Notify, environment: Mapping[str, str]) -> str:
    from sweeper.sweep.notify import variables_of

    redactor = Redactor(secret_values(environment, tuple(variables_of(notify))))
    data = text.encode("utf-8", "replace")
    return sanitize((redactor.feed(data) + redactor.end()).decode("utf-8", "replace"))[:500]


def _value(given: str | None, environment: Mapping[str, str]) -> str:
    if given is None or not given.startswith("$"):
        return given or ""
    value = environment.get(given[1:], "")
    if not value:
        raise Undelivered(f"the environment variable {given[1:]} is not set")
    return value


def _by_command(
    letter: Letter, command: tuple[str, ...], environment: Mapping[str, str], cwd: str | None
) -> None:
    values = {
        "sweep": letter.sweep,
        "kind": letter.kind,
        "message": letter.text,
        "root": letter.root,
    }
    more = {"SWEEPER_SWEEP": letter.sweep, "SWEEPER_ROOT": letter.root}
    more |= {"SWEEPER_MESSAGE": letter.text, "SWEEPER_KIND": letter.kind}
    # A pipe could stay open in a process that the command leaves behind.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            render_command(list(command), values),
            cwd=cwd,
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise Undelivered(f"{command[0]} took more than {_COMMAND_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _SHOWN_BYTES))
            line = last_line(output.read())
            ended = f"{command[0]} ended with exit code {code}"
            raise Undelivered(ended + (f": {line}" * bool(line)))


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Call `action`, and raise `Undelivered` if it takes longer than `seconds`. A socket's timeout
    is not enough, because the timeout applies to each read and not to the whole answer."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Undelivered(f"no complete answer within {seconds:g} s")
    if errors:
        raise errors[0]


def _by_webhook(letter: Letter, url: str) -> None:
    payload = {
        "id": letter.identity,
        "sweep": letter.sweep,
        "root": letter.root,
        "kind": letter.kind,
    }
    payload |= {"time": letter.time, "text": letter.text}
    _post(url, {"schema": 1, **payload, "verdict": letter.verdict})


def _by_slack(letter: Letter, url: str) -> None:
    text = letter.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    _post(url, {"text": text})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that treats redirects as failures, because a redirecting server has not accepted
    the message."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _post(url: str, document: Mapping[str, object]) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise Undelivered("the address must begin with http:// or https://")
    data = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "sweeper"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - http, as was just seen
    opener = urllib.request.build_opener(_NoRedirect)

    def post() -> None:
        with opener.open(request, timeout=SECONDS) as answer:
            answer.read(1)

    try:
        _within(SECONDS, post)
    except urllib.error.HTTPError as error:
        error.close()
        raise Undelivered(f"the server answered {error.code}") from None


def _by_email(letter: Letter, email: Email | None, environment: Mapping[str, str]) -> None:
    if email is None:
        raise Undelivered("no recipient is configured")
    mail = EmailMessage()
    mail["Subject"] = sanitize(letter.lines[0])[:200]
    mail["From"], mail["To"] = email.sender, ", ".join(email.to)
    mail["Message-ID"] = f"<{letter.identity}@sweeper>"
    mail.set_content(letter.text)
    host, _, port = email.server.partition(":")
    number = int(port) if port else _PORTS[email.tls]
    password = _value(email.password, environment)
    if email.tls == "ssl":
        context = ssl.create_default_context()
        server = smtplib.SMTP_SSL(host, number, timeout=SECONDS, context=context)
    else:
        server = smtplib.SMTP(host, number, timeout=SECONDS)
    with server:
        if email.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
        if email.user is not None:
            server.login(email.user, password)
        server.send_message(mail)


MOST_TRIES = 8
"""The largest number of tries per message and receiver, in one call of `deliver`."""
_LONGEST_WAIT = 60.0


class Delivery(NamedTuple):
    """The delivery of a message to a receiver. `delivered` is None while the result is unknown.
    `sending`: the sending process may still be running."""

    key: str
    kind: str
    receiver: str
    delivered: bool | None
    tries: int
    error: str | None = None
    sending: bool = False


class Sender(NamedTuple):
    """A sweep and the settings for sending its messages. `verdict` returns the line with the
    sweep's verdict, or None. `cwd` is the folder in which commands run."""

    folder: SweepFolder
    notify: Notify
    environment: Mapping[str, str]
    verdict: Callable[[], str | None] = lambda: None
    cwd: str | None = None
    sleep: Callable[[float], None] = time.sleep


def deliver(sender: Sender, *, most: int = MOST_TRIES) -> list[Delivery]:
    """Send unsent messages, with exponential backoff, until each is delivered or was tried
    `most` times. Return the state of each delivery. Raises `StoreError`."""
    counted: dict[tuple[str, str], int] = {}
    read: dict[str, Message] = {}
    identity = sender.folder.ensure_identity()
    verdict: list[str | None] = []
    while True:
        due = _look(sender, read)
        waiting = [entry for entry in due if _is_due(entry) and counted.get(entry[1:3], 0) < most]
        if not waiting:
            return [entry[0] for entry in due]
        for delivery, key, way in waiting:
            message = read[key]
            if message.kind == "end" and not verdict:
                verdict.append(sender.verdict())
            verdict_line = verdict[0] if message.kind == "end" else None
            counted[key, way] = counted.get((key, way), 0) + 1
            _try(sender, _letter(sender, identity, message, verdict_line), way, delivery.tries + 1)
        waits = [counted[key, way] for _, key, way in waiting if counted[key, way] < most]
        unsent = {(entry[1], entry[2]) for entry in _look(sender, read) if _is_due(entry)}
        if waits and any(entry[1:3] in unsent for entry in waiting):
            sender.sleep(delay(1.0, min(waits), _LONGEST_WAIT))


_Unsent = tuple[Delivery, str, str]


def _is_due(letter: _Unsent) -> bool:
    """Return whether a message must be sent: it was never sent, or its last delivery failed. A
    delivery without a known result is not repeated, because the message may have arrived."""
    delivery = letter[0]
    return delivery.delivered is False or (delivery.delivered is None and not delivery.tries)


def _look(sender: Sender, read: dict[str, Message]) -> list[_Unsent]:
    last = messages.tries(sender.folder)
    letters: list[_Unsent] = []
    for key in messages.keys(sender.folder):
        try:
            message = read[key] = read.get(key) or messages.read(sender.folder, key)
        except (NotFound, StoreError):
            continue  # a damaged message must not block others
        if message.kind not in sender.notify.on:
            continue
        for way in sender.notify.receivers:
            last_try = last.get((key, way), messages.Try(0, None))
            delivery = Delivery(
                key, message.kind, way, last_try.delivered, last_try.number, *last_try[2:]
            )
            letters.append((delivery, key, way))
    return letters


def _letter(sender: Sender, identity: str, message: Message, verdict: str | None) -> Letter:
    lines = [f"{sender.folder.name}: {message.text}" if message.kind != "end" else
             f"{sender.folder.name} {message.text}", *([verdict] if verdict else [])]  # fmt: skip
    name = f"{identity}.{message.key}"
    root, sweep = sender.folder.store.root, sender.folder.name
    return Letter(name, sweep, root, message.kind, message.time, tuple(lines), verdict)


def _try(sender: Sender, letter: Letter, way: str, number: int) -> None:
    """Send a message. Do nothing if another process is sending the message."""
    key = letter.identity.partition(".")[2]
    with changing(sender.folder):
        if not messages.begin(sender.folder, key, way, number):
            return
        error: str | None = None
        try:
            send(way, letter, sender.notify, sender.environment, sender.cwd)
        except Undelivered as why:
            error = str(why)
        messages.end(sender.folder, key, way, number, error)
