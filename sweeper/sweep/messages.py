"""Records messages and the tries to send them to each receiver. A try with a `begun` file but no
`ended` file was interrupted. Its message may have arrived, and is not sent again."""

# notify/<key>.json                        the message: created once, by the first process
# notify/<key>.<receiver>.<n>.begun.json   created exclusively by the process that sends it, for the
#                                          n-th time
# notify/<key>.<receiver>.<n>.ended.json   the result

import re
import time
from functools import partial
from typing import NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists, Damaged, NotFound
from sweeper.store.documents import encode, read_as, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Message, read_message
from sweeper.sweep.process import is_gone, read_who, this_process

_MESSAGE = re.compile(r"([A-Za-z0-9_-]+)\.json")
_TRY = re.compile(r"([A-Za-z0-9_-]+)\.([a-z]+)\.([1-9][0-9]*)\.(begun|ended)\.json")
_LONGEST_TRY = 300.0
"""Seconds after which a try is certainly over."""


class Try(NamedTuple):
    """The last try to send a message to a receiver. `delivered` is None while the result is
    unknown. `error` says why the try failed. With `sending`, the sending process may still be
    running."""

    number: int
    delivered: bool | None
    error: str | None = None
    sending: bool = False


class _Ended(NamedTuple):
    delivered: bool = False
    error: str | None = None


class _Begun(NamedTuple):
    time: str = ""


def put(folder: SweepFolder, message: Message) -> bool:
    """Record a message. Return False if it was recorded already. Raises `StoreError`."""
    try:
        folder.store.create(f"{folder.notify}/{message.key}.json", encode(message.document()))
    except AlreadyExists:
        return False
    return True


def keys(folder: SweepFolder) -> list[str]:
    """Return the keys of all messages. Raises `StoreError`."""
    names = (path.rpartition("/")[2] for path in folder.store.names(folder.notify))
    return sorted(match[1] for name in names if (match := _MESSAGE.fullmatch(name)))


def read(folder: SweepFolder, key: str) -> Message:
    """Read a message. Raises `NotFound`, `StoreError`."""
    return read_as(folder.store, f"{folder.notify}/{key}.json", partial(read_message, key))


def tries(folder: SweepFolder) -> dict[tuple[str, str], Try]:
    """Return a dict from (message key, receiver) to the last try. Raises `StoreError`."""
    begun: dict[tuple[str, str], int] = {}
    ended: set[tuple[str, str, int]] = set()
    for path in folder.store.names(folder.notify):
        match = _TRY.fullmatch(path.rpartition("/")[2])
        if match is None:
            continue
        key, way, number = match[1], match[2], int(match[3])
        if match[4] == "ended":
            ended.add((key, way, number))
        begun[key, way] = max(begun.get((key, way), 0), number)
    return {
        (key, way): _outcome(folder, key, way, number)
        if (key, way, number) in ended
        else Try(number, None, sending=_is_sending(folder, key, way, number))
        for (key, way), number in begun.items()
    }


def begin(folder: SweepFolder, key: str, way: str, number: int) -> bool:
    """Record that this process makes try `number` of sending the message `key` to the receiver
    `way`. Return False if another process has recorded this try. Raises `StoreError`."""
    try:
        document = {"schema": SCHEMA, "time": timestamp(), **this_process()._asdict()}
        folder.store.create(_path(folder, key, way, number, "begun"), encode(document))
    except AlreadyExists:
        return False
    return True


def end(folder: SweepFolder, key: str, way: str, number: int, error: str | None) -> None:
    """Record the result of a try: `error` is None if the message has arrived. Raises
    `StoreError`."""
    document = {"schema": SCHEMA, "time": timestamp(), "delivered": error is None, "error": error}
    folder.store.replace(_path(folder, key, way, number, "ended"), encode(document))


def _outcome(folder: SweepFolder, key: str, way: str, number: int) -> Try:
    def read(document: object, place: str) -> Try:
        return Try(number, *codec.read(_Ended, document, place))

    try:
        return read_as(folder.store, _path(folder, key, way, number, "ended"), read)
    except NotFound:
        return Try(number, None)


def _is_sending(folder: SweepFolder, key: str, way: str, number: int) -> bool:
    """Return whether the sender of a try without a result may still be running: the try began at
    most `_LONGEST_TRY` seconds ago, and the sender is not known to have ended."""

    def read(document: object, place: str) -> bool:
        begun = codec.read(_Begun, document, place)
        return begun.time > timestamp(time.time() - _LONGEST_TRY) and not is_gone(
            read_who(document, place)
        )

    try:
        return read_as(folder.store, _path(folder, key, way, number, "begun"), read)
    except (NotFound, Damaged):
        return False


def _path(folder: SweepFolder, key: str, way: str, number: int, step: str) -> str:
    return f"{folder.notify}/{key}.{way}.{number}.{step}.json"
