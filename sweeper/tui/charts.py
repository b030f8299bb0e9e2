"""Bars, sparklines and plots, drawn with characters. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.results.cells import center
from sweeper.tui.text import Glyphs, value


def bar(fraction: float | None, width: int, glyphs: Glyphs) -> str:
    """Draw a progress bar of `width` characters, or blanks if `fraction` is None."""
    if fraction is None:
        return " " * width
    filled = min(width, int(fraction * width + 1e-9))
    return glyphs.full * filled + glyphs.empty * (width - filled)


def sparkline(numbers: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Draw a curve on one line, padded to `width` characters. The height of a character shows the
    mean of some consecutive values, relative to the smallest and the largest mean. Where no value
    is finite, the line has a gap."""
    if width <= 0 or not numbers:
        return " " * max(width, 0)
    cells = _stretches(numbers, min(width, len(numbers)))
    numbers_only = [number for number in cells if number is not None]
    if not numbers_only:
        return " " * width
    low, high = min(numbers_only), max(numbers_only)
    top, middle = len(glyphs.levels) - 1, len(glyphs.levels) // 3

    def level(number: float) -> int:
        return round(_share(number, low, high) * top) if high > low else middle

    drawn = (" " if number is None else glyphs.levels[level(number)] for number in cells)
    return "".join(drawn).ljust(width)


def _share(number: float, low: float, high: float) -> float:
    """Return the relative position of `number` between `low` (0) and `high` (1). The result is
    correct even if `high - low` overflows a float."""
    if math.isfinite(high - low):
        return (number - low) / (high - low)
    return (number / 2 - low / 2) / (high / 2 - low / 2)


def _stretches(numbers: Sequence[float], count: int) -> list[float | None]:
    stretched: list[float | None] = []
    for place in range(count):
        start, end = place * len(numbers) // count, (place + 1) * len(numbers) // count
        finite = [number for number in numbers[start:end] if math.isfinite(number)]
        total = sum(finite)
        if finite and math.isfinite(total):
            stretched.append(total / len(finite))
        else:
            stretched.append(center(finite) if finite else None)
    return stretched


_Points = Sequence[tuple[float, float]]


class _Frame(NamedTuple):
    """The ranges of x and y that a plot shows."""

    left: float
    right: float
    low: float
    high: float

    def place(self, point: tuple[float, float], columns: int, rows: int) -> tuple[int, int]:
        """Return the column and the row of a point. Both start at 0, and row 0 is at the top."""
        x, y = point
        across = _share(x, self.left, self.right) if self.right > self.left else 0.0
        down = _share(y, self.high, self.low) if self.high > self.low else 0.5
        return round(across * (columns - 1)), round(down * (rows - 1))


_LARGEST = 308.25
"""A limit for exponents of ten: `10.0 ** _LARGEST` does not overflow."""


def plot(
    points: _Points,
    width: int,
    height: int,
    glyphs: Glyphs,
    other: _Points = (),
    *,
    log: bool = False,
) -> list[str]:
    """Draw a curve of (x, y) points in `height` lines of `width` columns. The range of y is at the
    left, and the range of x is below. `other` is a second curve, drawn behind the first with other
    characters. If `log` is set, the y scale is logarithmic. Points that the scale cannot show are
    left out: NaN, infinity and, on a logarithmic scale, values of zero or less. If there is nothing
    to draw, or too little space, return one line with a message."""
    curve, behind = _drawable(points, log), _drawable(other, log)
    if not curve or height < 3 or width < 16:
        positive = "positive" if log else "finite"
        return [f"nothing {positive} to draw" if points else "nothing recorded yet"]
    xs, ys = zip(*curve, *behind, strict=True)
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    rows = height - 1
    labels = _labels(frame, rows, log)
    margin = max(map(len, labels.values())) + 1
    columns = width - margin
    drawn = _drawn(curve, frame, columns, rows, glyphs)
    for column, row in _one_a_column(behind, frame, columns, rows):
        if drawn[row][column] == " ":
            drawn[row][column] = glyphs.other
    lines = [
        f"{labels.get(row, ''):>{margin - 1}} {''.join(body)}" for row, body in enumerate(drawn)
    ]
    start, end = value(frame.left), value(frame.right)
    return [*lines, " " * margin + start + end.rjust(max(0, columns - len(start)))]


def _drawable(points: _Points, log: bool) -> list[tuple[float, float]]:
    """Return the points that the scale can show. If `log` is set, replace each y by its decimal
    logarithm."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return [(x, math.log10(y)) for x, y in finite if y > 0] if log else finite


def _labels(frame: _Frame, rows: int, log: bool) -> dict[int, str]:
    """Return the labels of the y axis as {row: text}. Both ends of the range are labelled. On a
    logarithmic scale, powers of ten are labelled too. If no power of ten falls on an inner row, the
    middle row is labelled."""
    if not log:
        return {rows - 1: value(frame.low), 0: value(frame.high)}
    labels: dict[int, str] = {}
    for power in range(math.ceil(frame.low), math.floor(frame.high) + 1):
        _, row = frame.place((frame.left, power), 1, rows)
        labels[row] = _power(power)
    if not any(0 < row < rows - 1 for row in labels):
        row = (rows - 1) // 2
        labels[row] = _power(frame.high - row / max(1, rows - 1) * (frame.high - frame.low))
    return labels | {rows - 1: _power(frame.low), 0: _power(frame.high)}


def _power(exponent: float) -> str:
    return value(10.0 ** min(exponent, _LARGEST))


def _drawn(
    points: _Points, frame: _Frame, columns: int, rows: int, glyphs: Glyphs
) -> list[list[str]]:
    """Draw a curve, and return the characters of each row."""
    across, down = (2, 4) if glyphs.dots else (1, 1)
    grid = [bytearray(columns) for _ in range(rows)]
    spots = [frame.place(point, columns * across, rows * down) for point in points]
    for before, spot in zip(spots[:1] + spots, spots, strict=False):
        for column, line in _between(before, spot):
            grid[line // down][column // across] |= _DOTS[line % down][column % across]
    return [[_character(number, glyphs) for number in line] for line in grid]


def _one_a_column(points: _Points, frame: _Frame, columns: int, rows: int) -> list[tuple[int, int]]:
    """Return the (column, row) positions of a curve, with at most one position in each column."""
    spots = [frame.place(point, columns, rows) for point in points]
    by_column: dict[int, int] = {}
    for before, spot in zip(spots[:1] + spots, spots, strict=False):
        by_column.update(_between(before, spot))
    return list(by_column.items())


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character: `_DOTS[line][column]`."""


def _character(bits: int, glyphs: Glyphs) -> str:
    if not bits:
        return " "
    return chr(0x2800 + bits) if glyphs.dots else "*"


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the (column, row) positions on a straight line between two positions."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(steps + 1)
    ]
