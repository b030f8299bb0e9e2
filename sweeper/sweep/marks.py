"""Recorded marks: one file each, created once and never changed.
    notes/<nanoseconds since 1970>-<random>.<kind>.json
The names sort in the order in which the marks were made, as far as clocks agree."""

import os
import re
import time
from collections.abc import Callable, MutableMapping

from sweeper.errors import StoreError
from sweeper.store.documents import encode, read_each, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.mark import Kind, Mark, read
from sweeper.sweep.sweep_requests import user

_NAME = re.compile(r"[0-9]{19}-[0-9a-f]{8}\.([a-z]+)\.json")


def put_mark(
    folder: SweepFolder, kind: Kind, run: str | None = None, text: str = "", by: str = ""
) -> Mark:
    """Record a mark. `by` is this user by default. Raises `StoreError`."""
    mark = Mark(kind, run, text, by or user(), timestamp())
    name = f"{time.time_ns():019}-{os.urandom(4).hex()}.{kind.value}.json"
    folder.store.create(f"{folder.notes}/{name}", encode(mark.document()))
    return mark


def read_marks(
    folder: SweepFolder,
    on_error: Callable[[StoreError], None] | None = None,
    known: MutableMapping[str, Mark] | None = None,
) -> list[Mark]:
    """Read the marks of a sweep and of its runs, oldest first. Damaged ones are skipped, and
    `on_error` gets their errors. Callers that read repeatedly pass the same `known`, empty at
    first: marks in it are not read again. Raises `StoreError` if the store does not answer."""
    return read_each(folder.store, {path: read for path, _ in _listed(folder)}, known, on_error)


def is_archived(folder: SweepFolder) -> bool:
    """Return whether a sweep is archived, by the names of its marks. Raises `StoreError`."""
    kinds = [kind for _, kind in _listed(folder) if kind in (Kind.ARCHIVE, Kind.UNARCHIVE)]
    return bool(kinds) and kinds[-1] is Kind.ARCHIVE


def _listed(folder: SweepFolder) -> list[tuple[str, Kind]]:
    """Return the files and the kinds of marks, in order. Kinds of other versions are left out."""
    marks: list[tuple[str, Kind]] = []
    for path in sorted(folder.store.names(folder.notes)):
        match = _NAME.fullmatch(path.rpartition("/")[2])
        if match and match[1] in set(Kind):
            marks.append((path, Kind(match[1])))
    return marks
