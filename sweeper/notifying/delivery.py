"""Sends the unsent messages of a sweep, and retries failed deliveries."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.notifying.receivers import Letter, Undelivered, send
from sweeper.sweep import messages
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Message, Notify

MOST_TRIES = 8
"""Maximum number of tries per message and receiver in one call."""
_LONGEST_WAIT = 60.0


class Delivery(NamedTuple):
    """The delivery of a message to a receiver; `delivered` is None if it is unknown, `sending` is
    true if its sender may still be at work on it."""

    key: str
    kind: str
    receiver: str
    delivered: bool | None
    tries: int
    error: str | None = None
    sending: bool = False


class Sender(NamedTuple):
    """A sweep and the settings for sending its messages: `verdict` returns the line of its verdict,
    `cwd` is the folder for commands."""

    folder: SweepFolder
    notify: Notify
    environment: Mapping[str, str]
    verdict: Callable[[], str | None] = lambda: None
    cwd: str | None = None
    sleep: Callable[[float], None] = time.sleep


def deliver(sender: Sender, *, most: int = MOST_TRIES) -> list[Delivery]:
    """Send unsent messages until all are delivered or were tried `most` times, with exponential
    backoff. Returns the state of each delivery. Raises `StoreError`."""
    counted: dict[tuple[str, str], int] = {}
    read: dict[str, Message] = {}
    identity = sender.folder.ensure_identity()
    verdict: list[str | None] = []
    while True:
        due = _look(sender, read)
        left = [one for one in due if _is_due(one) and counted.get(one[1:3], 0) < most]
        if not left:
            return [one[0] for one in due]
        for delivery, key, way in left:
            message = read[key]
            if message.kind == "end" and not verdict:
                verdict.append(sender.verdict())
            verdict_line = verdict[0] if message.kind == "end" else None
            counted[key, way] = counted.get((key, way), 0) + 1
            _try(sender, _letter(sender, identity, message, verdict_line), way, delivery.tries + 1)
        waits = [counted[key, way] for _, key, way in left if counted[key, way] < most]
        unsent = {(one[1], one[2]) for one in _look(sender, read) if _is_due(one)}
        if waits and any(one[1:3] in unsent for one in left):
            sender.sleep(min(_LONGEST_WAIT, 2.0 ** min(waits)))


_Found = tuple[Delivery, str, str]


def _is_due(letter: _Found) -> bool:
    """Whether a message was never sent, or its delivery failed. An interrupted try is not repeated,
    because the message may have arrived."""
    delivery = letter[0]
    return delivery.delivered is False or (delivery.delivered is None and not delivery.tries)


def _look(sender: Sender, read: dict[str, Message]) -> list[_Found]:
    last = messages.tries(sender.folder)
    letters: list[_Found] = []
    for key in messages.keys(sender.folder):
        try:
            message = read[key] = read.get(key) or messages.read(sender.folder, key)
        except (NotFound, StoreError):
            continue  # a damaged message does not block others
        if message.kind not in sender.notify.on:
            continue
        for way in sender.notify.receivers:
            one = last.get((key, way), messages.Try(0, None))
            delivery = Delivery(key, message.kind, way, one.delivered, one.number, *one[2:])
            letters.append((delivery, key, way))
    return letters


def _letter(sender: Sender, identity: str, message: Message, verdict: str | None) -> Letter:
    lines = [f"{sender.folder.name}: {message.text}" if message.kind != "end" else
             f"{sender.folder.name} {message.text}", *([verdict] if verdict else [])]  # fmt: skip
    name = f"{identity}.{message.key}"
    root, sweep = sender.folder.store.root, sender.folder.name
    return Letter(name, sweep, root, message.kind, message.time, tuple(lines), verdict)


def _try(sender: Sender, letter: Letter, way: str, number: int) -> None:
    """Send a letter, unless another process does."""
    key = letter.identity.partition(".")[2]
    if not messages.begin(sender.folder, key, way, number):
        return
    error: str | None = None
    try:
        send(way, letter, sender.notify, sender.environment, sender.cwd)
    except Undelivered as why:
        error = str(why)
    messages.end(sender.folder, key, way, number, error)
