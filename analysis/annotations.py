"""What people noted of a sweep and its runs, as the report shows it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.sources import Source
from sweeper.model.mark import Marks
from sweeper.results.marks import marked

__all__ = ["NOBODY", "Note", "Noted", "read_noted"]


class Note(NamedTuple):
    """A note, and the name of the run that it is about; "" for the sweep."""

    run: str
    text: str
    by: str
    time: str


class Noted(NamedTuple):
    """`notes`, oldest first, and the `tags` (a star as "*") by the name of what has them."""

    notes: tuple[Note, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = {}


NOBODY = Noted()
"""Nobody has noted anything."""


def read_noted(found: Sequence[Source]) -> Noted:
    """Read what is noted of these sweeps and of their runs."""
    notes: list[Note] = []
    tags: dict[str, tuple[str, ...]] = {}
    for name, marks in (pair for source in found for pair in _of(source)):
        several = (*marks.tags, *(["*"] if marks.starred else []))
        if several:
            tags[name] = several
        notes += [Note(name, note.text, note.by, note.time) for note in marks.notes]
    return Noted(tuple(sorted(notes, key=lambda note: note.time)), tags)


def _of(source: Source) -> list[tuple[str, Marks]]:
    """The marks of a sweep, and those of its runs by their names."""
    if source.sweep is None:
        return []
    names = {placed.run.id: placed.run.name for placed in source.runs}
    known = marked(source.sweep.store, source.sweep.name, source.sweep.unreadable)
    runs = [(names[run], marks) for run, marks in known.runs.items() if run in names]
    return [("", known.sweep), *runs]
