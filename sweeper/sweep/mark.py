"""Marks that people and agents add to a sweep and its runs: notes, tags, stars, and the archived
flag. Each is created once and never changed; the current state follows from all of them in
order."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Default, written
from sweeper.errors import Damaged

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class Kind(StrEnum):
    """The effect of a mark."""

    NOTE = "note"
    TAG = "tag"
    UNTAG = "untag"
    STAR = "star"
    UNSTAR = "unstar"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"


class Mark(NamedTuple):
    """`run` is the id of its run, None for the sweep. `text` is the text of a note, or a tag. `by`
    is its author, `time` when it was made (UTC, ISO 8601)."""

    kind: Kind
    run: str | None
    text: Annotated[str, Default("")]
    by: Annotated[str, Default("somebody")]
    time: Annotated[str, Default("")]

    def document(self) -> dict[str, object]:
        """Return the value in its stored form."""
        return {"schema": SCHEMA, **written(self)}


class Marks(NamedTuple):
    """The state of a run or a sweep: its notes, oldest first, its tags in alphabetical order,
    whether it is starred, and whether a sweep is archived."""

    notes: tuple[Mark, ...] = ()
    tags: tuple[str, ...] = ()
    starred: bool = False
    archived: bool = False

    def record(self) -> dict[str, object]:
        """Return plain values, for `--json`."""
        notes = [{"text": note.text, "by": note.by, "time": note.time} for note in self.notes]
        return {"notes": notes, "tags": list(self.tags), "starred": self.starred}


NO_MARKS = Marks()


def is_tag(text: str) -> bool:
    """Return whether a text is a valid tag: letters, digits, `. _ + -`, at most 64."""
    return _TAG.fullmatch(text) is not None


def fold(marks: Iterable[Mark]) -> Marks:
    """Return the state that follows from the marks of one run or sweep, given in their order."""
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
    """Read the mark in the file `place`. Raises `StoreError`."""
    mark = codec.read(Mark, document, place)
    if mark.kind in (Kind.TAG, Kind.UNTAG) and not is_tag(mark.text):
        raise Damaged(f"{place}: text: should be a tag")
    return mark
