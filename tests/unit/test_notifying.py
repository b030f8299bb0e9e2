"""Notifications of a sweep: what a launcher records, and that each arrives once."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import receivers, written

from sweeper.alarms import delivery as receivers_module
from sweeper.alarms.delivery import Sender, deliver
from sweeper.alarms.notifier import Notifier
from sweeper.alarms.records import Alarm
from sweeper.errors import EnvironmentFailure, GridError
from sweeper.grid import parse_grid
from sweeper.grid.notify import notify_of, require_variables
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep import messages
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Email, Message, Notify
from sweeper.sweep.process import began
from sweeper.sweep.states import Event
from sweeper.testing import Fault, Faults

SECRET, PASSWORD = "s3cret-in-the-address", "the-password-of-a-person"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = written.Written(tmp_path, "s", {"lr": [1, 2]})
    for rate in (1, 2):
        made.run({"lr": rate}, 0, [{"step": 1, "test/nll": float(rate)}])
    made.save()
    return LocalStore(str(tmp_path))


def sender(store: LocalStore, notify: Notify, url: str = "", **more: Any) -> Sender:
    environment = {"HOOK": url, "SLACK": url, "PATH": "/usr/bin:/bin"}
    more.setdefault("sleep", lambda _: None)
    return Sender(SweepFolder(store, "s"), notify, environment, **more)


def put(store: LocalStore, key: str, kind: str = "alarm", text: str = "a <b> & c") -> None:
    messages.put(SweepFolder(store, "s"), Message(key, kind, text, "2026-11-22T00:00:00Z"))


def test_each_message_arrives_once(store: LocalStore, receiver: Any) -> None:
    put(store, "one")
    put(store, "end-1", "end", "has ended: 2 succeeded")
    receiver.faults = [500, 302, 0, 429]
    waits: list[float] = []
    both = Notify(webhook="$HOOK", slack="$SLACK")
    way = sender(store, both, receiver.url, sleep=waits.append, verdict=lambda: "lr=1 won")
    assert all(sent.delivered for sent in deliver(way))
    assert waits and waits == sorted(waits)
    assert all(sent.delivered for sent in deliver(way))
    hooks = [sent for sent in receiver.taken if "schema" in sent]
    slack = [sent for sent in receiver.taken if "schema" not in sent]
    texts = sorted(sent["text"] for sent in hooks)
    assert texts == ["s has ended: 2 succeeded\nlr=1 won", "s: a <b> & c"]
    assert {sent["text"] for sent in slack} >= {"s: a &lt;b&gt; &amp; c"} and len(slack) == 2
    assert {sent["verdict"] for sent in hooks} == {None, "lr=1 won"}
    assert len({sent["id"] for sent in hooks}) == 2
    files = [path.read_text() for path in Path(store.root).rglob("*.json")]
    assert not any(SECRET in text for text in files)


def test_concurrent_senders_send_a_message_once(store: LocalStore, receiver: Any) -> None:
    for number in range(5):
        put(store, f"m{number}")
    way = sender(store, Notify(webhook="$HOOK"), receiver.url)
    threads = [threading.Thread(target=deliver, args=(way,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.taken) == 5


def test_an_unreachable_receiver_is_retried_and_its_secret_hidden(
    store: LocalStore,
) -> None:
    put(store, "one")
    waits: list[float] = []
    way = sender(store, Notify(webhook="$HOOK"), f"http://127.0.0.1:9/{SECRET}", sleep=waits.append)
    (delivery,) = deliver(way, most=4)
    assert (delivery.delivered, delivery.tries, waits) == (False, 4, [2.0, 4.0, 8.0])
    assert "refused" in (delivery.error or "") and SECRET not in (delivery.error or "")
    (delivery,) = deliver(way._replace(environment={}), most=1)
    assert delivery.error == "the environment variable HOOK is not set"


def email_of(server: str, **more: Any) -> Email:
    return Email(("me@example.org",), server, "sweeper@example.org", **more)


@pytest.fixture
def mail_pem(certificate: tuple[bytes, bytes], tmp_path: Path) -> Path:
    """Return a file with a certificate and its key."""
    path = tmp_path / "mail.pem"
    path.write_bytes(b"".join(certificate))
    return path


@pytest.mark.parametrize("tls", ["starttls", "ssl"])
def test_mail_is_sent_over_tls_with_a_login(
    store: LocalStore, mail_pem: Path, tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "one")
    with receivers.mailbox(tls, mail_pem, login=True) as box:
        email = email_of(box.address, user="me", password="$SMTP_PASSWORD", tls=tls)
        way = sender(store, Notify(email=email))
        right = way._replace(environment={"SMTP_PASSWORD": PASSWORD})
        # The server's certificate is not trusted: neither mail nor password is sent.
        (delivery,) = deliver(right, most=1)
        assert "CERTIFICATE_VERIFY_FAILED" in (delivery.error or "") and not box.taken
        monkeypatch.setenv("SSL_CERT_FILE", str(mail_pem))
        (delivery,) = deliver(way._replace(environment={"SMTP_PASSWORD": "no-" + PASSWORD}), most=1)
        assert (delivery.delivered, "535" in (delivery.error or "")) == (False, True)
        assert PASSWORD not in (delivery.error or "") and not box.taken
        (delivery,) = deliver(right, most=1)
        assert delivery.delivered and box.users == ["me"]
    (mail,) = box.taken
    assert mail["Subject"] == "s: a <b> & c" and mail["To"] == "me@example.org"


def test_mail_refused_at_first_arrives_once(store: LocalStore) -> None:
    for number in range(3):
        put(store, f"m{number}")
    with receivers.mailbox("none") as box:
        box.faults = [451, 0, 554, 451]  # 0: the server hangs up
        way = sender(store, Notify(email=email_of(box.address, tls="none")))
        assert all(delivery.delivered for delivery in deliver(way))
        assert all(delivery.delivered for delivery in deliver(way))
    assert len(box.taken) == 3 == len({mail["Message-ID"] for mail in box.taken})


def test_mail_and_commands_get_the_text_and_the_verdict(store: LocalStore, tmp_path: Path) -> None:
    put(store, "end-1", "end", "has ended: 2 succeeded")
    put(store, "budget-1", "budget", "spent")
    file = tmp_path / "said"
    script = 'echo "$0 $SWEEPER_KIND $1" >> ' + str(file)
    command = ("sh", "-c", script, "{sweep}", "{message}")
    with receivers.mailbox("none") as box:
        notify = Notify(("end",), command, email=email_of(box.address, tls="none"))
        way = sender(store, notify, verdict=lambda: "lr=1 won")
        assert all(delivery.delivered for delivery in deliver(way))
    (mail,) = box.taken
    assert mail["Subject"] == "s has ended: 2 succeeded" and "lr=1 won" in mail.get_payload()
    assert file.read_text() == "s end s has ended: 2 succeeded\nlr=1 won\n"
    fails = Notify(command=("sh", "-c", "echo no $TOKEN_KEY; exit 3"))
    way = sender(store, fails)._replace(environment={"TOKEN_KEY": SECRET, "PATH": "/usr/bin:/bin"})
    errors = {delivery.error for delivery in deliver(way, most=1) if not delivery.delivered}
    assert errors == {"sh ended with exit code 3: no ***"}


def test_a_command_that_leaves_a_process_runs_once(store: LocalStore, tmp_path: Path) -> None:
    """The sender waits for the command, not for a child that keeps its output open."""
    put(store, "one")
    file, pid = tmp_path / "said", tmp_path / "pid"
    left = f"sleep 600 & echo $! > {pid}"
    way = sender(store, Notify(command=("sh", "-c", f"echo told >> {file}; {left}")))
    try:
        (delivery,) = deliver(way)
        assert delivery.delivered and delivery.tries == 1
        assert file.read_text() == "told\n"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_slow_command_is_ended_with_its_children(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "one")
    monkeypatch.setattr(receivers_module, "_COMMAND_SECONDS", 2.0)
    pid = tmp_path / "pid"
    way = sender(store, Notify(command=("sh", "-c", f"sleep 600 & echo $! > {pid}; wait")))
    (delivery,) = deliver(way, most=1)
    assert delivery.error == "sh took more than 2 s"
    deadline = time.monotonic() + 60
    while began(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection with `answer`; yield the address."""

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_server_that_never_ends_its_answer_is_given_up(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of each read does not end this: a byte arrives now and then."""
    put(store, "one")
    monkeypatch.setattr(receivers_module, "SECONDS", 2.0)

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:  # until the client closes the connection
            time.sleep(0.2)
            connection.sendall(b"X: y\r\n")

    with serving(drip) as url:
        (delivery,) = deliver(sender(store, Notify(webhook="$HOOK"), url), most=1)
    assert not delivery.delivered and "no complete answer within 2 s" in str(delivery.error)


def test_a_server_of_another_protocol_is_an_error(store: LocalStore) -> None:
    put(store, "one")

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"220 mail\r\n")
        connection.recv(65_536)

    with serving(answer) as url:
        (delivery,) = deliver(sender(store, Notify(webhook="$HOOK"), url), most=1)
    assert not delivery.delivered and "220 mail" in str(delivery.error)


def test_a_message_being_sent_is_reported_as_such(store: LocalStore, tmp_path: Path) -> None:
    put(store, "one")
    file = tmp_path / "go"
    way = sender(store, Notify(command=("sh", "-c", f"until [ -e {file} ]; do sleep 0.05; done")))
    sending = threading.Thread(target=deliver, args=(way,))
    sending.start()
    try:
        deadline = time.monotonic() + 60
        while not messages.tries(SweepFolder(store, "s")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (delivery,) = deliver(way)
        assert (delivery.delivered, delivery.sending) == (None, True)
    finally:
        file.touch()
        sending.join()
    (delivery,) = deliver(way)
    assert (delivery.delivered, delivery.sending) == (True, False)


def test_a_message_whose_sender_died_is_not_sent_again(store: LocalStore, receiver: Any) -> None:
    """The message may have arrived."""
    put(store, "one")
    code = (
        "import sys; from sweeper.sweep import messages; "
        "from sweeper.sweep.folder import SweepFolder; "
        "messages.begin(SweepFolder.at_address(sys.argv[1]), 'one', 'webhook', 1)"
    )
    subprocess.run([sys.executable, "-c", code, SweepFolder(store, "s").address], check=True)
    (delivery,) = deliver(sender(store, Notify(webhook="$HOOK"), receiver.url))
    assert (delivery.delivered, delivery.tries, delivery.sending) == (None, 1, False)
    assert not receiver.taken


# What a launcher records


class Notified:
    """A launcher's notifier on a scene; counts the starts of its program."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.started = scene, 0
        self.environments: list[Mapping[str, str]] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Any:
        assert command[-6:] == ["doctor", "notify", "s", "--root", self.scene.store.root, "--quiet"]
        self.started += 1
        return lambda: True

    def notifier(self, folder: SweepFolder | None = None) -> Notifier:
        there, clock = folder or self.scene.folder, self.scene.clock
        return Notifier(there, Notify(webhook="$HOOK"), None, self.start, clock=clock)

    def put(self, scheduler: Any) -> None:
        scheduler._parts.notifier = self.notifier()

    @property
    def keys(self) -> list[str]:
        return [key.partition("-")[0] for key in messages.keys(self.scene.folder)]


def alarm(number: int) -> Alarm:
    no = (None, None, None, None)
    return Alarm(f"{number:012x}", f"x={number}", 1, "nan", "", *no, "the loss is NaN", "")


def test_each_end_of_a_sweep_is_reported_once(make_scene: Any) -> None:
    scene = make_scene(1)
    made = Notified(scene)
    made.put(scene.scheduler)
    scene.step()
    scene.finish(scene.ids[0], 1, Event.FAILED)
    scene.scheduler.run()
    assert (made.keys, made.started) == (["end"], 1)
    again = scene.new_scheduler()  # as after the launcher was killed
    made.put(again)
    again.run()
    assert made.keys == ["end"]
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.finish(scene.ids[0], 2)
    last = scene.new_scheduler()
    made.put(last)
    last.run()
    assert made.keys == ["end", "end"]


def test_many_alarms_are_summarised(make_scene: Any) -> None:
    scene = make_scene(1)
    made = Notified(scene)
    notifier = made.notifier()
    for number in range(30):
        for _ in range(2):  # an earlier launcher may have raised it too
            notifier.raised(alarm(number))
    notifier.check("the budget is spent (2 of 1 tokens)")
    notifier.check("the budget is spent (3 of 1 tokens)")
    keys = messages.keys(scene.folder)
    assert len(keys) == 22 and "alarm-more" in keys and made.started == 1
    assert made.keys.count("budget") == 1


def test_an_alarms_stacks_are_shortened(make_scene: Any) -> None:
    scene = make_scene(1)
    notifier = Notified(scene).notifier()
    threads = [f"Thread {n}:\n" + "\n".join(f"  frame {n}.{m}" for m in range(9)) for n in range(9)]
    notifier.raised(alarm(0)._replace(stacks="\n\n".join(threads)))
    notifier.check(None)
    [key] = messages.keys(scene.folder)
    lines = messages.read(scene.folder, key).text.splitlines()
    assert lines[1:8] == ["Thread 0:", *(f"  frame 0.{m}" for m in range(4)), "  ...", "Thread 1:"]
    assert lines[-1] == "..." and len(lines) == 26


def test_a_failing_store_does_not_stop_the_notifier(make_scene: Any) -> None:
    scene = make_scene(1)
    made, failing = Notified(scene), [True]
    faults = Faults(lambda _, call: Fault.FAIL if failing and "create" in call else None)
    notifier = made.notifier(scene.at(faults))
    notifier.raised(alarm(0))
    notifier.check(None)
    assert faults.struck and made.keys == []
    failing.clear()
    notifier.check(None)
    assert made.keys == ["alarm"]


# The section `notify`


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{}", "notify needs one of command, webhook, slack, email"),
        ("{slack: https://hooks.slack.com/services/x}", "write the name of the variable"),
        ("{webhook: 'https://me:pw@host/'}", "without a secret"),
        ("{command: ['say {massage}']}", "did you mean 'message'?"),
        ("{on: [ends], slack: $S}", "'ends' is not one of end, alarm, budget; did you mean 'end'?"),
        ("{email: {to: [me]}}", "'me' is not an address"),
        ("{email: {to: [a@b]}}", "needs `server`"),
        ("{email: {to: [a@b], server: h, sender: a@b, password: hunter2}}", "the variable with"),
    ],
)
def test_a_malformed_section_is_refused(section: str, message: str) -> None:
    with pytest.raises(GridError, match="notify") as caught:
        parse_grid(f"recipe: sft\nnotify: {section}\n", "g.yaml")
    assert message in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_grids_section_precedes_the_configuration(make_scene: Any, config_file: Path) -> None:
    scene = make_scene(1)
    plan = scene.folder.read_plan()
    assert notify_of(plan) is None
    config_file.write_text('[notify]\nslack = "$SLACK_HOOK"\n')
    assert notify_of(plan) == Notify(slack="$SLACK_HOOK")
    with pytest.raises(EnvironmentFailure, match="the environment variable SLACK_HOOK is not"):
        require_variables(notify_of(plan))
    disabled = parse_grid("recipe: sft\nnotify: {on: [], slack: $S}\n", "g.yaml").notify
    assert notify_of(plan._replace(notify=disabled)) is None
    given = Notify(("end",), ("say", "{message}"), email=Email(("a@b",), "h", "a@b"))
    document = read_json(scene.store, "s/sweep.json") | {"notify": given.document()}
    scene.store.replace("s/sweep.json", encode(document))
    assert notify_of(scene.folder.read_plan()) == given
