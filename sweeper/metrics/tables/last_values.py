"""Finds the last number of a key in `metrics.jsonl` without parsing what cannot be it.

The last value is that of the highest step, not of the last line, so each line must be looked at:
but only at its first characters, where recipes write the step. If those ascend from line to line,
the last lines tell; otherwise all must be parsed. (A line that names its step twice has no meaning
in JSON; here the first one counts.) Pure: bytes in.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.rows import Point, Row, are_missing, as_float, as_number, parse
from sweeper.metrics.tables.columns import line_ends

_BEGINS = re.compile(rb'\{"step": ?(?=[0-9])')
_STEP = re.compile(rb"[0-9]{1,15}(?=[,}])")
"""A float holds any number of so many digits exactly."""
_BACK = 64
"""How many lines from the end are searched for the key: evaluations are not in each line."""


def last_number(data: bytes | memoryview, key: str) -> Point | None:
    """The last number in the lines of a file; None if the beginnings of the lines and the last
    lines do not tell it, or whether the lines after it should have one too."""
    begins = _BEGINS.match(data)
    ends = line_ends(data) if begins is not None else None
    if begins is None or ends is None:
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    highest = _STEP.match(data, starts[-1] + begins.end())
    if highest is None:
        return None
    text, width = bytes(data[: begins.end()]), len(highest[0])
    steps = _steps(np.frombuffer(data, np.uint8), starts, text, width)
    if steps is None or (steps[1:] <= steps[:-1]).any():
        return None
    rows = (
        row
        for start, end in zip(reversed(starts), reversed(ends), strict=True)
        for row in parse(bytes(data[start : end + 1])).rows
    )
    after: list[Row] = []
    for row in islice(rows, _BACK):
        number = as_number(row.get(key))
        if number is not None:
            if not after or not _are_missing(after, rows, key):
                return Point(as_float(row["step"]), number)
            return None
        after.append(row)
    return None


def _are_missing(after: Sequence[Row], before: Iterable[Row], key: str) -> bool:
    """Whether the rows after the last number may lack one: no such gap is right before it."""
    gap = 0
    for row in islice(before, len(after)):
        if as_number(row.get(key)) is not None:
            break
        gap += 1
    return are_missing(len(after), gap, named=any(key in row for row in after))


def _steps(
    letters: NDArray[np.uint8], starts: NDArray[np.intp], begins: bytes, most: int
) -> NDArray[np.float64] | None:
    """The steps of lines that all begin alike; None if they do not, or a step is no whole number of
    so many digits."""
    size = len(begins)
    first = letters[starts[:, None] + np.arange(size + most + 1)]
    if (first[:, :size] != np.frombuffer(begins, np.uint8)).any():
        return None
    digits = first[:, size:] - np.uint8(ord("0"))  # others are 10 or more, going round
    counts = (digits > 9).argmax(axis=1)
    after = first[np.arange(len(first)), size + counts]
    if not (counts.all() and ((after == ord(",")) | (after == ord("}"))).all()):
        return None
    steps = np.zeros(len(first))
    for place in range(most):
        steps = np.where(place < counts, steps * 10 + digits[:, place], steps)
    return steps
