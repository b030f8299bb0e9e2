"""Decides whether any process can still write to a sweep on a remote store. If no process can, the
sweep is settled: its listing can be reused as long as the files in `GATES` do not change."""

# Three kinds of processes write to a sweep:
#
# - the holder of its lease. It creates `launcher/<epoch>` before it writes anything else, and
#   `launcher/<epoch>.released` after it;
# - workers, between the claim and the outcome of their attempt, which they write last;
# - commands: they add files in GATES, or write inside `changing`.
#
# A reader lists GATES and then the sweep. If the sweep is settled in both listings, the second
# listing stays right until GATES change.

import json
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

from sweeper.errors import StoreError, SweeperError
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import this_process
from sweeper.sweep.states import Event, parse_name

GATES = ("launcher", "notes")
CHANGING = "changing."
"""Prefix of files in `launcher/`. Each such file stands for a command that may be writing to the
sweep."""
_REQUESTS = frozenset({Event.CANCEL, Event.RETRY, Event.AGAIN})
_OVER = frozenset({Event.SUCCEEDED, Event.FAILED, Event.CANCELLED})


@contextmanager
def changing(folder: SweepFolder) -> Generator[None]:
    """Let the block write to a sweep without holding the sweep's lease. While the block runs on a
    remote store, a file in `launcher/` tells readers not to reuse a listing of the sweep. The file
    stays if the process is killed or the store fails, because the store may still execute the last
    write. Raises `StoreError`."""
    if not folder.store.is_remote:
        yield
        return
    mark = put_changing(folder)
    try:
        yield
    except BaseException as error:
        if isinstance(error, SweeperError) and not isinstance(error, StoreError):
            _close(folder, mark)
        raise
    _close(folder, mark)


def put_changing(folder: SweepFolder) -> str:
    """Create a file that says that this process may still write to the sweep. Return the file's
    path. Raises `StoreError`."""
    mark = f"{folder.launcher}/{CHANGING}{os.urandom(8).hex()}"
    folder.store.replace(mark, json.dumps(this_process()._asdict()).encode() + b"\n")
    return mark


def _close(folder: SweepFolder, mark: str) -> None:
    # If this fails, the mark stays, and the sweep does not count as settled.
    with suppress(StoreError):
        folder.store.replace(f"{folder.launcher}/changed", os.urandom(8).hex().encode() + b"\n")
        folder.store.remove([mark])


def is_settled(paths: Iterable[str]) -> bool:
    """Return whether the sweep is settled: each process that wants to write to the sweep must first
    write to a folder in `GATES`. `paths` are the sweep's files, relative to the sweep's folder."""
    epochs: set[str] = set()
    events: dict[str, dict[int, set[Event]]] = {}
    for path in paths:
        kind, _, name = path.partition("/")
        if kind == "launcher":
            if name.startswith(CHANGING):
                return False
            epochs.add(name)
        elif kind == "state":
            run, _, file = name.partition("/")
            event = parse_name(file)
            if event is None:
                return False
            if event[1] not in _REQUESTS:
                events.setdefault(run, {}).setdefault(event[0], set()).add(event[1])
    last = max((int(name) for name in epochs if name.isdecimal()), default=0)
    return f"{last}.released" in epochs and all(map(_is_over, events.values()))


def _is_over(attempts: dict[int, set[Event]]) -> bool:
    """Return whether all workers of a run have ended, and no more can start. A worker can still
    start in an attempt that was not claimed, or in the last attempt if this attempt was preempted
    (the backend may restart the job)."""
    last = max(attempts)
    return all(
        Event.CLAIMED in events
        and (events & _OVER or (number < last and Event.PREEMPTED in events))
        for number, events in attempts.items()
    )
