"""What belongs to a sweep beside its runs: notes, tags, and the sweep that confirms it. Pure, but
for reading the notes."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.reading.sources import Placed, Source
from sweeper.results.marks import marked
from sweeper.sweep.marks import Marks


class Confirmed(NamedTuple):
    """A sweep and its confirmation, read as one study: `first`, of `cells` cells, and `fresh`
    sweeps that repeat some of them on other seeds. `names` maps a configuration, as a text, to the
    name of its cell in the first.

    The best cells of a sweep were chosen by their runs, which flatters them. The repeated cells are
    judged by the fresh seeds alone, which had no part in the choice. The first runs are shown, but
    do not count.
    """

    first: str
    cells: int
    fresh: tuple[str, ...]
    names: Mapping[str, str]

    seed_field: str

    def cell(self, placed: Placed) -> str | None:
        """Return the name of a run's cell, if it is one that was repeated."""
        return self.names.get(_place(placed, self.seed_field))


def _place(placed: Placed, seed_field: str) -> str:
    """Return the configuration of a run without its seed, as a text."""
    config = {key: value for key, value in placed.config.items() if key != seed_field}
    return json.dumps(config, sort_keys=True, default=str)


def confirmation(sources: Sequence[Source]) -> Confirmed | None:
    """Return whether all but one of these sweeps repeat cells of that one, with the same recipe, on
    seeds that it did not have, and after it: a pilot of a few cells chose nothing."""
    recipes = {source.plan and source.plan.recipe.reference for source in sources}
    if len(sources) < 2 or len(recipes) > 1 or None in recipes:
        return None
    plan = sources[0].plan
    field = (plan and plan.recipe.seed_field) or "seed"
    placed = [[(_place(one, field), one) for one in source.runs] for source in sources]
    for first, own in zip(sources, placed, strict=True):
        known = {at: one.cell for at, one in own}
        seeds = {(at, one.seed) for at, one in own}
        others = [(at, one.seed) for runs in placed if runs is not own for at, one in runs]
        repeated = {at for at, _ in others}
        rest = [source for source in sources if source is not first]
        # Where all cells were repeated, the name tells which of the two was first.
        whole = repeated == known.keys() and all(_named(source, first) for source in rest)
        some = bool(repeated) and repeated < known.keys()
        some = some and all(_named(source, first) or _later(source, first) for source in rest)
        if (some or whole) and not seeds.intersection(others):
            names = {at: cell for at, cell in known.items() if at in repeated}
            fresh = tuple(source.name for source in rest)
            return Confirmed(first.name, len(set(known.values())), fresh, names, field)
    return None


def _named(source: Source, first: Source) -> bool:
    """Return whether a sweep has the name of a next grid: that of the first sweep, or of one that
    followed it."""
    after = source.name.removeprefix(first.name)
    return source.name != after and re.fullmatch("(-confirm)+", after) is not None


def _later(source: Source, first: Source) -> bool:
    times = [one.plan and one.plan.created for one in (first, source)]
    return bool(times[0] and times[1]) and str(times[0]) < str(times[1])


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
