"""Output for a terminal: formatted values, tables that fit the width, JSON, warnings."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sweeper.common.sanitize import raw, sanitize, sanitize_json
from sweeper.errors import GridError, SweeperError


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. On a terminal, fit it to the terminal's width. Columns of numbers are
    aligned right, and None is printed as a dash. Terminal control sequences in the texts of
    the table are removed."""
    columns = [sanitize(column) for column in columns]
    shown = [
        [sanitize(value) if isinstance(value, str) else value for value in row] for row in rows
    ]
    numeric = [
        all(isinstance(r[i], int | float | None) for r in shown) for i in range(len(columns))
    ]
    if sys.stdout.isatty():
        _print_fitted(columns, shown, numeric)
    else:  # Fitting takes time, and files have no width.
        _print_wide(columns, shown, numeric)


def _print_fitted(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[bool]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Text, not markup, since a run's name may contain brackets.
        table.add_row(*(Text(number(value)) for value in row))
    Console(highlight=False, file=raw(sys.stdout)).print(table)


def _print_wide(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[bool]
) -> None:
    texts = [list(columns), *([number(value) for value in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*texts, strict=True)]
    lines: list[str] = []
    for text in texts:
        cells: list[str] = []
        for value, width, right in zip(text, widths, numeric, strict=True):
            blank = " " * (width - display_width(value))
            cells.append(blank + value if right else value + blank)
        lines.append("   ".join(cells).rstrip())
    lines.insert(1, "\u2500" * (sum(widths) + 3 * (len(widths) - 1)))
    print("\n".join(lines))


def display_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def number(value: object) -> str:
    """Format a value for a table. Whole floats below a million are shown as integers, other floats
    with four significant digits, and None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.4g}"
    return str(value)


def setting(value: object) -> str:
    """Format the exact value of a setting: strings unchanged, other values as JSON."""
    import json  # imported late, since most verbs print no settings

    return value if isinstance(value, str) else json.dumps(value)


def in_colour() -> bool:
    """Return whether standard output is a terminal that may show colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout.isatty()


def shortened(text: str, most: int = 60) -> str:
    """Join the lines of `text`, and cut the result to at most `most` characters, between words if
    possible."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    start = line[: most - 3]
    words = start.rpartition(" ")[0]
    return f"{words if len(words) > most // 2 else start.rstrip()} ..."[:most]


def measurement(key: str, value: object) -> str:
    """Format a recorded value. If `key` ends with `_at`, format seconds since 1970 as a UTC
    time."""
    if key.endswith("_at") and isinstance(value, int | float) and 1e9 <= value < 1e11:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    return number(value)


def duration(seconds: float | None) -> str:
    """Format a time as `47s`, `3m20s` or `2h05m`; None as a dash."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def print_json(document: Mapping[str, object]) -> int:
    """Print one JSON object, and return exit code 0. NaN and infinity are printed as strings."""
    import json

    from sweeper.store.documents import strict

    print(sanitize_json(json.dumps(strict(document), indent=1, allow_nan=False)))
    return 0


def is_screen() -> bool:
    """Return whether all standard streams are a terminal with a movable cursor."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    # A stream that is None or closed is not a terminal.
    if any(stream is None or stream.closed or not stream.isatty() for stream in streams):  # pyright: ignore[reportUnnecessaryComparison]
        return False
    return os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def say(line: str = "", *, flush: bool = False) -> None:
    """Print a sanitized line on standard output (see `common/sanitize.py`)."""
    print(sanitize(line), flush=flush)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    _print_error(sanitize(sentence))


def complain(error: SweeperError) -> int:
    """Print an error on standard error, and return the error's exit code. A `GridError` is printed
    with one line for each problem."""
    problems = error.problems if isinstance(error, GridError) else (str(error),)
    _print_error("\n".join(map(sanitize, problems)))
    return error.exit_code


def _print_error(text: str) -> None:
    with suppress(OSError):
        print(f"sweeper: {text}", file=sys.stderr)
