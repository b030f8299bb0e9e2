"""Small HTML tables for notebooks, with all contents escaped."""

from collections.abc import Iterable, Sequence

ROWS = 30
"""The largest number of rows that a table shows."""


def title(text: str, more: str = "") -> str:
    """Return the title line of a table, with `more` after the bold `text`."""
    from html import escape

    rest = f" {escape(more)}" if more else ""
    return f"<p><strong>{escape(text)}</strong>{rest}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of the first `ROWS` rows, followed by the number of omitted rows."""
    from html import escape

    every = list(rows)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row)}</tr>"
        for row in every[:ROWS]
    )
    rest = f"<p>and {len(every) - ROWS} more</p>" if len(every) > ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
