"""Grid -> points, lazily: the product of the blocks, less `exclude`, plus `include`."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sweeper.grid import Grid
from sweeper.grid.blocks import Setting, assign
from sweeper.grid.naming import canonical
from sweeper.grid.nodes import Place, Problems
from sweeper.grid.options import nearest

__all__ = ["MAX_RUNS", "Point", "count_points", "expand", "place_of"]

MAX_RUNS = 100_000


class Point(NamedTuple):
    """One cell: its whole configuration with dotted keys, and what was chosen on each axis."""

    config: dict[str, Any]
    chosen: dict[str, Setting]


class _Exclusion:
    """The `exclude` rules, looked up by the values of the keys that they name: as quick for
    thousands of rules as for one."""

    def __init__(self, rules: Sequence[dict[str, Setting]]) -> None:
        self._by_keys: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
        for number, rule in enumerate(rules):
            keys = tuple(sorted(rule))
            values = tuple(canonical(rule[key].value) for key in keys)
            self._by_keys.setdefault(keys, {})[values] = number
        self.used: set[int] = set()

    def takes(self, config: Mapping[str, Any]) -> bool:
        """Whether a rule takes the point out."""
        for keys, rules in self._by_keys.items():
            if all(key in config for key in keys):
                number = rules.get(tuple(canonical(config[key]) for key in keys))
                if number is not None:
                    self.used.add(number)
                    return True
        return False


def count_points(grid: Grid) -> int:
    """How many cells there are before `exclude`, without making one."""
    count = 1 if grid.blocks or not grid.include else 0
    for block in grid.blocks:
        count *= block.size
    return count + len(grid.include)


def expand(grid: Grid, problems: Problems, warnings: list[str]) -> Iterator[Point]:
    """The points in order: the last axis varies fastest, included cells come last.

    Problems and warnings about `exclude` are known when the last point has been taken.
    """
    base = {key: setting.value for key, setting in grid.base.items()}
    fixed = {key: setting.value for key, setting in grid.fixed.items()}
    rules = list(_usable_rules(grid, problems, warnings))
    exclusion = _Exclusion(rules)
    if grid.blocks or not grid.include:
        # What no axis touches is the same in every point.
        common = _layered(base, grid, fixed)
        choices = [range(block.size) for block in grid.blocks]
        for indices in itertools.product(*choices):
            chosen = {
                key: settings[index]
                for block, index in zip(grid.blocks, indices, strict=True)
                for key, settings in block.axes.items()
            }
            config = dict(common)
            for setting in chosen.values():
                config.update(setting.given)
            config.update(fixed)
            if not exclusion.takes(config):
                yield Point(config, chosen)
    for entry in grid.include:
        config = dict(base)
        for key, setting in entry.items():
            assign(config, key, setting.given)
        for key, value in fixed.items():
            assign(config, key, {key: value})
        yield Point(config, entry)
    for number, rule in enumerate(rules):
        if number not in exclusion.used:
            warnings.append(f"{next(iter(rule.values())).place}: exclude takes nothing out")


def _layered(base: dict[str, Any], grid: Grid, fixed: dict[str, Any]) -> dict[str, Any]:
    """The base with what the axes and the command line will set taken out."""
    common = dict(base)
    for block in grid.blocks:
        for key in block.axes:
            assign(common, key, {})
    for key in fixed:
        assign(common, key, {})
    return common


def _usable_rules(
    grid: Grid, problems: Problems, warnings: list[str]
) -> Iterator[dict[str, Setting]]:
    """The rules that can match. One that names an unknown key is a mistake, unless the command
    line took the key away."""
    known = _keys(grid)
    for rule in grid.exclude:
        unknown = [key for key in rule if key not in known]
        for key in unknown:
            place = rule[key].place
            if key in grid.dropped:
                warnings.append(f"{place}: exclude names {key}, which the command line dropped")
            else:
                problems.add(place, f"exclude: there is no axis {key!r}{nearest(key, known)}")
        if not unknown:
            yield rule


def _keys(grid: Grid) -> set[str]:
    axes = {
        leaf
        for block in grid.blocks
        for settings in block.axes.values()
        for setting in settings
        for leaf in setting.given
    }
    return axes | grid.base.keys() | grid.fixed.keys()


def place_of(grid: Grid, point: Point, key: str) -> Place | None:
    """Where the value of a key at a point was written; None when the point has none for it."""
    if key in grid.fixed:
        return grid.fixed[key].place
    for setting in point.chosen.values():
        if key in setting.places:
            return setting.places[key]
    return grid.base[key].place if key in grid.base else None
