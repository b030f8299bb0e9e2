"""A sweep and its confirmation, read as one study. Pure.

The cells at the top of a sweep were chosen by what their runs showed, which flatters them. Where
another sweep repeats some of its cells on fresh seeds, those cells are judged by the fresh seeds
alone: what they show had no part in the choice, so what is claimed of it holds as often as it would
in a sweep of just those cells. The runs that chose them stay in sight, and count for nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.reading.sources import Placed, Source


class Confirmed(NamedTuple):
    """`first`, of `cells` cells, and `fresh` sweeps that repeat some of them on other seeds.
    `names` maps a configuration, as a text, to the name of its cell in the first."""

    first: str
    cells: int
    fresh: tuple[str, ...]
    names: Mapping[str, str]

    seed_field: str

    def cell(self, placed: Placed) -> str | None:
        """Return the name of a run's cell, if it is one that was repeated."""
        return self.names.get(_place(placed, self.seed_field))


def _place(placed: Placed, seed_field: str) -> str:
    """Return what a run is configured to do, but for its seed, as a text."""
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
    """Return whether it has the name of a grid to run next: of the first, or of one that followed
    it."""
    after = source.name.removeprefix(first.name)
    return source.name != after and re.fullmatch("(-confirm)+", after) is not None


def _later(source: Source, first: Source) -> bool:
    times = [one.plan and one.plan.created for one in (first, source)]
    return bool(times[0] and times[1]) and str(times[0]) < str(times[1])
