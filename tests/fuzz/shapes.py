"""Mutations of JSON documents by structure, and of their bytes."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["mutated", "mutated_lines"]

_HOLE = "what is nested deep"
_DEEP = '[{"a":' * 350 + "1" + "}]" * 350
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 1.5, -2.5, 2**31, 2**63, -(2**63), 10**400, -(10**400)),
    *(float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324),
    *("", "x", "0", "null", "NaN", "\ud800", "a\udfffb", "\x1b[31m", "a\nb", "\0", "../../x", "/"),
    *("2026-13-45T99:99:99Z", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x" * 100_000),
    *([], {}, [None], [[]], {"": None}, {"\ud800": "\ud800"}, {"a": {"b": [1, "2", None]}}),
    *([0] * 5000, {"x": 1, "X": 2}, [{"name": 1}], ["a", "b"], [{}]),
)
_WHOLE = (b"", b" \n", b"null", b"[]", b"{}", b'"x"', b"7", b"NaN", b"{", b'{"schema": 99}', b"\0")


def _places(value: Any, places: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return each container in a document with each of its keys or indices."""
    if isinstance(value, dict):
        items: Any = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return places
    for key, inner in items:
        places.append((value, key))
        _places(inner, places)
    return places


def _drop(where: Any, key: Any, rng: random.Random) -> None:
    del rng, where[key]


def _replace(where: Any, key: Any, rng: random.Random) -> None:
    where[key] = copy.deepcopy(rng.choice(_ODD))


def _other_shape(where: Any, key: Any, rng: random.Random) -> None:
    value = where[key]
    if isinstance(value, dict):
        where[key] = rng.choice([list(value.values()), list(value), [value], json.dumps(value)])
    elif isinstance(value, list):
        where[key] = rng.choice([dict(enumerate(map(str, value))), {"0": value}, None, "list"])
    else:
        where[key] = rng.choice([[value], {"value": value}, str(value), None])


def _other_number(where: Any, key: Any, rng: random.Random) -> None:
    value = where[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number: Any = value if is_number else 1
    where[key] = rng.choice([-number, number * 10**30, number - 1, str(number), not number])


def _rename(where: Any, key: Any, rng: random.Random) -> None:
    if isinstance(where, dict):
        where[rng.choice(["", "\ud800", "step", f"{key} ", str(key).upper(), "a.b"])] = where.pop(
            key
        )
    else:
        where.append(where[key])  # twice


def _nest(where: Any, key: Any, rng: random.Random) -> None:
    del rng
    where[key] = _HOLE


_KINDS: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    *(_drop, _replace, _replace, _replace, _other_shape, _other_shape, _other_number, _rename),
    *(_rename, _nest),
)


def _change(document: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(document, [])
        if not places:
            return copy.deepcopy(rng.choice(_ODD))
        where, key = rng.choice(places)
        rng.choice(_KINDS)(where, key, rng)
    return document


def _encoded(document: Any, rng: random.Random) -> bytes:
    text = json.dumps(document).replace(f'"{_HOLE}"', _DEEP) + "\n"
    if rng.random() < 0.9:
        return text.encode()
    kind = rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-be"))
    return text.encode(kind)


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes damaged, without regard to JSON."""
    kind = rng.randrange(5)
    place = rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if kind == 2:
        return (
            data[:place] + rng.choice((b"\xed\xa0\x80", b"\xff", b'"', b"{", b"\n")) + data[place:]
        )
    if kind == 3:
        return rng.choice(_WHOLE)
    return data + data


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a JSON document with random changes."""
    if rng.random() < 0.12:
        return _torn(data, rng)
    try:
        document = json.loads(data)
        return _encoded(_change(document, rng), rng)
    except (ValueError, RecursionError):  # not JSON, because of an earlier change
        return _torn(data, rng)


def mutated_lines(data: bytes, rng: random.Random) -> bytes:
    """Return JSON documents, one per line, with random changes to some."""
    lines = data.splitlines(keepends=True)
    if not lines or rng.random() < 0.1:
        return _torn(data, rng)
    for _ in range(rng.choice((1, 1, 3))):
        number = rng.randrange(len(lines))
        lines[number] = mutated(lines[number].rstrip(b"\n"), rng)
    return b"".join(lines)
