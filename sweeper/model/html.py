"""Small tables for notebooks. Whatever is in them is text. Programs that show none load little."""

from collections.abc import Iterable, Sequence

__all__ = ["ROWS", "table", "title"]

ROWS = 30
"""How many rows a table shows at most."""


def title(text: str, more: str = "") -> str:
    """A line above a table."""
    from html import escape

    rest = f" {escape(more)}" if more else ""
    return f"<p><strong>{escape(text)}</strong>{rest}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of the first rows, and how many more there are."""
    from html import escape

    every = list(rows)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row)}</tr>"
        for row in every[:ROWS]
    )
    left = f"<p>and {len(every) - ROWS} more</p>" if len(every) > ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left}"


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
