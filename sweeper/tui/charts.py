"""Texts as a screen of characters takes them: cut to a width, drawn from numbers. Pure."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

__all__ = [
    "ASCII",
    "UNICODE",
    "Glyphs",
    "age",
    "bar",
    "fit",
    "fit_middle",
    "mean",
    "plot",
    "short",
    "sparkline",
    "value",
    "wrap",
]


class Glyphs(NamedTuple):
    """The characters that things are drawn with. `levels` from low to high; `other` is a second
    curve's; `dots`: whether a plot may use braille, which has eight points a character."""

    levels: str
    full: str
    empty: str
    opened: str
    closed: str
    line: str
    cut: str
    other: str
    dots: bool


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "█", "·", "▾", "▸", "─", "…", "x", True)
ASCII = Glyphs("_.-=+*#@", "#", ".", "-", "+", "-", "~", "x", False)


def fit(text: str, width: int, *, right: bool = False, cut: str = "…") -> str:
    """The text in exactly `width` columns; one that is longer ends with `cut`."""
    if width <= 0:
        return ""
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + cut
    blank = " " * (width - length)
    return blank + text if right else text + blank


def fit_middle(text: str, width: int, *, cut: str = "…") -> str:
    """The same, but what is cut is cut in the middle: names often differ at their end."""
    length = cell_len(text)
    if length <= width or width < 8:
        return fit(text, width, cut=cut)
    back = (width - 1) // 2
    end = text
    while cell_len(end) > back:
        end = end[1:]
    return set_cell_size(text, width - 1 - cell_len(end)) + cut + end


def wrap(text: str, width: int) -> list[str]:
    """A line cut into lines of at most `width` columns, between words where that is possible."""
    lines: list[str] = []
    at = 0
    while cell_len(piece := _start_of(text, at, width)) > width > 0:
        head = set_cell_size(piece, width).rstrip()
        space = head.rfind(" ")
        if space > width // 2:
            head = head[:space]
        lines.append(head)
        at += len(head)
        while at < len(text) and text[at].isspace():
            at += 1
        if not head:  # a character wider than the line
            return lines
    return [*lines, text[at:]]


def _start_of(text: str, at: int, width: int) -> str:
    """What follows there, as much as is wider than a line: all the rest if nothing is."""
    size = 2 * max(width, 8)
    while at + size < len(text) and cell_len(text[at : at + size]) <= width:
        size *= 2  # characters without a width
    return text[at : at + size]


def value(number: float | None) -> str:
    """A number with four digits that matter."""
    if number is None:
        return "-"
    if math.isfinite(number) and number == int(number) and abs(number) < 1e5:
        return str(int(number))
    return f"{number:.4g}"


def short(seconds: float | None) -> str:
    """A time to wait, no finer than is known: `45s`, `12m`, `2h05m`, `3d`."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60 // 5 * 5:02}m"
    return f"{minutes // 1440}d"


def age(seconds: float | None) -> str:
    """How long ago, in steps: a screen on which nothing happens does not change every second."""
    if seconds is None:
        return "-"
    if seconds < 15:
        return "now"
    if seconds < 60:
        return f"{int(seconds) // 15 * 15}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m"
    return f"{int(seconds) // 3600}h" if seconds < 48 * 3600 else f"{int(seconds) // 86400}d"


def bar(fraction: float | None, width: int, glyphs: Glyphs) -> str:
    """How much of something is done."""
    if fraction is None:
        return " " * width
    filled = min(width, int(fraction * width + 1e-9))
    return glyphs.full * filled + glyphs.empty * (width - filled)


def sparkline(numbers: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """A curve in one line: the mean of each stretch between the least and the greatest of all,
    gaps where nothing is finite."""
    if width <= 0 or not numbers:
        return " " * max(width, 0)
    cells = _stretches(numbers, min(width, len(numbers)))
    known = [one for one in cells if one is not None]
    if not known:
        return " " * width
    low, high = min(known), max(known)
    top, middle = len(glyphs.levels) - 1, len(glyphs.levels) // 3

    def level(one: float) -> int:
        return round(_share(one, low, high) * top) if high > low else middle

    drawn = (" " if one is None else glyphs.levels[level(one)] for one in cells)
    return "".join(drawn).ljust(width)


def mean(numbers: Sequence[float]) -> float:
    """Of finite numbers, be they so large that their sum is not."""
    try:
        return statistics.fmean(numbers)
    except OverflowError:
        return math.fsum(number / len(numbers) for number in numbers)


def _share(one: float, low: float, high: float) -> float:
    """How far from `low` to `high` it is, which may be as far apart as finite numbers can be."""
    if math.isfinite(high - low):
        return (one - low) / (high - low)
    return (one / 2 - low / 2) / (high / 2 - low / 2)


def _stretches(numbers: Sequence[float], count: int) -> list[float | None]:
    found: list[float | None] = []
    for place in range(count):
        start, end = place * len(numbers) // count, (place + 1) * len(numbers) // count
        finite = [one for one in numbers[start:end] if math.isfinite(one)]
        found.append(mean(finite) if finite else None)
    return found


_Points = Sequence[tuple[float, float]]


class _Frame(NamedTuple):
    """What part of the plane a plot shows."""

    left: float
    right: float
    low: float
    high: float

    def place(self, point: tuple[float, float], columns: int, rows: int) -> tuple[int, int]:
        """The column and the row in which a point lies, from 0, the rows from the top."""
        x, y = point
        across = _share(x, self.left, self.right) if self.right > self.left else 0.0
        down = _share(y, self.high, self.low) if self.high > self.low else 0.5
        return round(across * (columns - 1)), round(down * (rows - 1))


def plot(
    points: _Points, width: int, height: int, glyphs: Glyphs, other: _Points = ()
) -> list[str]:
    """A curve of (x, y) in `height` lines of `width` columns, with the range of y at the left and
    of x below; `other` is one to compare it with, drawn behind it in characters of its own. What is
    not finite is left out; a single line says so when nothing is left."""
    finite, behind = _finite(points), _finite(other)
    if not finite or height < 3 or width < 16:
        return ["nothing finite to draw" if points else "nothing recorded yet"]
    xs, ys = zip(*finite, *behind, strict=True)
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    labels = [value(frame.high), value(frame.low)]
    margin = max(map(len, labels)) + 1
    rows, columns = height - 1, width - margin
    drawn = _drawn(finite, frame, columns, rows, glyphs)
    for column, row in _one_a_column(behind, frame, columns, rows):
        if drawn[row][column] == " ":
            drawn[row][column] = glyphs.other
    heads = [labels[0], *[""] * (rows - 2), labels[1]]
    lines = [
        f"{head:>{margin - 1}} {''.join(body)}" for head, body in zip(heads, drawn, strict=True)
    ]
    start, end = value(frame.left), value(frame.right)
    return [*lines, " " * margin + start + end.rjust(max(0, columns - len(start)))]


def _finite(points: _Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _drawn(
    points: _Points, frame: _Frame, columns: int, rows: int, glyphs: Glyphs
) -> list[list[str]]:
    """The characters of a curve, row by row."""
    across, down = (2, 4) if glyphs.dots else (1, 1)
    grid = [bytearray(columns) for _ in range(rows)]
    spots = [frame.place(point, columns * across, rows * down) for point in points]
    for before, spot in zip(spots[:1] + spots, spots, strict=False):
        for column, line in _between(before, spot):
            grid[line // down][column // across] |= _DOTS[line % down][column % across]
    return [[_character(one, glyphs) for one in line] for line in grid]


def _one_a_column(points: _Points, frame: _Frame, columns: int, rows: int) -> list[tuple[int, int]]:
    """Where a curve is, one place a column: it stays thin where it is steep."""
    spots = [frame.place(point, columns, rows) for point in points]
    found: dict[int, int] = {}
    for before, spot in zip(spots[:1] + spots, spots, strict=False):
        found.update(_between(before, spot))
    return list(found.items())


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by line and column."""


def _character(bits: int, glyphs: Glyphs) -> str:
    if not bits:
        return " "
    return chr(0x2800 + bits) if glyphs.dots else "*"


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The points of a straight line from one to the other."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(steps + 1)
    ]
