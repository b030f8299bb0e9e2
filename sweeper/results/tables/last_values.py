"""Finds the last number of a key in `metrics.jsonl` without parsing what cannot be it.

The last value is that of the highest step, not of the last line, so each line must be looked at:
but only at its first characters, where recipes write the step. If those ascend from line to line,
the last lines tell; otherwise all must be parsed. (A line that names its step twice has no meaning
in JSON; here the first one counts.) Pure: bytes in.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweeper.metrics import Point, as_float, parse
from sweeper.results.tables.columns import line_ends

__all__ = ["Last", "last_number"]

_BEGINS = re.compile(rb'\{"step": ?(?=[0-9])')
_STEP = re.compile(rb"[0-9]{1,15}(?=[,}])")
"""A float holds any number of so many digits exactly."""
_BACK = 64
"""How many lines from the end are searched for the key: evaluations are not in each line."""


class Last(NamedTuple):
    """The highest step of a file, and the point of the key with the highest; None without one
    among the last lines."""

    step: float
    point: Point | None


def last_number(data: bytes | memoryview, key: str) -> Last | None:
    """The last point in the lines of a file; None if the lines' beginnings do not tell."""
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
    for start, end in zip(starts[: -_BACK - 1 : -1], ends[: -_BACK - 1 : -1], strict=True):
        rows = parse(bytes(data[start : end + 1])).rows
        number = as_float(rows[0].get(key)) if rows else None
        if number is not None:
            return Last(float(steps[-1]), Point(as_float(rows[0]["step"]), number))
    return Last(float(steps[-1]), None)


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
