"""Typed access to JSON that other programs may have written: a value of the wrong type counts as
empty. (`codec` reads sweeper's own documents, and reports their mistakes.)"""

from typing import TypeGuard, cast


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
    """Return the JSON value if it is an object, else an empty one."""
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """Return the JSON value if it is a list, else an empty one."""
    return cast(list[object], value) if isinstance(value, list) else []
