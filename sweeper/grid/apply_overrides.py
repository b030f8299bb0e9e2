"""Applies command-line overrides to a grid. A value replaces the key's values everywhere; a list
replaces or adds an axis. A key that only an entry of `when` sets keeps its condition."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from sweeper.fields.kinds import nearest
from sweeper.fields.nodes import Node, Place, Problems, plain
from sweeper.grid.blocks import Block, Setting, read_axis, read_settings
from sweeper.grid.conditions import When
from sweeper.grid.declaration import SECTION
from sweeper.grid.dotted_keys import Reach, touches
from sweeper.grid.misplaced import as_override
from sweeper.grid.model import Grid
from sweeper.grid.overrides import Override, flow
from sweeper.grid.sampling import MAX_SAMPLES, Random
from sweeper.grid.seeds import read_seeds
from sweeper.grid.used_keys import used_keys

_Owner = TypeVar("_Owner", Grid, When)
_Given = TypeVar("_Given")


class _Part(NamedTuple):
    """The values, axes and random axes of a grid, or of one entry of `when`."""

    base: dict[str, Setting]
    blocks: tuple[Block, ...]
    random: Random | None

    @property
    def keys(self) -> list[str]:
        drawn = () if self.random is None else self.random.axes
        return [*self.base, *(key for block in self.blocks for key in block.axes), *drawn]

    def without(self, key: str) -> "_Part":
        """Return the part without `key` and the keys below it."""
        return _Part(_cut(self.base, key), _without(self.blocks, key), _undrawn(self.random, key))


def apply_to_launch(
    root: Node, changes: list[Override], problems: Problems
) -> tuple[Node, list[Override]]:
    """Put overrides such as `launch.backend=local` into the section `launch` of a grid that is not
    read yet. Return the grid and the other overrides."""
    section = (root.entries or {}).get("launch")
    node = None if section is None or section[1].value is None else section[1]
    entries = dict((node.entries if node else None) or {})
    others: list[Override] = []
    for change in changes:
        name, _, key = change.key.partition(".")
        if name != "launch":
            others.append(change)
        elif not key:
            problems.add(change.place, "write launch.<key>=value, or ~launch.<key>")
        elif change.action == "drop":
            if not _take(entries, key):
                message = f"no launch.{key} to drop{nearest(key, entries)}"
                problems.add(change.place, message)
        else:
            _put(entries, key, change)
    if len(others) == len(changes) or (node is not None and node.entries is None):
        return root, others
    place = node.place if node else root.place
    with_it = {**(root.entries or {}), "launch": (place, Node(entries, place))}
    return Node(with_it, root.place), others


def _take(entries: dict[str, tuple[Place, Node]], key: str) -> bool:
    """Remove a key of the section `launch`. Return whether the key existed. `~launch.slurm.mem`
    removes one key of the nested section `slurm`."""
    first, _, rest = key.partition(".")
    below = entries[first][1] if rest and first in entries else None
    if below is None or below.entries is None or rest not in below.entries:
        return entries.pop(key, None) is not None
    others = {k: item for k, item in below.entries.items() if k != rest}
    entries[first] = (entries[first][0], Node(others, below.place))
    return True


def _put(entries: dict[str, tuple[Place, Node]], key: str, change: Override) -> None:
    """Set a key of the section `launch`. `launch.slurm.mem=8G` sets one key of the nested section
    `slurm`. `launch.backend=slurm` removes `backends`, but first moves its options for slurm to
    `launch.slurm`. `launch.backends=...` removes `backend`."""
    first, _, rest = key.partition(".")
    if not rest:
        if key == "backend" and "backends" in entries:
            _leave_one(entries, str(change.node.value))
        elif key == "backends":
            entries.pop("backend", None)
        entries[key] = (change.place, change.node)
        return
    below = entries[first][1] if first in entries else Node(None, change.place)
    inside = {**(below.entries or {}), rest: (change.place, change.node)}
    entries[first] = (change.place, Node(inside, below.place))


def _leave_one(entries: dict[str, tuple[Place, Node]], name: str) -> None:
    """Remove `backends`, and move the options of the backend `name` to its own section of
    `launch`."""
    for item in entries.pop("backends")[1].items or ():
        for key, (place, inner) in (item.entries or {}).items():
            options = {k: v for k, v in (inner.entries or {}).items() if k != "max_parallel"}
            if key.replace("_", "-") == name and options:
                entries[key.replace("-", "_")] = (place, Node(options, inner.place))


def apply(grid: Grid, change: Override, problems: Problems) -> Grid:
    """Apply one override to a grid."""
    key = change.key
    outside = [*_part(grid).keys, *(k for entry in grid.include for k in entry)]
    inside = [k for when in grid.whens for k in _part(when).keys]
    keys = dict.fromkeys([*outside, *inside])
    special = _special(grid, change, keys)
    if special is not None:
        return special(grid, change, problems)
    if change.action == "drop" and not touches(key, keys):
        problems.add(change.place, f"no {key!r} to drop{nearest(key, keys)}")
    if change.action != "drop" and touches(key, inside) and not touches(key, outside):
        return grid._replace(whens=tuple(_apply_to_when(w, change, problems) for w in grid.whens))
    whens = tuple(_rebuilt(when, _part(when).without(key)) for when in grid.whens)
    grid = grid._replace(whens=tuple(when for when in whens if when.keys or when.random))
    if change.action == "axis":
        return _rebuilt(grid, _with_axis(_part(grid), change, problems))
    grid = _rebuilt(grid, _part(grid).without(key))._replace(
        include=tuple(_cut(entry, key) for entry in grid.include), dropped=grid.dropped | {key}
    )
    if change.action == "drop":
        return grid
    return grid._replace(fixed={**grid.fixed, **_settings(change, problems)})


def _special(
    grid: Grid, change: Override, keys: Mapping[str, None]
) -> Callable[[Grid, Override, Problems], Grid] | None:
    """Return the function that applies an override of a section (`seeds`, `random`) or of the field
    that takes the seed; None for an override of any other key. `keys` are all keys that the grid
    sets."""
    section = change.key.partition(".")[0]
    if not touches(section, keys):
        if section == "random":
            return _apply_to_random
        if change.key == "seeds":
            return _apply_to_seeds
        # The recipe's fields are not known yet.
        if grid.command is not None and advice(change) is not None:
            return None if Reach(used_keys(grid)).touches(change.key) else _refuse
    of_seed = grid.seeds is not None and change.key == grid.seeds.field
    return _apply_to_seed_field if of_seed else None


def advice(change: Override) -> str | None:
    """Return a hint on how to set a section of the grid or a key of `launch`, if the override sets
    one. Return None for any other override."""
    if change.action == "drop":
        return None
    return as_override(change.key, flow(plain(change.node)), frozenset(SECTION.fields))


def _refuse(grid: Grid, change: Override, problems: Problems) -> Grid:
    problems.add(change.place, advice(change) or "")
    return grid


def _settings(change: Override, problems: Problems) -> dict[str, Setting]:
    node = Node({change.key: (change.place, change.node)}, change.place)
    return read_settings(node, "override", problems)


def _apply_to_when(when: When, change: Override, problems: Problems) -> When:
    """Apply a value or an axis to an entry of `when`, if the entry sets the override's key."""
    part = _part(when)
    if not touches(change.key, part.keys):
        return when
    if change.action == "value":
        part = part.without(change.key)
        return _rebuilt(when, part._replace(base={**part.base, **_settings(change, problems)}))
    part = part._replace(base=_cut(part.base, change.key))
    return _rebuilt(when, _with_axis(part, change, problems))


def _with_axis(part: _Part, change: Override, problems: Problems) -> _Part:
    """Return the part with the override's axis. The new axis replaces the axis or the random axis
    of the same key."""
    key = change.key
    settings = read_axis(key, change.place, change.node, problems)
    blocks: list[Block] = []
    placed = False
    for block in part.blocks:
        others = [axis for axis in block.axes if not touches(key, (axis,))]
        if len(others) == len(block.axes):
            blocks.append(block)
        elif others and placed:
            problems.add(change.place, f"axis {key!r} would replace axes of several blocks")
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


def _apply_to_random(grid: Grid, change: Override, problems: Problems) -> Grid:
    """Apply `random.samples=50`, `random.seed=1` or `~random`."""
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
        problems.add(place, f"random.samples must be 1 to {MAX_SAMPLES}")
    else:
        return grid._replace(random=random._replace(samples=change.node.value))
    return grid


def _apply_to_seeds(grid: Grid, change: Override, problems: Problems) -> Grid:
    """Apply an override of the section `seeds`. If the override has no `field`, the seed field
    stays the same."""
    if change.action == "drop":
        if grid.seeds is None:
            problems.add(change.place, "no 'seeds' to drop")
        return grid._replace(seeds=None)
    seeds = read_seeds(change.node, "seeds", problems)
    if seeds is not None and grid.seeds is not None and "field" not in (change.node.entries or {}):
        seeds = seeds._replace(field=grid.seeds.field)
    return grid._replace(seeds=seeds)


def _apply_to_seed_field(grid: Grid, change: Override, problems: Problems) -> Grid:
    """Apply an override of the field that takes the seed, such as `seed=3`."""
    if change.action == "drop":
        return grid._replace(seeds=None)
    node = change.node if change.action == "axis" else Node([change.node], change.place)
    seeds = read_seeds(node, "seeds", problems)
    if seeds is None or grid.seeds is None:
        return grid
    return grid._replace(seeds=seeds._replace(field=grid.seeds.field))


def _part(owner: Grid | When) -> _Part:
    return _Part(owner.base, owner.blocks, owner.random)


def _rebuilt(owner: _Owner, part: _Part) -> _Owner:
    return owner._replace(base=part.base, blocks=part.blocks, random=part.random)


def _cut(entries: Mapping[str, _Given], key: str) -> dict[str, _Given]:
    """Return the entries except `key` and the keys below it."""
    return {k: given for k, given in entries.items() if not touches(key, (k,))}


def _without(blocks: tuple[Block, ...], key: str) -> tuple[Block, ...]:
    """Return the blocks without the axis `key` and the axes below it."""
    return tuple(Block(axes) for axes in (_cut(block.axes, key) for block in blocks) if axes)


def _undrawn(random: Random | None, key: str) -> Random | None:
    if random is None or not touches(key, random.axes):
        return random
    axes = _cut(random.axes, key)
    return random._replace(axes=axes) if axes else None
