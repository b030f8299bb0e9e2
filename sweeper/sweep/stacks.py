"""Requests for the stacks of a running recipe's threads. A request is a file with a random word,
one per attempt; the worker repeats the word in its answer. Workers load this module, so it uses
only the standard library."""

import os
import time
from typing import NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Time
from sweeper.errors import NotFound
from sweeper.store.documents import encode, read_as, timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sweeper.sweep.folder import SweepFolder

_POLL_SECONDS = 0.5


class Stacks(NamedTuple):
    """The stacks of a recipe's threads at a `time`, as text. `word` is the random word from the
    request for these stacks."""

    word: str
    time: Time
    text: str


class _Request(NamedTuple):
    word: str


def ask(folder: "SweepFolder", run: str, attempt: int) -> str:
    """Ask the worker of an attempt for the stacks of its recipe. Return the random word of the
    request. Raises `StoreError`."""
    word = os.urandom(6).hex()
    path = folder.stacks_request(run, attempt)
    folder.store.replace(path, encode({"schema": SCHEMA, "word": word}))
    return word


def wait(folder: "SweepFolder", run: str, attempt: int, word: str, seconds: float) -> Stacks | None:
    """Wait for the stacks that `ask` has requested with `word`. Return None if there is no answer
    after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        stacks = read(folder, run, attempt)
        if stacks is not None and stacks.word == word:
            return stacks
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)


def read(folder: "SweepFolder", run: str, attempt: int) -> Stacks | None:
    """Read the last stacks that the worker of an attempt has sent. Return None if there are none.
    Raises `StoreError`."""
    try:
        return read_as(folder.store, folder.stacks(run, attempt), _read_stacks)
    except NotFound:
        return None


def answer(folder: "SweepFolder", run: str, attempt: int, text: str) -> None:
    """Answer the request for the stacks of an attempt with `text`, and remove the request. Do
    nothing if there is no request. Raises `StoreError`."""
    request = folder.stacks_request(run, attempt)
    try:
        word = read_as(folder.store, request, _read_request).word
    except NotFound:
        return
    body = {"schema": SCHEMA, "word": word, "time": timestamp(), "text": text}
    folder.store.replace(folder.stacks(run, attempt), encode(body))
    folder.store.remove([request])


def _read_stacks(document: object, place: str) -> Stacks:
    return codec.read(Stacks, document, place)


def _read_request(document: object, place: str) -> _Request:
    return codec.read(_Request, document, place)
