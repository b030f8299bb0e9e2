"""Reads the files of grids, and merges a grid with the grids that it `extends`. docs/grid.md has
the rules."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple

from sweeper.errors import GridError
from sweeper.fields.kinds import wrong
from sweeper.fields.nodes import MAX_BYTES, Node, Place, Problems, Stop, kind, plain, read_yaml
from sweeper.grid.dotted_keys import Reach, leaves

MAX_EXTENDS = 8

Entries = dict[str, tuple[Place, Node]]


class GridText(NamedTuple):
    """A grid's file outside this machine: its path and its contents."""

    path: str
    data: bytes


class Source(NamedTuple):
    """A file that a grid extends: its path and its text."""

    path: str
    text: str


def read_text(path: str) -> str:
    """Read a grid's file. Raises `GridError`."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GridError([f"{path}: {error.strerror or error}"]) from error
    except ValueError as error:  # The path contains a NUL.
        raise GridError([f"{path!r}: {error}"]) from error
    return decoded(data, path)


def decoded(data: bytes, path: str) -> str:
    """Decode the contents of a grid's file. Raises `GridError`."""
    if len(data) > MAX_BYTES:
        raise GridError([f"{path}: larger than the limit of {MAX_BYTES} bytes for a grid"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise GridError([f"{path}:{line}:{column}: not UTF-8"]) from error


def extended(
    root: Node, path: str, size: int, problems: Problems
) -> tuple[Node, tuple[Source, ...]]:
    """Merge a grid with the files that it extends. Return the merged grid and the files, in the
    order in which they are read.

    `path` is the grid's own file; if it is "", relative paths start at the current folder. `size`
    is the grid's length in bytes. If a file cannot be used, or if the grid and the files together
    exceed `MAX_BYTES`, report that and raise `Stop`.
    """
    sources: list[Source] = []
    layers = [root]
    bytes_left = MAX_BYTES - size
    seen = [os.path.realpath(path)] if path else []
    while (entry := (layers[-1].entries or {}).get("extends")) and entry[1].value is not None:
        node = entry[1]
        path = _target(node, path, problems)
        real = os.path.realpath(path)
        if real in seen:
            problems.add(node.place, f"extends: {path[:200]} extends itself in a cycle")
            raise Stop
        if len(sources) >= MAX_EXTENDS:
            problems.add(node.place, f"extends forms a chain of more than {MAX_EXTENDS} files")
            raise Stop
        seen.append(real)
        text, layer = _load(node, path, bytes_left, problems)
        bytes_left -= len(text.encode())
        sources.append(Source(path, text))
        layers.append(layer)
    return reduce(_merge, reversed(layers)), tuple(sources)


def in_one(text: str, extends: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Merge the grid `text` with the files that it extends. `extends` has (path, text) of these
    files in the order of `extended`. Raises `GridError`."""
    problems = Problems()
    layers: list[Node] = []
    for path, layer_text in (("", text), *extends):
        layer = read_yaml(layer_text, path, problems)
        if layer is None or layer.entries is None:
            problems.add(Place(path), "a grid is a mapping")
            raise problems.error()
        layers.append(layer)
    entries = reduce(_merge, reversed(layers)).entries or {}
    return {key: plain(item) for key, (_, item) in entries.items() if key != "extends"}


def _target(node: Node, path: str, problems: Problems) -> str:
    """Return the path that an `extends` names. A relative path starts at the folder of the file
    with the `extends`."""
    if not isinstance(node.value, str):
        wrong(node, "extends", "the path of another grid", problems)
        raise Stop
    if not node.value or "\0" in node.value:
        problems.add(node.place, "extends takes the path of another grid")
        raise Stop
    return os.path.normpath(os.path.join(os.path.dirname(path), node.value))


def _load(node: Node, path: str, left: int, problems: Problems) -> tuple[str, Node]:
    try:
        # Reading a pipe or a terminal would block and could not be repeated.
        if not stat.S_ISREG(os.stat(path).st_mode):
            problems.add(node.place, f"extends: {path[:200]} is not a file")
            raise Stop
        text = read_text(path)
    except OSError as error:
        problems.add(node.place, f"extends: {path[:200]}: {error.strerror or error}")
        raise Stop from None
    except ValueError as error:
        problems.add(node.place, f"extends: {path[:200]!r}: {error}")
        raise Stop from None
    except GridError as error:
        problems.add(node.place, f"extends: {error.problems[0]}")
        raise Stop from None
    if len(text.encode()) > left:
        message = f"with {path[:200]} the grid has more than {MAX_BYTES} bytes"
        problems.add(node.place, f"extends: {message}")
        raise Stop
    root = read_yaml(text, path, problems)
    if root is None:
        if not problems:
            problems.add(node.place, f"extends: {path[:200]} is empty")
        raise Stop
    if root.entries is None:
        problems.add(root.place, f"a grid is a mapping, not {kind(root)}")
        raise Stop
    return text, root


def _merge(under: Node, over: Node) -> Node:
    below, above = dict(under.entries or {}), over.entries or {}
    below.pop("name", None)
    below.pop("extends", None)
    values = {key for key, _, _ in _leaves(_entries(above, "base"))}
    axes = _axes(above)
    if values or axes:
        below = _without(below, values, axes, above)
    if "recipe" in above or "command" in above:
        below.pop("recipe", None)
        below.pop("command", None)
    merged: Entries = dict(below)
    for key, (place, node) in above.items():
        if key == "base" and node.entries is not None and key in below:
            merged[key] = (place, _merge_base(below[key][1], node))
        elif key != "from" and key in below and _are_mappings(below[key][1], node):
            merged[key] = (place, _merge_section(below[key][1], node, key))
        else:
            merged[key] = (place, node)
    return Node(merged, over.place)


def _are_mappings(*nodes: Node) -> bool:
    return all(node.entries is not None for node in nodes)


def _merge_section(under: Node, over: Node, section: str) -> Node:
    """Merge two mappings key by key: a value in `over` replaces the value in `under`, and null
    removes it. Mappings directly in `launch`, and `random.axes`, are merged in the same way instead
    of being replaced. Stages are merged like grids."""
    merged: Entries = dict(under.entries or {})
    for key, (place, node) in (over.entries or {}).items():
        # A null has nothing to remove here, so it is treated as any other value.
        if key not in merged:
            merged[key] = (place, node)
            continue
        below = merged[key][1]
        if node.value is None:
            del merged[key]
        elif section == "stages" and _are_mappings(below, node):
            merged[key] = (place, _merge(below, node))
        elif _is_section(section, key) and _are_mappings(below, node):
            merged[key] = (place, _merge_section(below, node, key))
        else:
            merged[key] = (place, node)
    return Node(merged, over.place)


def _is_section(above: str, key: str) -> bool:
    """Return whether two mappings under `key` of the section `above` are merged key by key."""
    return above == "launch" or (above, key) == ("random", "axes")


def _merge_base(under: Node, over: Node) -> Node:
    """Merge two sections `base` by dotted keys: `opt.lr` in `over` keeps other keys of `opt`."""
    leaves_above = list(_leaves(over.entries or {}))
    above = {key: (place, node) for key, place, node in leaves_above}
    reach = Reach(above)
    below = {
        key: (place, node)
        for key, place, node in _leaves(under.entries or {})
        if not reach.touches(key)
    }
    # Keys that the other file gives twice must stay, since they are reported later.
    if len(leaves_above) != len(above):
        return over
    return Node({**below, **above}, over.place)


def _without(below: Entries, values: set[str], axes: set[str], above: Entries) -> Entries:
    """Return the sections of the grid `below` without the keys that the grid `above` sets. `values`
    are the keys in the section `base` of `above`; `axes` are the keys of the axes of `above`."""
    remaining = dict(below)
    taken, given = Reach(values | axes), Reach(values)

    def axis(key: str) -> bool:
        return not taken.holds(key)

    def value(key: str) -> bool:
        return not given.touches(key)

    if "grid" in remaining:
        remaining["grid"] = _cut(remaining["grid"], axis)
    if "random" in remaining:
        remaining["random"] = _cut_random(remaining["random"], axis)
        if "random" not in above and _draws_nothing(remaining["random"]):
            del remaining["random"]
    for section, keep in (("zip", axis), ("include", value)):
        if section in remaining:
            remaining[section] = _cut_each(remaining[section], keep)
    if "when" in remaining:
        remaining["when"] = _cut_whens(remaining["when"], axis)
    return remaining


def _cut_whens(entry: tuple[Place, Node], keep: Callable[[str], bool]) -> tuple[Place, Node]:
    place, node = entry
    items: list[Node] = []
    for item in node.items or ():
        entries = dict(item.entries or {})
        gave = len(entries) > 1
        for section, cut in _CUTS.items():
            if section in entries:
                entries[section] = cut(entries[section], keep)
                if section == "random" and _draws_nothing(entries[section]):
                    del entries[section]
        emptied = all(n.value in (None, {}, []) for key, (_, n) in entries.items() if key != "if")
        if not (gave and emptied):
            items.append(Node(entries, item.place) if item.entries is not None else item)
    return (place, Node(items, node.place) if node.items is not None else node)


def _cut(entry: tuple[Place, Node], keep: Callable[[str], bool]) -> tuple[Place, Node]:
    """Return `entry` with only those keys of its mapping that `keep` accepts."""
    place, node = entry
    if node.entries is None:
        return entry
    return place, Node({k: item for k, item in node.entries.items() if keep(k)}, node.place)


def _cut_random(entry: tuple[Place, Node], keep: Callable[[str], bool]) -> tuple[Place, Node]:
    place, node = entry
    if "axes" not in (node.entries or {}):
        return entry
    entries = node.entries or {}
    return place, Node({**entries, "axes": _cut(entries["axes"], keep)}, node.place)


def _draws_nothing(entry: tuple[Place, Node]) -> bool:
    axes = (entry[1].entries or {}).get("axes")
    return axes is not None and axes[1].entries == {}


def _cut_each(entry: tuple[Place, Node], keep: Callable[[str], bool]) -> tuple[Place, Node]:
    """Apply `_cut` to each mapping in a list, and remove mappings that become empty."""
    place, node = entry
    if node.items is None:
        return entry
    cut = [(item, _cut((place, item), keep)[1]) for item in node.items]
    return place, Node([new for old, new in cut if new.value != {} or old.value == {}], node.place)


_CUTS = {"base": _cut, "grid": _cut, "random": _cut_random, "zip": _cut_each}


def _axes(root: Entries) -> set[str]:
    """Return the keys of the grid's axes, without the axes in `when`."""
    keys = {key for key, (_, node) in _entries(root, "grid").items() if node.value is not None}
    zipped = root["zip"][1].items if "zip" in root else None
    for item in zipped or ():
        keys |= set(item.entries or {})
    drawn = _entries(_entries(root, "random"), "axes")
    return keys | {key for key, (_, node) in drawn.items() if node.value is not None}


def _entries(root: Entries, section: str) -> Entries:
    return (root[section][1].entries or {}) if section in root else {}


def _leaves(entries: Entries) -> Iterator[tuple[str, Place, Node]]:
    """Yield each dotted key of a mapping, the place of its first part, and its value."""
    for key, (place, node) in entries.items():
        for leaf, item in leaves(key, node):
            yield leaf, place, item
