"""References: `${key}` stands for the value of another key of the configuration, alone or inside
a string. `$${` is a literal `${`. Arithmetic with keys works too: `${a // b}`."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from sweeper.common.json_values import list_of, table_of
from sweeper.fields.nodes import MAX_DEPTH, Node, Place
from sweeper.grid.arithmetic import Uncomputable, parse
from sweeper.grid.dotted_keys import is_key, is_key_below
from sweeper.grid.naming import canonical

MAX_MADE = 100_000
"""The limit on characters and values to which one value with references may expand."""

_MAX_CONFIG = 3 * MAX_MADE
_MAX_KEPT = 20_000_000
_FILLED = 8
_TOKEN = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_MISSING: object = object()


class BrokenReference(Exception):
    """The error for a reference that cannot be resolved. Its text says why. If the reference names
    a key that does not exist, `missing` is this key."""

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class _Late(Exception):
    """The error for a value that depends on the seed, which is not known yet."""


def refers(value: object) -> bool:
    """Return whether a value contains a reference or an escaped reference."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, dict):
        return any(map(refers, cast("dict[str, object]", value).values()))
    return isinstance(value, list) and any(map(refers, cast("list[object]", value)))


def named(value: object) -> Iterator[str]:
    """Yield the keys to which the references in a value refer."""
    if isinstance(value, str):
        for match in _TOKEN.finditer(value):
            yield from _keys_of(match.group(1) or "")
    for item in [*table_of(value).values(), *list_of(value)]:
        yield from named(item)


def _keys_of(inner: str) -> Iterable[str]:
    """Return the keys between the braces of a reference."""
    if is_key(inner) or not inner:
        return (inner,) if inner else ()
    try:
        return parse(inner).keys
    except Uncomputable:
        return ()  # `faults` reports the mistake.


def faults(node: Node) -> Iterable[tuple[Place, str]]:
    """Yield the syntax errors of references in a value."""
    if isinstance(node.value, str) and "${" in node.value:
        for match in _TOKEN.finditer(node.value):
            message = _fault(match)
            if message is not None:
                shown = node.value[match.start() : match.start() + 40]
                yield node.place, f"{shown!r} {message}"
                return
    for item in node.items or [item for _, item in (node.entries or {}).values()]:
        yield from faults(item)


def _fault(match: re.Match[str]) -> str | None:
    """Return what is wrong with a reference, or None."""
    inner = match.group(1)
    if match.group() == "${" or inner == "":
        return "is not a reference like ${key}; write $${ for the text ${"
    try:
        if inner is not None and not is_key(inner):
            parse(inner)
    except Uncomputable as error:
        fault = "is neither a key nor arithmetic like ${a // 2}"
        return f"{fault}: {error}; write $${{ for the text ${{"
    return None


def nested(config: Mapping[str, object], key: str) -> dict[str, object]:
    """Return the values below `key`, nested: for `opt`, `opt.lr: 1` becomes `{lr: 1}`."""
    result: dict[str, object] = {}
    for other, value in config.items():
        if other.startswith(f"{key}."):
            *above, last = other[len(key) + 1 :].split(".")
            inner = result
            for part in above:
                below: dict[str, object] = {}
                inner = table_of(inner.setdefault(part, below))
            inner[last] = value
    return result


class Resolver:
    """A resolver of references. Callers name the keys whose values may contain references.
    References in other values are not resolved.

    Results are cached. Equal results are the same object, so callers may cache by `id()`.
    """

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        # The cache holds the objects, so that their ids stay valid.
        self._by_id: dict[int, object] = {}
        self._spent = 0
        self.work = 0  # the work done, in the units of `product.MAX_WORK`

    def text(
        self, config: Mapping[str, object], key: str, keys: Collection[str], late: str | None
    ) -> str | None:
        """Return the canonical text of the value of `key`; None if the value depends on `late`, a
        key without a value yet. Resolve references in the values of `keys`. Raises
        `BrokenReference`."""
        reading = _Reading(config, keys, late)
        try:
            return canonical(reading.key(key, ()))
        except _Late:
            return None
        finally:
            self.work += reading.work

    def fill(
        self, config: Mapping[str, object], value: object, keys: Collection[str], late: str | None
    ) -> object:
        """Resolve the references in `value`. If `value` depends on `late`, a key without a value
        yet, return it unchanged. Raises `BrokenReference`."""
        reading = _Reading(config, keys, late)
        try:
            return self._keep(reading.fill(value, ()))
        except _Late:
            return value
        finally:
            self.work += reading.work

    def resolve(
        self, config: dict[str, object], keys: Collection[str], late: str | None
    ) -> tuple[tuple[str, ...], list[tuple[str, BrokenReference]]]:
        """Resolve `keys` of a configuration in place. Keys that depend on `late`, a key without a
        value yet, stay unchanged. Return these keys, and (key, error) for each key that cannot be
        resolved."""
        reading = _Reading(config, keys, late)
        pending: list[str] = []
        broken: list[tuple[str, BrokenReference]] = []
        made: dict[str, object] = {}
        for key in keys:
            if key in config:
                try:
                    made[key] = self._keep(reading.key(key, ()))
                except _Late:
                    pending.append(key)
                except BrokenReference as error:
                    broken.append((key, BrokenReference(str(error), error.missing)))
        self.work += reading.work
        for key, value in made.items():
            below = list(_leaves(key, value))
            if len(below) != 1 or below[0][0] != key:
                del config[key]
            config.update(below)
        return tuple(pending), broken

    def _keep(self, value: object) -> object:
        if id(value) in self._by_id:
            return value
        text = repr(value)
        same = self._values.get(text, _MISSING)
        if same is _MISSING:
            self._spent += len(text)
            if self._spent > _MAX_KEPT:
                raise BrokenReference(
                    f"the values of all references have more than {_MAX_KEPT} characters together"
                )
            same = self._values[text] = self._by_id[id(value)] = value
        return same


class _Reading:
    """The values of one configuration, resolved when they are needed."""

    def __init__(
        self, config: Mapping[str, object], keys: Collection[str], late: str | None
    ) -> None:
        self.config, self.keys, self.late = config, keys, late
        self.done: dict[str, object] = {}
        # The failures are not stored as exceptions, which would keep much data alive.
        self.failed: dict[str, tuple[str, str | None]] = {}
        self.spent = self.work = 0
        self._beneath: dict[str, list[str]] | None = None

    def key(self, key: str, path: tuple[str, ...]) -> object:
        """Return the value of a key. `path` has the keys that are being resolved."""
        if key in self.done:
            return self.done[key]
        if key in self.failed:
            raise BrokenReference(*self.failed[key])
        if key == self.late and key not in self.keys:  # A key with references is resolved first.
            raise _Late
        try:
            value = self.done[key] = self._made(key, path)
        except BrokenReference as error:
            self.failed[key] = str(error), error.missing
            raise
        return value

    def _made(self, key: str, path: tuple[str, ...]) -> object:
        if key in path:
            cycle = " -> ".join([*path[path.index(key) :], key])
            raise BrokenReference(f"references form a cycle: {cycle[:200]}")
        if len(path) > MAX_DEPTH:
            raise BrokenReference(f"a chain of more than {MAX_DEPTH} references")
        if key in self.config:
            value = self.config[key]
            return self.fill(value, (*path, key)) if key in self.keys else value
        below = self._below(key)
        if not below:
            minus = " (a difference needs spaces around -)" if "-" in key else ""
            raise BrokenReference(
                f"${{{key[:60]}}}: the grid gives no {key[:60]!r} here{minus}", key
            )
        return nested({k: self.key(k, (*path, key)) for k in below}, key)

    def _below(self, key: str) -> list[str]:
        """Return the keys below a key. The first call makes an index of all keys."""
        if self._beneath is None:
            self._beneath = {}
            for other in self.config:
                end = other.rfind(".")
                while end > 0:
                    self._beneath.setdefault(other[:end], []).append(other)
                    end = other.rfind(".", 0, end)
        return self._beneath.get(key, [])

    def fill(self, value: object, path: tuple[str, ...]) -> object:
        if not refers(value):
            return value
        self.work += _FILLED
        made = self._fill(value, path)
        size = _size(made, MAX_DEPTH, MAX_MADE)
        self.spent += size
        self.work += 4 * size if type(made) in (dict, list) else size // 64
        if size > MAX_MADE:
            raise BrokenReference(
                f"with its references resolved, the value is longer than {MAX_MADE} characters, or "
                f"nested deeper than {MAX_DEPTH} levels"
            )
        if self.spent > _MAX_CONFIG:
            raise BrokenReference(
                f"with references resolved, a configuration is longer than {_MAX_CONFIG} characters"
            )
        return made

    def _fill(self, value: object, path: tuple[str, ...]) -> object:
        if isinstance(value, dict):
            entries = cast("dict[str, object]", value)
            return {key: self._fill(item, path) for key, item in entries.items()}
        if isinstance(value, list):
            return [self._fill(item, path) for item in cast("list[object]", value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _TOKEN.fullmatch(value)
        if whole and whole.group(1) is not None:
            return self._referred(whole.group(1), path)
        return self._text(value, path)

    def _referred(self, inner: str, path: tuple[str, ...]) -> object:
        """Return the value of `inner`, the key or the arithmetic expression in a reference."""
        if is_key(inner):
            return self.key(inner, path)
        try:
            expression = parse(inner)
            self.work += expression.size
            return expression.value(lambda key: self.key(key, path))
        except Uncomputable as error:
            raise BrokenReference(f"${{{inner[:60]}}}: {error}") from error

    def _text(self, text: str, path: tuple[str, ...]) -> str:
        parts: list[str] = []
        end = length = 0
        for match in _TOKEN.finditer(text):
            self.work += 2
            parts.append(text[end : match.start()])
            if match.group(1) is None:
                parts.append("${")
            else:
                value = self._referred(match.group(1), path)
                parts.append(value if isinstance(value, str) else canonical(value))
            length += len(parts[-1])
            if length > MAX_MADE:
                raise BrokenReference(
                    f"with its references resolved, the value is longer than {MAX_MADE} characters"
                )
            end = match.end()
        return "".join([*parts, text[end:]])


def _size(value: object, depth: int, limit: int) -> int:
    """Return the number of characters and values in `value`. If `value` has more than `limit`, or
    is nested deeper than `depth`, return some number above `limit`."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | dict):
        return 1
    items = cast("dict[str, object] | list[object]", value)
    total = 1 if depth > 0 else limit + 1
    for item in items.values() if isinstance(items, dict) else items:
        if total > limit:
            break
        total += _size(item, depth - 1, limit - total)
    return total


def _leaves(key: str, value: object) -> Iterable[tuple[str, object]]:
    """Split the value of `key` into dotted keys with their values: `opt` and `{lr: 1}` give
    `opt.lr` and 1."""
    entries = table_of(value)
    if entries and all(map(is_key_below, entries)):
        for part, item in entries.items():
            yield from _leaves(f"{key}.{part}", item)
    else:
        yield key, value
