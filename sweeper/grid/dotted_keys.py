"""Keys of configurations, with dots between their parts: the syntax of keys, and sets of keys."""

import re
from collections.abc import Iterable, Iterator, Mapping

from sweeper.fields.nodes import Node

_ANY = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
FIELD = rf"[A-Za-z_][A-Za-z0-9_-]*(\.{_ANY})*"
"""Pattern of a key of a configuration. It allows no character that has a special meaning for
chz."""

_KEY = re.compile(rf"{FIELD}\Z")
_PART = re.compile(rf"{_ANY}(\.{_ANY})*\Z")


def is_key(text: str) -> bool:
    """Return whether `text` is a valid key of a run's configuration, such as `opt.lr`."""
    return _KEY.match(text) is not None


def is_key_below(text: str) -> bool:
    """Return whether `text` may follow a dot in a key."""
    return _PART.match(text) is not None


def touches(key: str, keys: Iterable[str]) -> bool:
    """Return whether `key`, or a key below it, is among `keys`."""
    return any(other == key or other.startswith(f"{key}.") for other in keys)


def assign(config: dict[str, object], key: str, given: Mapping[str, object]) -> None:
    """Replace the value of `key` in a configuration of dotted keys by `given`, the new entries at
    or below `key`. Also remove the keys above `key`: for `opt.lr`, the key `opt`."""
    below = f"{key}."
    for other in [k for k in config if k.startswith(below) or key.startswith(f"{k}.")]:
        del config[other]
    config.pop(key, None)
    config.update(given)


def leaves(key: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield dotted keys with values: for `opt` and `{lr: 1}`, yield `opt.lr` and 1."""
    entries = node.entries
    if entries and all(map(is_key_below, entries)):
        for part, (_, item) in entries.items():
            yield from leaves(f"{key}.{part}", item)
    else:
        yield key, node


class Reach:
    """A set of dotted keys that finds keys above and below a key fast."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = set(keys)
        self._above = {above for key in self._keys for above in _above(key)}

    def holds(self, key: str) -> bool:
        """Return whether `key`, or a key above it, is in the set."""
        return key in self._keys or any(above in self._keys for above in _above(key))

    def touches(self, key: str) -> bool:
        """Return whether `key`, or a key above or below it, is in the set."""
        return key in self._above or self.holds(key)


def _above(key: str) -> list[str]:
    """Return the keys above a dotted key."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


class Taken:
    """A set of dotted keys that finds clashes: equal keys, and a key below another key."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._above: dict[str, str] = {}

    def add(self, key: str) -> str | None:
        """Add a key. Return an earlier key that clashes with it, or None."""
        above = _above(key)
        clash = key if key in self._keys else self._above.get(key)
        clash = clash or next((k for k in above if k in self._keys), None)
        self._keys.add(key)
        self._above.update(dict.fromkeys(above, key))
        return clash
