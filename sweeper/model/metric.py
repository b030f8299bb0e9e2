"""What runs and cells are judged by, as it is written: which value of a run counts, whose noise,
and what a failed run counts as.

Each is a word, or a word with what it is about behind `=`: so the command line takes it, and so it
is kept. Where a grid has a mapping, `{mean_of_last: 5}`, its key and its value are the two parts.
"""

import re
from typing import Literal, NamedTuple

__all__ = [
    "FAILED",
    "MOST_LAST",
    "NOISES",
    "Metric",
    "is_at",
    "is_noise",
    "lenders",
    "mean_of_last",
    "value_text",
]

MOST_LAST = 1000
"""The most values that a run may be judged by the mean of."""

NOISES = ("auto", "pooled", "own")
FAILED = ("bound", "worst", "drop")


class Metric(NamedTuple):
    """What decides which cell is best. `at`: `last`, `best` or `mean_of_last=5`, the value of a run
    that counts, or `auto`: the last, and in a report a mean where the last values are noisy.
    `noise`: whether cells share what is known of it, `auto` (where a test lets them),
    `pooled`, `own`, or `from=SWEEP,...` (those lend theirs). `failed`: what a run that failed
    counts as, `bound` (a cell is no better for it than if it had been the worst), `worst` (it is)
    or `drop` (nothing). `by`: the setting each of whose values is judged by itself."""

    name: str
    goal: Literal["minimize", "maximize"]
    at: str = "auto"
    noise: str = "auto"
    failed: str = "bound"
    by: str | None = None


def mean_of_last(at: str) -> int | None:
    """How many of the last values a run is judged by the mean of: 5 of `mean_of_last=5`; None of
    what says something else."""
    found = re.fullmatch(r"mean_of_last=([1-9][0-9]{0,3})", at)
    return int(found[1]) if found and int(found[1]) <= MOST_LAST else None


def is_at(at: str) -> bool:
    """Whether it says which value of a run counts."""
    return at in ("auto", "last", "best") or mean_of_last(at) is not None


def value_text(at: str) -> str:
    """Which value of each run counts, in words: `last value`."""
    of = mean_of_last(at)
    if at == "auto":
        return "last value (a report may take the mean of the last 5)"
    return f"{at} value" if of is None else f"mean of the last {of} values"


def lenders(noise: str) -> tuple[str, ...]:
    """The sweeps that lend their noise: of `from=a,b` a and b."""
    word, _, names = noise.partition("=")
    return tuple(dict.fromkeys(filter(None, names.split(",")))) if word == "from" else ()


def is_noise(noise: str) -> bool:
    """Whether it says whose noise counts."""
    return noise in NOISES or bool(lenders(noise))
