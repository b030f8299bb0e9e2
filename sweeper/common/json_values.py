"""Decoding of JSON that other programs may have written. Values that would break printing or
recursion are refused or replaced. The functions for access treat a value of the wrong type as
empty. (`codec` reads sweeper's own documents and reports mistakes in them.)"""

import json
import re
from typing import TypeGuard, cast

MOST_LEVELS = 100
"""The largest number of levels of nested lists and objects. Code that walks through a value
recurses once per level, and Python limits the depth of recursion."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_HALF = "[\ud800-\udfff]"
_MAY_BE_HALF = rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]"


def decode(data: bytes) -> object:
    r"""Decode JSON. Replace lone surrogates ("\ud800"), which no file or terminal accepts, by
    U+FFFD. Raises `ValueError` if the JSON is invalid or nested too deeply."""
    try:
        value: object = json.loads(data)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_LEVELS} levels deep") from None
    if is_deep(data) and _has_levels(value, MOST_LEVELS):
        raise ValueError(f"nested more than {MOST_LEVELS} levels deep")
    strange = b"\0" in data[:4] or data[:1] in b"\xfe\xff"  # UTF-16 and other encodings
    # A pattern that may begin in two ways is slow, and most texts contain neither beginning.
    if strange or ((b"\\u" in data or b"\xed" in data) and re.search(_MAY_BE_HALF, data)):
        return mended(value)
    return value


def is_deep(data: bytes) -> bool:
    """Return whether JSON may be nested too deeply. Brackets in strings count too."""
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS:
        return False
    brackets = data.translate(None, _NO_BRACKETS)
    for _ in range(MOST_LEVELS):
        if len(brackets) <= MOST_LEVELS:
            return False
        before, brackets = brackets, brackets.replace(b"[]", b"").replace(b"{}", b"")
        if brackets == before:
            break
    return True


def _has_levels(value: object, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [inner for bracket in level for inner in _inside(bracket)]
        if not level:
            return False
    return True


def _inside(value: object) -> "list[object]":
    if isinstance(value, dict):
        return list(cast(dict[str, object], value).values())
    return cast(list[object], value) if isinstance(value, list) else []


def mended(value: object) -> object:
    """Return a JSON value in which U+FFFD replaces the lone surrogates in strings and keys."""
    if isinstance(value, str):
        return re.sub(_HALF, "\ufffd", value)
    if isinstance(value, list):
        return [mended(inner) for inner in cast(list[object], value)]
    if isinstance(value, dict):
        table = cast(dict[str, object], value)
        return {mended(key): mended(inner) for key, inner in table.items()}
    return value


def is_table(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether a JSON value is a list."""
    return isinstance(value, list)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def table_of(value: object) -> dict[str, object]:
    """Return the JSON value if it is an object, else an empty object."""
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """Return the JSON value if it is a list, else an empty list."""
    return cast(list[object], value) if isinstance(value, list) else []
