"""Keys of configurations, with dots between their parts: what one looks like, and sets of them."""

import re
from collections.abc import Iterable, Iterator, Mapping

from sweeper.fields.nodes import Node

__all__ = ["FIELD", "Reach", "Taken", "assign", "is_key", "is_key_below", "leaves", "touches"]

_ANY = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
FIELD = rf"[A-Za-z_][A-Za-z0-9_-]*(\.{_ANY})*"
"""What a key of a configuration may look like; nothing that chz reads as more than a name."""

_KEY = re.compile(rf"{FIELD}\Z")
_PART = re.compile(rf"{_ANY}(\.{_ANY})*\Z")


def is_key(text: str) -> bool:
    """Whether a field of a configuration may be called that."""
    return _KEY.match(text) is not None


def is_key_below(text: str) -> bool:
    """Whether it may stand in a key after a dot."""
    return _PART.match(text) is not None


def touches(key: str, keys: Iterable[str]) -> bool:
    """Whether a key, or one below it, is among others."""
    return any(other == key or other.startswith(f"{key}.") for other in keys)


def assign(config: dict[str, object], key: str, given: Mapping[str, object]) -> None:
    """Set `key` in a configuration of dotted keys to what `given` holds. What stood below the
    key goes, and a value above it (`opt: null` when `opt.lr` is set) too."""
    below = f"{key}."
    for other in [k for k in config if k.startswith(below) or key.startswith(f"{k}.")]:
        del config[other]
    config.pop(key, None)
    config.update(given)


def leaves(key: str, node: Node) -> Iterator[tuple[str, Node]]:
    """A node as dotted keys: `opt: {lr: 1}` as `opt.lr: 1`."""
    entries = node.entries
    if entries and all(map(is_key_below, entries)):
        for part, (_, item) in entries.items():
            yield from leaves(f"{key}.{part}", item)
    else:
        yield key, node


class Reach:
    """A set of dotted keys, asked for those that lie below or above others: as quick for thousands
    as for one."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = set(keys)
        self._above = {above for key in self._keys for above in _above(key)}

    def holds(self, key: str) -> bool:
        """Whether a key, or one that it lies below, is in the set."""
        return key in self._keys or any(above in self._keys for above in _above(key))

    def touches(self, key: str) -> bool:
        """The same, or one that lies below it."""
        return key in self._above or self.holds(key)


def _above(key: str) -> list[str]:
    """The keys that a dotted key lies below."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


class Taken:
    """Dotted keys none of which reaches into another."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._above: dict[str, str] = {}

    def add(self, key: str) -> str | None:
        """Take a key; the one that it clashes with, if there is one."""
        above = _above(key)
        clash = key if key in self._keys else self._above.get(key)
        clash = clash or next((k for k in above if k in self._keys), None)
        self._keys.add(key)
        self._above.update(dict.fromkeys(above, key))
        return clash
