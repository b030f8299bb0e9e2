"""The notes and tags of a sweep and its runs, for the report."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.reading.sources import Source
from sweeper.results.marks import marked
from sweeper.sweep.mark import Marks


class Note(NamedTuple):
    """A note, and the name of its run; "" for the sweep."""

    run: str
    text: str
    by: str
    time: str


class Noted(NamedTuple):
    """`notes`, the oldest first, and the `tags` by run or sweep name (a star is "*")."""

    notes: tuple[Note, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = {}


NOBODY = Noted()
"""No notes and no tags."""


def read_noted(sources: Sequence[Source]) -> Noted:
    """Read the notes and tags of these sweeps and their runs."""
    notes: list[Note] = []
    tags: dict[str, tuple[str, ...]] = {}
    for name, marks in (pair for source in sources for pair in _of(source)):
        several = (*marks.tags, *(["*"] if marks.starred else []))
        if several:
            tags[name] = several
        notes += [Note(name, note.text, note.by, note.time) for note in marks.notes]
    return Noted(tuple(sorted(notes, key=lambda note: note.time)), tags)


def _of(source: Source) -> list[tuple[str, Marks]]:
    """Return the marks of a sweep, and those of its runs by name."""
    if source.sweep is None:
        return []
    names = {placed.run.id: placed.run.name for placed in source.runs}
    known = marked(source.sweep.folder, source.sweep.unreadable)
    runs = [(names[run], marks) for run, marks in known.runs.items() if run in names]
    return [("", known.sweep), *runs]
