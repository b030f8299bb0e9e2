"""The settings for comparing runs and cells: which value of a run counts, how noise is
estimated, and how a failed run counts. `{mean_of_last: 5}` in a grid is stored as
`mean_of_last=5`."""

import re
from typing import Annotated, Literal, NamedTuple

from sweeper.common.codec import Check, Default, Sparse

MOST_LAST = 1000
"""The largest N of `mean_of_last=N`."""

NOISES = ("auto", "pooled", "own")
FAILED = ("bound", "worst", "drop")


def mean_of_last(at: str) -> int | None:
    """Return the number N of `mean_of_last=N`, or None for any other string."""
    match = re.fullmatch(r"mean_of_last=([1-9][0-9]{0,3})", at)
    return int(match[1]) if match and int(match[1]) <= MOST_LAST else None


def is_at(at: str) -> bool:
    """Return whether `at` is a valid `Metric.at`."""
    return at in ("auto", "last", "best") or mean_of_last(at) is not None


def value_text(at: str) -> str:
    """Describe in words which value of each run counts: `last value`."""
    of = mean_of_last(at)
    if at == "auto":
        return "last value (a report may take the mean of the last 5)"
    return f"{at} value" if of is None else f"mean of the last {of} values"


def lenders(noise: str) -> tuple[str, ...]:
    """Return the names of the sweeps whose noise estimates are used: `("a", "b")` for `from=a,b`.
    Return () if `noise` names no sweeps."""
    word, _, names = noise.partition("=")
    return tuple(dict.fromkeys(filter(None, names.split(",")))) if word == "from" else ()


def is_noise(noise: str) -> bool:
    """Return whether `noise` is a valid `Metric.noise`."""
    return noise in NOISES or bool(lenders(noise))


class Metric(NamedTuple):
    """The settings that decide which cell is best. `at` says which value of a run counts: `last`,
    `best`, `mean_of_last=5`, or `auto` (the last value; in a report, a mean if the last values are
    noisy). `noise` says whether cells share a noise estimate: `auto` (if a statistical test allows
    it), `pooled` (yes), `own` (no), or `from=SWEEP,...` (use the estimates of these sweeps).
    `failed` says how a failed run counts: `bound` (a cell is best only if it would still be best
    with the sweep's worst value for its own failed runs), `worst` (with the worst value) or `drop`
    (not at all).
    `by` is a key of the configuration; each value of the key gets its own best cell. `relevant` is
    the smallest difference that matters."""

    name: str
    goal: Annotated[Literal["minimize", "maximize"], Default("minimize")]
    at: Annotated[str, Check(is_at, "auto, last, best or mean_of_last=5"), Default("last")] = "auto"
    noise: Sparse[Annotated[str, Check(is_noise, "auto, pooled, own or from=SWEEP")]] = "auto"
    failed: Sparse[Annotated[str, Check(FAILED.__contains__, " or ".join(FAILED))]] = "bound"
    by: Sparse[str | None] = None
    relevant: Sparse[float | None] = None
