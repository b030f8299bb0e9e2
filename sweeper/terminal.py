"""What is shown on a terminal: values as people read them, tables that fit, JSON, warnings."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["duration", "number", "print_json", "print_table", "warn"]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: as wide as the terminal, as wide as it needs to be elsewhere. Numbers stand
    to the right, None is a dash."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float | None) for row in shown)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        # Text, not markup: a run's name may hold brackets.
        table.add_row(*(Text(number(value)) for value in row))
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else 10_000)


def number(value: Any) -> str:
    """A value in a table: four significant digits for a float, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.4g}"
    return str(value)


def duration(seconds: float | None) -> str:
    """`47s`, `3m20s`, `2h05m`; a dash for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def print_json(document: dict[str, Any]) -> int:
    """Print one JSON object; numbers that JSON cannot have become text. Gives exit code 0."""
    import json

    from sweeper.documents import strict

    json.dump(strict(document), sys.stdout, indent=1, allow_nan=False)
    print()
    return 0


def warn(sentence: str) -> None:
    """A line on standard error."""
    print(f"sweeper: {sentence}", file=sys.stderr)
