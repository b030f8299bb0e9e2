"""Makes the points of a grid one by one. A point is the configuration of a cell. The points are the
product of the blocks, extended by `when`, without the points that `exclude` removes, and then the
points of `include`. References are resolved last."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.fields.kinds import MAX_HINTS, hint, nearest
from sweeper.fields.nodes import Place, Problems
from sweeper.grid import Grid
from sweeper.grid.blocks import Setting
from sweeper.grid.conditions import When
from sweeper.grid.dotted_keys import Reach, assign
from sweeper.grid.naming import canonical
from sweeper.grid.references import BrokenReference, Resolver
from sweeper.planner.points import Point, Row, place_of, rows_of

MAX_RUNS = 100_000
MAX_WORK = 2_000_000
"""Maximum work of expanding a grid: 1 for each value of each run, 3 in each cell for each set of
keys in `exclude`, 8 in each cell for each condition and each reference, and more for long values
made from references."""

_RESOLVED_COST, _RULE_COST = 8, 3
_ENOUGH = 5_000
"""After a mistake, expansion stops at this number of cells."""


def count_points(grid: Grid) -> int:
    """Count the cells without making them. Conditions and exclusions are ignored."""
    count = 1 if grid.blocks or not grid.include else 0
    for block in grid.blocks:
        count *= block.size
    return count + len(grid.include)


class _TooMuch(Exception):
    """Too many points, or too much work to make them. The text is the message for the user."""


class Product:
    """A maker of the points of a grid. `replicates` is the number of runs of each point.
    `cut_short` is True if mistakes prevented some points. `warnings` is complete after the last
    point."""

    def __init__(
        self, grid: Grid, problems: Problems, warnings: list[str], *, replicates: int = 1
    ) -> None:
        self.grid, self.problems, self.warnings = grid, problems, warnings
        self.seed_field = grid.seed_field
        self.resolver = Resolver()
        self._limit, self._replicates = MAX_RUNS // replicates, replicates
        self._count = self._work = 0
        self.cut_short = False
        self._base = {key: setting.value for key, setting in grid.base.items()}
        self._fixed = {key: setting.value for key, setting in grid.fixed.items()}
        self._blocks = [rows_of(block) for block in grid.blocks]
        self._known = _keys(grid, grid.whens)
        self._held: set[int] = set()
        self._broken_noted: set[tuple[Place, str, str]] = set()
        self._rivals_noted: set[tuple[int, int]] = set()
        self._referring = _referring(grid)
        self._whens = list(self._usable_whens())
        self._rules = list(self._usable_rules())
        self._rule_keys = {tuple(sorted(rule)) for rule in self._rules}

    def overflows(self) -> bool:
        """Note a mistake and return True if there are too many points, or if making the points is
        too much work. Otherwise return False."""
        sizes = [len(rows) for rows in self._blocks]
        sizes += [len(rows) for when in self._whens for rows in when.blocks]
        each = self._cost(self._known) + _RESOLVED_COST * len(self._whens)
        if math.prod(sizes) <= min(self._limit, MAX_WORK // (each + 1)):
            return False
        try:
            for config, _ in self._unresolved_points():
                self._charge(self._cost(config))
        except _TooMuch as error:
            self._add_too_much(error)
            return True
        return False

    def _cost(self, config: Collection[str]) -> int:
        """Return the estimated work to make a point with these keys. Long values made from
        references are counted elsewhere."""
        rules, references = len(self._rule_keys), len(self._referring)
        return len(config) * self._replicates + _RULE_COST * rules + _RESOLVED_COST * references

    def _charge(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise _TooMuch(
                f"all runs together have more than {MAX_WORK} values (each cell adds 8 for"
                " each reference and each condition): use several grids"
            )

    def _add_too_much(self, error: _TooMuch) -> None:
        self.cut_short = True
        self.problems.add(self.grid.places["when" if self._whens else "grid"], str(error))

    def points(self) -> Iterator[Point]:
        """Yield the points in order: the last axis varies fastest, axes of `when` vary faster than
        all other axes, and included cells come last."""
        exclusion = Exclusion(self._rules)
        try:
            for config, rows in self._unresolved_points():
                self._charge(self._cost(config))
                point = self._resolved(config, rows)
                if not exclusion.takes(point.config):
                    yield point
                if (self._broken_noted or self._rivals_noted) and self._count > _ENOUGH:
                    self.cut_short = True
                    return
            yield from self._included()
        except _TooMuch as error:
            self._add_too_much(error)
            return
        for number, rule in enumerate(self._rules):
            if number not in exclusion.used:
                place = next(iter(rule.values())).place
                self.warnings.append(f"{place}: this rule of exclude removes no cell")
        self._warn_of_whens()

    def _included(self) -> Iterator[Point]:
        for entry in self.grid.include:
            config = dict(self._base)
            self._charge(self._cost(config))
            for key, setting in entry.items():
                assign(config, key, setting.given)
            for key, value in self._fixed.items():
                assign(config, key, {key: value})
            yield self._resolved(config, (Row.of(entry),))

    def _unresolved_points(self) -> Iterator[tuple[dict[str, object], tuple[Row, ...]]]:
        """Yield the points of the axes, including axes under conditions."""
        if not self._blocks and self.grid.include:
            return
        self._count = self._work = 0
        # Start from the values that no axis changes.
        common = dict(self._base)
        for key in [key for block in self.grid.blocks for key in block.axes] + [*self._fixed]:
            assign(common, key, {})
        for rows in itertools.product(*self._blocks):
            config = dict(common)
            for row in rows:
                config.update(row.given)
            config.update(self._fixed)
            self._add_to_count(1)
            if self._whens:
                yield from self._under_conditions(0, config, rows, ())
            else:
                yield config, rows

    def _under_conditions(
        self,
        number: int,
        config: dict[str, object],
        rows: tuple[Row, ...],
        applied: tuple[int, ...],
    ) -> Iterator[tuple[dict[str, object], tuple[Row, ...]]]:
        """Apply the entries of `when`, starting with entry `number`, to the configuration of a
        point. Yield the resulting configurations and their rows."""
        for index in range(number, len(self._whens)):
            when = self._whens[index]
            self._charge(_RESOLVED_COST)
            if not self._holds(when.when, config):
                continue
            self._held.add(index)
            rival = next((other for other in applied if other in when.rivals), None)
            if rival is not None:  # Note the mistake and skip the entry.
                if (rival, index) not in self._rivals_noted:
                    self._rivals_noted.add((rival, index))
                    self._add_rivals(self._whens[rival].when, when.when)
                continue
            applied = (*applied, index)
            config = dict(config)
            for key in when.clears:
                config.pop(key, None)
            if when.base.given:
                config.update(when.base.given)
                rows = (*rows, when.base)
            if when.blocks:
                # Each combination makes at least one point, so count the points before making them.
                self._add_to_count(math.prod(map(len, when.blocks)) - 1)
                for chosen in itertools.product(*when.blocks):
                    branch = dict(config)
                    for row in chosen:
                        branch.update(row.given)
                    yield from self._under_conditions(index + 1, branch, (*rows, *chosen), applied)
                return
        yield config, rows

    def _add_to_count(self, points: int) -> None:
        self._count += points
        if self._count > self._limit:
            raise _TooMuch(f"more than {self._limit} cells; a sweep has at most {MAX_RUNS} runs")

    def _holds(self, when: When, config: Mapping[str, object]) -> bool:
        for key, condition in when.conditions.items():
            if key not in config:
                return False
            if key in self._referring:
                before = self.resolver.work
                try:
                    text = self.resolver.text(config, key, self._referring, self.seed_field)
                    self._charge(self.resolver.work - before)
                except BrokenReference as error:
                    self._add_broken(condition.place, f"if: {key}", error, config)
                    return False
            else:
                text = canonical(config[key])
            if text not in condition.texts:
                return False
        return True

    def _add_rivals(self, earlier: When, other: When) -> None:
        reach = Reach(earlier.keys)
        for key in other.keys:
            if reach.touches(key):
                place = f" (the other at {earlier.place.line}:{earlier.place.column})"
                self.problems.add(
                    other.place,
                    f"when: {key[:60]!r} is given by two entries that apply to the same cells"
                    f"{place if earlier.place.line else ''}",
                )

    def _resolved(self, config: dict[str, object], rows: tuple[Row, ...]) -> Point:
        """Return a point with its references resolved."""
        if not self._referring:
            return Point(config, rows)
        raw, before = dict(config), self.resolver.work
        pending, broken = self.resolver.resolve(config, self._referring, self.seed_field)
        for key, error in broken:
            place = place_of(self.grid, Point(raw, rows), key) or self.grid.places["base"]
            self._add_broken(place, key, error, raw)
        if broken:
            return Point(raw, rows)
        chosen = tuple(self._resolved_row(row, raw) if row.refers else row for row in rows)
        made = max(0, self.resolver.work - before - _RESOLVED_COST * len(self._referring))
        grown = max(0, len(config) - len(raw)) * (1 + self._replicates)
        # Values that depend on the seed are computed once for each run.
        self._charge(made + grown + _RESOLVED_COST * len(pending) * self._replicates)
        return Point(config, chosen, pending)

    def with_runs(self, point: Point) -> Point:
        """Return a point with the configurations of its runs, in which values that depend on the
        seed are resolved."""
        seeds, field = self.grid.seeds, self.seed_field
        if seeds is None or field is None:
            if not point.pending:
                return point
            given = [point.config] * (len(seeds.values) if seeds else 1)
        else:
            given = [point.config | {field: seed} for seed in seeds.values]
        return point._replace(configs=tuple(self._settled(point, config) for config in given))

    def _settled(self, point: Point, config: dict[str, object]) -> dict[str, object]:
        if not point.pending:
            return config
        config = dict(config)
        _, broken = self.resolver.resolve(config, point.pending, None)
        for key, error in broken:
            place = place_of(self.grid, point, key) or self.grid.places["base"]
            self._add_broken(place, key, error, config)
        return config

    def _resolved_row(self, row: Row, config: dict[str, object]) -> Row:
        settings = dict(row.settings)
        for key, setting in settings.items():
            if setting.refers:
                try:
                    value = self.resolver.fill(
                        config, setting.value, self._referring, self.seed_field
                    )
                # A later layer overrides this key in `config`.
                except BrokenReference as error:
                    self._add_broken(setting.place, key, error, config)
                    continue
                settings[key] = setting._replace(value=value)
        return row._replace(settings=settings)

    def _add_broken(
        self, place: Place, label: str, error: BrokenReference, config: Mapping[str, object]
    ) -> None:
        problem = (place, label, str(error))
        if problem not in self._broken_noted:
            self._broken_noted.add(problem)
            suggestion = "" if error.missing is None else hint(error.missing, config, self.problems)
            self.problems.add(place, f"{label}: {error}{suggestion}")

    def _usable_rules(self) -> Iterator[dict[str, Setting]]:
        """Yield the rules of `exclude` that can match. For each unknown key in another rule, add a
        problem, or only a warning if the command line dropped the key."""
        for rule in self.grid.exclude:
            unknown = [key for key in rule if key not in self._known]
            for key in unknown:
                self._add_unknown("exclude", "there is no axis", key, rule[key].place, self._known)
            if not unknown:
                yield rule

    def _usable_whens(self) -> Iterator["_When"]:
        """Yield the entries of `when` whose conditions can hold, prepared for the expansion."""
        before = _keys(self.grid, ())
        usable: list[When] = []
        for number, when in enumerate(self.grid.whens):
            unknown = [key for key in when.conditions if key not in before]
            for key in unknown:
                place = when.conditions[key].place
                if key == self.seed_field and self.grid.seeds is not None:
                    self.problems.add(place, f"if: {key} is the seed, which differs within a cell")
                elif key in self._known:
                    self.problems.add(place, f"if: {key[:60]!r} is given only by a later entry")
                else:
                    self._add_unknown("if", "the grid gives no", key, place, before)
            if not unknown:
                yield _When.of(when, usable, self._known)
                usable.append(when)
            before = _keys(self.grid, self.grid.whens[: number + 1])

    def _add_unknown(
        self, section: str, lack: str, key: str, place: Place, keys: Iterable[str]
    ) -> None:
        if Reach(self.grid.dropped).touches(key):
            self.warnings.append(f"{place}: {section} names {key}, which the command line dropped")
        else:
            suggestion = hint(key, keys, self.problems)
            self.problems.add(place, f"{section}: {lack} {key[:60]!r}{suggestion}")

    def _warn_of_whens(self) -> None:
        """Warn of conditions that never hold, and suggest the value that was probably meant."""
        given: dict[str, list[str]] = {}
        hints = 0
        for index, when in enumerate(self._whens):
            if index in self._held:
                continue
            if not given:
                for setting in self.grid.every_setting():
                    for key, value in setting.given.items():
                        given.setdefault(key, []).extend([value] if isinstance(value, str) else [])
            message = f"{when.when.place}: when: its condition never holds"
            for key, condition in when.when.conditions.items():
                odd = [v for v in condition.values if isinstance(v, str) and v not in given[key]]
                similar = nearest(odd[0], given[key]) if odd and hints < MAX_HINTS else ""
                hints += bool(odd)
                if similar:
                    message = f"{condition.place}: when: no cell has {key}: {odd[0][:60]}{similar}"
            self.warnings.append(message)


class _When(NamedTuple):
    """An entry of `when`, prepared for the expansion. `clears` are the keys whose values the entry
    replaces. `rivals` are the numbers of earlier entries that set some of the same keys."""

    when: When
    base: Row
    blocks: list[tuple[Row, ...]]
    clears: tuple[str, ...]
    rivals: frozenset[int]

    @classmethod
    def of(cls, when: When, earlier: Sequence[When], keys: Iterable[str]) -> "_When":
        reach = Reach(when.keys)
        return cls(
            when,
            Row.of(when.base),
            [rows_of(block) for block in when.blocks],
            tuple(k for k in keys if reach.touches(k)),
            frozenset(
                number
                for number, other in enumerate(earlier)
                if any(map(reach.touches, other.keys))
            ),
        )


def _referring(grid: Grid) -> dict[str, None]:
    """Return the keys whose values may contain references, in the grid's order."""
    return dict.fromkeys(leaf for s in grid.every_setting() if s.refers for leaf in s.given)


def _keys(grid: Grid, whens: Sequence[When]) -> set[str]:
    """Return the keys that cells may have. Included cells are ignored."""
    blocks = [*grid.blocks, *(block for when in whens for block in when.blocks)]
    axes = {
        leaf
        for block in blocks
        for settings in block.axes.values()
        for setting in settings
        for leaf in setting.given
    }
    given = {key for when in whens for key in when.base}
    return axes | given | grid.base.keys() | grid.fixed.keys()


class Exclusion:
    """The `exclude` rules, indexed by their values so that a lookup is fast."""

    def __init__(self, rules: Sequence[dict[str, Setting]]) -> None:
        self._by_keys: dict[tuple[str, ...], dict[tuple[str, ...], int]] = {}
        for number, rule in enumerate(rules):
            keys = tuple(sorted(rule))
            values = tuple(canonical(rule[key].value) for key in keys)
            self._by_keys.setdefault(keys, {})[values] = number
        self.used: set[int] = set()

    def takes(self, config: Mapping[str, object]) -> bool:
        """Return whether a rule excludes the point, and record the rule as used."""
        for keys, rules in self._by_keys.items():
            if all(key in config for key in keys):
                number = rules.get(tuple(canonical(config[key]) for key in keys))
                if number is not None:
                    self.used.add(number)
                    return True
        return False
