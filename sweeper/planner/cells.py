"""Makes the names of cells, and the names and ids of runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.fields.nodes import Problems
from sweeper.grid import Grid
from sweeper.grid.naming import canonical, key_labels, run_id, suffixed, value_labels
from sweeper.planner.points import Expanded, Point, Row
from sweeper.sweep.names import shorten
from sweeper.sweep.plan import Run

MAX_PLAN = 256_000_000
"""Maximum number of characters in the configurations of all runs of a sweep together."""

_MAX_CELL = 80
_NONE: object = object()


class Named(NamedTuple):
    """The runs of a grid, in the order of its cells. `axes` maps each axis to its values. An
    axis of seeds is left out."""

    runs: tuple[Run, ...]
    axes: dict[str, list[object]]


def name(expanded: Expanded, problems: Problems) -> Named:
    """Give every cell its name and every run its id."""
    try:
        runs = tuple(_Naming(expanded).runs())
    except _TooLarge:
        message = f"the configurations of all runs have more than {MAX_PLAN} characters in total"
        problems.add(expanded.grid.places["grid"], message)
        runs = ()
    axes = {
        key: values
        for key, values in _axis_values(expanded.grid, expanded.points).items()
        if not (key == expanded.grid.seed_field and all(type(value) is int for value in values))
    }
    return Named(runs, axes)


class _TooLarge(Exception):
    pass


class _Naming:
    def __init__(self, expanded: Expanded) -> None:
        self.grid = grid = expanded.grid
        self.points, self.seed_field = expanded.points, grid.seed_field
        self.source = f'"recipe":{canonical(grid.recipe)}'
        if grid.command is not None:
            self.source = f'"command":{canonical(list(grid.command))}'
        # Many points share value objects. The grid keeps these alive, so `id()` can be their key.
        self._members: dict[str, dict[int, str]] = {}
        self._columns: dict[tuple[str | None, ...], list[tuple[str, dict[int, str]]]] = {}
        self._size = 0

    def runs(self) -> Iterator[Run]:
        """Yield each run, with its cell's name and its id."""
        grid, field = self.grid, self.seed_field
        seeds_in_cells = [
            _NONE if field is None else point.config.get(field, _NONE) for point in self.points
        ]
        # Without `seeds`, an integer in a cell's seed field is the cell's seed. If these seeds
        # differ, they are part of the names of runs.
        replicates = grid.seeds is not None or all(
            n is _NONE or type(n) is int for n in seeds_in_cells
        )
        shown = grid.seeds is not None or (replicates and len(set(seeds_in_cells)) > 1)
        keys = [key for key in _given_keys(grid) if key != field or not replicates]
        # In names, the seed is called `seed`, unless a key of that name has another meaning.
        word = field if field and "seed" in keys and grid.seeds is not None else "seed"
        if field is None:
            word = "replicate"
        names = _Names()
        labels = _labels(grid, self.points, keys, word)
        for point, seed_in_cell, label in zip(self.points, seeds_in_cells, labels, strict=True):
            fixed = seed_in_cell if type(seed_in_cell) is int else None
            values = self._values(point.config, None if fixed is None else field)
            cell = names.of(label, values)
            seeds = grid.seeds.values if grid.seeds else (fixed,)
            configs = point.configs or (point.config,) * len(seeds)
            for seed, config in zip(seeds, configs, strict=True):
                if point.pending:
                    values = self._values(config, self._seeded(config))
                self._size += len(values)
                if self._size > MAX_PLAN:
                    raise _TooLarge
                whole = cell
                if shown and seed is not None:
                    whole = shorten(f"{cell},{word}={seed}" if cell else f"{word}={seed}")
                yield Run(
                    id=run_id(self.source, values, "null" if seed is None else str(seed)),
                    name=whole or "base",
                    cell=cell or "base",
                    seed=seed,
                    config=config,
                )

    def _seeded(self, config: Mapping[str, object]) -> str | None:
        field = self.seed_field
        return field if field is not None and type(config.get(field)) is int else None

    def _values(self, config: Mapping[str, object], left_out: str | None) -> str:
        """Return the values of a configuration, without the key `left_out`, as text for a run's
        id."""
        shape = (left_out, *config)
        columns = self._columns.get(shape)
        if columns is None:
            keys = [key for key in sorted(config) if key != left_out]
            columns = self._columns[shape] = [(k, self._members.setdefault(k, {})) for k in keys]
        try:
            return ",".join([members[id(config[key])] for key, members in columns])
        except KeyError:
            for key, members in columns:
                value = config[key]
                if id(value) not in members:
                    members[id(value)] = f'"{key}":{canonical(value)}'
            return ",".join([members[id(config[key])] for key, members in columns])


class _Names:
    """The names of cells. No two cells have names that are equal or differ only in case."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()

    def of(self, label: str, values: str) -> str:
        """Return the name of the cell with these values. This is `label`, with a suffix if another
        cell already has the name `label`."""
        key = hash(values)
        name = self._names.get(key)
        if name is None:
            name = label
            if name.casefold() in self._taken:
                name = suffixed(label, values, _MAX_CELL)
            self._names[key] = name
            self._taken.add(name.casefold())
        return name


def _axis_values(grid: Grid, points: Sequence[Point]) -> dict[str, list[object]]:
    """Return the declared axes with their distinct values, in the grid's order. An axis in an entry
    of `when` is left out if the entry's condition never holds."""
    values_of: dict[str, dict[str, object]] = {}
    used_blocks = {id(block) for block in grid.blocks}
    if grid.whens:
        settings = {id(s) for p in points for row in p.rows for s in row.settings.values()}
        used_blocks |= {
            id(block)
            for block in grid.every_block()
            if any(id(s) in settings or s.refers for axis in block.axes.values() for s in axis)
        }
    for block in grid.every_block():
        if id(block) not in used_blocks:
            continue
        for key, settings in block.axes.items():
            values = values_of.setdefault(key, {})
            if not any(setting.refers for setting in settings):
                values.update({canonical(s.value): s.value for s in settings})
    referring = {
        key for b in grid.every_block() for key, s in b.axes.items() if any(x.refers for x in s)
    }
    if referring:
        for point in points[: len(points) - len(grid.include)]:
            for row in point.rows:
                for key in referring & row.settings.keys():
                    value = row.settings[key].value
                    values_of[key].setdefault(canonical(value), value)
    return {key: list(values.values()) for key, values in values_of.items()}


def _given_keys(grid: Grid) -> list[str]:
    """Return the keys of the grid's axes, then the other keys of included cells."""
    keys = [key for block in grid.every_block() for key in block.axes]
    return list(dict.fromkeys([*keys, *(key for entry in grid.include for key in entry)]))


def _labels(grid: Grid, points: Sequence[Point], keys: Sequence[str], word: str) -> Iterator[str]:
    """Yield the label of each point's cell: the keys that vary, with their values, or "" if no key
    varies. No key is abbreviated to `word`, because `word` stands for the seed in names of runs."""
    included = len(points) - len(grid.include)
    chosen = [_values(point, keys) for point in points[included:]]
    parts: dict[str, dict[str, str]] = {}
    short = key_labels(keys, word)
    offered = _offered(grid, points[:included])
    written = _written(grid)
    everywhere = {key for block in grid.blocks for key in block.axes}
    for key in keys:
        values = offered.get(key, [])
        values += [value[key] for value in chosen if key in value]
        labels = value_labels(values, written.get(key, {}))
        # The key must be in labels if included cells stand next to cells that may lack it.
        beside = bool(grid.include and grid.blocks) and key not in everywhere
        if len(labels) > 1 or beside or any(key not in value for value in chosen):
            parts[key] = {text: f"{short[key]}={label}" for text, label in labels.items()}
    texts: dict[int, list[str]] = {}
    for number, point in enumerate(points):
        names: list[str] = []
        if number >= included:
            choice = chosen[number - included]
            names = [
                labels[canonical(choice[key])] for key, labels in parts.items() if key in choice
            ]
        for row in point.rows if number < included else ():
            text = texts.get(id(row))
            if text is None:
                text = texts[id(row)] = _row_labels(row, parts)
            names += text
        yield shorten(",".join(names), _MAX_CELL)


def _written(grid: Grid) -> dict[str, dict[str, str]]:
    """Return, for each key, a dict from the canonical text of a number to the number as written in
    the grid."""
    given = [pair for block in grid.every_block() for pair in block.axes.items()]
    single = [*grid.include, grid.base, grid.fixed, *(when.base for when in grid.whens)]
    given += [(key, (setting,)) for settings in single for key, setting in settings.items()]
    written: dict[str, dict[str, str]] = {}
    for key, settings in given:
        for setting in settings:
            if setting.text is not None:
                written.setdefault(key, {}).setdefault(canonical(setting.value), setting.text)
    return written


def _row_labels(row: Row, parts: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        parts[key][canonical(setting.value)]
        for key, setting in row.settings.items()
        if key in parts
    ]


def _offered(grid: Grid, points: Sequence[Point]) -> dict[str, list[object]]:
    """Return the values that axes and `when` can give to each key, with references resolved."""
    offered: dict[str, list[object]] = {}
    referring: set[str] = set()
    axes = [pair for block in grid.every_block() for pair in block.axes.items()]
    for key, settings in [*axes, *((k, (s,)) for when in grid.whens for k, s in when.base.items())]:
        offered.setdefault(key, []).extend(setting.value for setting in settings)
        if any(setting.refers for setting in settings):
            referring.add(key)
    if referring:
        offered |= {key: [] for key in referring}
        for row in (row for point in points for row in point.rows):
            for key, setting in row.settings.items():
                if key in referring:
                    offered[key].append(setting.value)
    return offered


def _values(point: Point, keys: Sequence[str]) -> dict[str, object]:
    """Return a dict from keys to their values in an included cell (an entry of `include`). If the
    entry does not set a key, the key has the value of `base`."""
    values: dict[str, object] = {}
    for key in keys:
        if key in point.rows[0].settings:
            values[key] = point.rows[0].settings[key].value
        elif key in point.config:
            values[key] = point.config[key]
    return values
