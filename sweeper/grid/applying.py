"""A grid as the command line leaves it.

A value goes over everything: it replaces the key in `base`, as an axis, as something drawn, and in
included cells. A list makes an axis where one stood, else a new one. What only `when` gives keeps
its condition in both cases.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sweeper.grid.blocks import Block, Setting, read_axis, read_settings
from sweeper.grid.conditions import When
from sweeper.grid.nodes import Node, Problems
from sweeper.grid.options import nearest, read_seeds
from sweeper.grid.overrides import Override
from sweeper.grid.sampling import MAX_SAMPLES, Random

if TYPE_CHECKING:
    from sweeper.grid.reading import Grid

__all__ = ["apply"]

_Owner = TypeVar("_Owner", "Grid", When)


class _Part(NamedTuple):
    """What gives values to keys: a whole grid, or an entry of `when`."""

    base: dict[str, Setting]
    blocks: tuple[Block, ...]
    random: Random | None

    @property
    def keys(self) -> list[str]:
        drawn = () if self.random is None else self.random.axes
        return [*self.base, *(key for block in self.blocks for key in block.axes), *drawn]

    def without(self, key: str) -> "_Part":
        """The part with a key, and those below it, taken out."""
        return _Part(_cut(self.base, key), _without(self.blocks, key), _undrawn(self.random, key))


def apply(grid: "Grid", change: Override, problems: Problems) -> "Grid":
    """The grid as one override leaves it."""
    key = change.key
    outside = [*_part(grid).keys, *(k for entry in grid.include for k in entry)]
    inside = [k for when in grid.whens for k in _part(when).keys]
    keys = dict.fromkeys([*outside, *inside])
    section = key.partition(".")[0]
    if not _touches(section, keys) and (section == "random" or key == "seeds"):
        to_section = _apply_to_random if section == "random" else _apply_to_section
        return to_section(grid, change, problems)
    if grid.seeds is not None and key == grid.seeds.field:
        return _apply_to_seeds(grid, change, problems)
    if change.action == "drop" and not _touches(key, keys):
        problems.add(change.place, f"there is no {key!r} to drop{nearest(key, keys)}")
    if change.action != "drop" and _touches(key, inside) and not _touches(key, outside):
        return grid._replace(whens=tuple(_apply_to_when(w, change, problems) for w in grid.whens))
    whens = tuple(_rebuilt(when, _part(when).without(key)) for when in grid.whens)
    grid = grid._replace(whens=tuple(when for when in whens if when.keys or when.random))
    if change.action == "axis":
        return _apply_axis(grid, change, problems)
    grid = _rebuilt(grid, _part(grid).without(key))._replace(
        include=tuple(_cut(entry, key) for entry in grid.include),
        dropped=grid.dropped | {key},
    )
    if change.action == "drop":
        return grid
    return grid._replace(fixed={**grid.fixed, **_settings(change, problems)})


def _settings(change: Override, problems: Problems) -> dict[str, Setting]:
    node = Node({change.key: (change.place, change.node)}, change.place)
    return read_settings(node, "override", problems)


def _apply_to_when(when: When, change: Override, problems: Problems) -> When:
    """An entry of `when` with a key of its own given a value, or another axis."""
    part = _part(when)
    if not _touches(change.key, part.keys):
        return when
    if change.action == "value":
        part = part.without(change.key)
        return _rebuilt(when, part._replace(base={**part.base, **_settings(change, problems)}))
    part = part._replace(base=_cut(part.base, change.key))
    return _rebuilt(when, _with_axis(part, change, problems))


def _apply_axis(grid: "Grid", change: Override, problems: Problems) -> "Grid":
    return _rebuilt(grid, _with_axis(_part(grid), change, problems))


def _with_axis(part: _Part, change: Override, problems: Problems) -> _Part:
    """The part with an axis put where it stood, among those that it is zipped with, or added. What
    was drawn is drawn no more."""
    key = change.key
    settings = read_axis(key, change.place, change.node, problems)
    blocks: list[Block] = []
    placed = False
    for block in part.blocks:
        others = [axis for axis in block.axes if not _touches(key, (axis,))]
        if len(others) == len(block.axes):
            blocks.append(block)
        elif others and placed:
            problems.add(change.place, f"axis {key!r} would stand for axes of several blocks")
        elif others and settings and len(settings) != block.size:
            problems.add(
                change.place,
                f"axis {key!r} is zipped with {', '.join(others)[:60]}, so it takes {block.size}"
                f" values, not {len(settings)}",
            )
        elif not placed:
            axes = {axis if axis in others else key: s for axis, s in block.axes.items()}
            blocks.append(Block({**axes, key: settings}))
            placed = True
    if not settings:
        return part
    return part._replace(
        blocks=(*blocks, *([] if placed else [Block({key: settings})])),
        random=_undrawn(part.random, key),
    )


def _apply_to_random(grid: "Grid", change: Override, problems: Problems) -> "Grid":
    """`random.samples=50`, `random.seed=1` or `~random`."""
    place, random = change.place, grid.random
    if random is None:
        problems.add(place, "the grid has no section random")
        return grid
    if change.key == "random" and change.action == "drop":
        return grid._replace(random=None)
    name = change.key.partition(".")[2]
    if name not in ("samples", "seed") or change.action != "value":
        message = "write random.samples=<count>, random.seed=<integer>, or ~random"
        problems.add(place, message)
    elif type(change.node.value) is not int:
        problems.add(place, f"{change.key} takes an integer")
    elif name == "seed":
        return grid._replace(random=random._replace(seed=change.node.value))
    elif not 1 <= change.node.value <= MAX_SAMPLES:
        problems.add(place, f"random.samples is 1 to {MAX_SAMPLES}")
    else:
        return grid._replace(random=random._replace(samples=change.node.value))
    return grid


def _apply_to_section(grid: "Grid", change: Override, problems: Problems) -> "Grid":
    """The grid with its section `seeds` as an override says; the field stays unless it is given."""
    if change.action == "drop":
        if grid.seeds is None:
            problems.add(change.place, "there is no 'seeds' to drop")
        return grid._replace(seeds=None)
    seeds = read_seeds(change.node, problems)
    if seeds is not None and grid.seeds is not None and "field" not in (change.node.entries or {}):
        seeds = seeds._replace(field=grid.seeds.field)
    return grid._replace(seeds=seeds)


def _apply_to_seeds(grid: "Grid", change: Override, problems: Problems) -> "Grid":
    """The same by the field that takes the seed."""
    if change.action == "drop":
        return grid._replace(seeds=None)
    node = change.node if change.action == "axis" else Node([change.node], change.place)
    seeds = read_seeds(node, problems)
    if seeds is None or grid.seeds is None:
        return grid
    return grid._replace(seeds=seeds._replace(field=grid.seeds.field))


def _part(owner: "Grid | When") -> _Part:
    return _Part(owner.base, owner.blocks, owner.random)


def _rebuilt(owner: _Owner, part: _Part) -> _Owner:
    return owner._replace(base=part.base, blocks=part.blocks, random=part.random)


def _touches(key: str, keys: Iterable[str]) -> bool:
    return any(other == key or other.startswith(f"{key}.") for other in keys)


def _cut(entry: dict[str, Setting], key: str) -> dict[str, Setting]:
    return {k: setting for k, setting in entry.items() if not _touches(key, (k,))}


def _without(blocks: tuple[Block, ...], key: str) -> tuple[Block, ...]:
    """The blocks with the axis `key`, and those below it, taken out."""
    left = ({k: s for k, s in block.axes.items() if not _touches(key, (k,))} for block in blocks)
    return tuple(Block(axes) for axes in left if axes)


def _undrawn(random: Random | None, key: str) -> Random | None:
    if random is None or not _touches(key, random.axes):
        return random
    axes = {k: drawn for k, drawn in random.axes.items() if not _touches(key, (k,))}
    return random._replace(axes=axes) if axes else None
