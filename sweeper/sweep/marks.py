"""Marks that people and agents add to a sweep and its runs: notes, tags, stars, and the archived
flag. Each mark is a file `notes/<nanoseconds>-<random>.<kind>.json`, created once."""

import os
import re
import time
from collections.abc import Callable, Iterable, MutableMapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Default, written
from sweeper.errors import Damaged, StoreError
from sweeper.store.documents import encode, read_each, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.sweep_requests import user

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class Kind(StrEnum):
    """The kinds of marks. The kind says what a mark adds or removes."""

    NOTE = "note"
    TAG = "tag"
    UNTAG = "untag"
    STAR = "star"
    UNSTAR = "unstar"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"


class Mark(NamedTuple):
    """A mark on the run with the id `run`, or on the sweep (`run` is None). `text` is the text of a
    note, or the tag. `by` is the author; `time` is when the mark was made (UTC, ISO 8601)."""

    kind: Kind
    run: str | None
    text: Annotated[str, Default("")]
    by: Annotated[str, Default("somebody")]
    time: Annotated[str, Default("")]

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **written(self)}


class Marks(NamedTuple):
    """The current marks of a run or a sweep: notes (oldest first), tags (in alphabetical order),
    the star, and the archived flag (only of sweeps)."""

    notes: tuple[Mark, ...] = ()
    tags: tuple[str, ...] = ()
    starred: bool = False
    archived: bool = False

    def record(self) -> dict[str, object]:
        """Return notes, tags and star as plain values, for `--json`."""
        notes = [{"text": note.text, "by": note.by, "time": note.time} for note in self.notes]
        return {"notes": notes, "tags": list(self.tags), "starred": self.starred}


NO_MARKS = Marks()


def is_tag(text: str) -> bool:
    """Return whether `text` is a valid tag: at most 64 letters, digits and `. _ + -`, the first
    a letter or digit."""
    return _TAG.fullmatch(text) is not None


def fold(marks: Iterable[Mark]) -> Marks:
    """Return the current marks that follow from all marks of one run or sweep (oldest first)."""
    notes: list[Mark] = []
    tags: set[str] = set()
    starred = archived = False
    for mark in marks:
        if mark.kind is Kind.NOTE:
            notes.append(mark)
        elif mark.kind is Kind.TAG:
            tags.add(mark.text)
        elif mark.kind is Kind.UNTAG:
            tags.discard(mark.text)
        elif mark.kind in (Kind.STAR, Kind.UNSTAR):
            starred = mark.kind is Kind.STAR
        else:
            archived = mark.kind is Kind.ARCHIVE
    return Marks(tuple(notes), tuple(sorted(tags)), starred, archived)


def read(document: object, place: str) -> Mark:
    """Return the mark in `document`, the content of the file `place`. Raises `StoreError`."""
    mark = codec.read(Mark, document, place)
    if mark.kind in (Kind.TAG, Kind.UNTAG) and not is_tag(mark.text):
        raise Damaged(f"{place}: text: should be a tag")
    return mark


_NAME = re.compile(r"[0-9]{19}-[0-9a-f]{8}\.([a-z]+)\.json")


def put_mark(
    folder: SweepFolder, kind: Kind, run: str | None = None, text: str = "", by: str = ""
) -> Mark:
    """Record and return a mark. The default of `by` is the current user. Raises `StoreError`."""
    mark = Mark(kind, run, text, by or user(), timestamp())
    name = f"{time.time_ns():019}-{os.urandom(4).hex()}.{kind.value}.json"
    folder.store.create(f"{folder.notes}/{name}", encode(mark.document()))
    return mark


def read_marks(
    folder: SweepFolder,
    on_error: Callable[[StoreError], None] | None = None,
    cache: MutableMapping[str, Mark] | None = None,
) -> list[Mark]:
    """Read the marks of a sweep and of its runs, oldest first. Damaged marks are skipped, and
    `on_error` gets their errors. With `cache`, marks that an earlier call has put into `cache` are
    not read again. Raises `StoreError` if the store does not answer."""
    return read_each(folder.store, {path: read for path, _ in _listed(folder)}, cache, on_error)


def is_archived(folder: SweepFolder) -> bool:
    """Return whether a sweep is archived. Raises `StoreError`."""
    kinds = [kind for _, kind in _listed(folder) if kind in (Kind.ARCHIVE, Kind.UNARCHIVE)]
    return bool(kinds) and kinds[-1] is Kind.ARCHIVE


def _listed(folder: SweepFolder) -> list[tuple[str, Kind]]:
    """Return the path and the kind of each mark, oldest first. Marks of kinds that this version
    does not know are left out."""
    marks: list[tuple[str, Kind]] = []
    for path in sorted(folder.store.names(folder.notes)):
        match = _NAME.fullmatch(path.rpartition("/")[2])
        if match and match[1] in set(Kind):
            marks.append((path, Kind(match[1])))
    return marks
