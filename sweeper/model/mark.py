"""What people and agents write beside a sweep and its runs: notes, tags, stars, and that a sweep is
put away. A mark is an event: it is created once and never changed, and what holds follows from all
of them in their order."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from sweeper.model.document_reader import SCHEMA, Part

__all__ = ["NO_MARKS", "Kind", "Mark", "Marks", "fold", "is_tag", "read"]

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class Kind(StrEnum):
    """What a mark does."""

    NOTE = "note"
    TAG = "tag"
    UNTAG = "untag"
    STAR = "star"
    UNSTAR = "unstar"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"


class Mark(NamedTuple):
    """`run` is the id of the run that it is about, None for the sweep; `text` that of a note, or a
    tag; `by` who made it, `time` when (UTC, ISO 8601)."""

    kind: Kind
    run: str | None
    text: str
    by: str
    time: str

    def document(self) -> dict[str, object]:
        """As it is stored."""
        return {"schema": SCHEMA, **self._asdict(), "kind": self.kind.value}


class Marks(NamedTuple):
    """What holds of a run, or of a sweep: its notes, oldest first, its tags in order of the
    alphabet, whether it is starred, and of a sweep whether it is archived."""

    notes: tuple[Mark, ...] = ()
    tags: tuple[str, ...] = ()
    starred: bool = False
    archived: bool = False

    def record(self) -> dict[str, object]:
        """As plain values, for `--json`."""
        notes = [{"text": note.text, "by": note.by, "time": note.time} for note in self.notes]
        return {"notes": notes, "tags": list(self.tags), "starred": self.starred}


NO_MARKS = Marks()


def is_tag(text: str) -> bool:
    """Whether a text can be a tag: letters, digits, `. _ + -`, at most 64."""
    return _TAG.fullmatch(text) is not None


def fold(marks: Iterable[Mark]) -> Marks:
    """What holds by these marks of one thing, in their order."""
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
    """The mark in the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    kind = Kind(top.one_of("kind", set(Kind), ""))
    text = top.text_or("text", "")
    if kind in (Kind.TAG, Kind.UNTAG) and not is_tag(text):
        top.refuse("text", "a tag")
    run = top.text_or("run", None)
    return Mark(kind, run, text, top.text_or("by", "somebody"), top.text_or("time", ""))
