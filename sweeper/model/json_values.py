"""JSON that somebody else may have written, with types: what is of another kind than expected
counts as empty. (What sweeper wrote itself is read by `parts`, which tells what is wrong with it.)
"""

from typing import TypeGuard, cast

__all__ = ["is_list", "is_number", "is_table", "list_of", "table_of"]


def is_table(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a JSON value is a list."""
    return isinstance(value, list)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def table_of(value: object) -> dict[str, object]:
    """The object that a JSON value is; an empty one for all else."""
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """The list that a JSON value is; an empty one for all else."""
    return cast(list[object], value) if isinstance(value, list) else []
