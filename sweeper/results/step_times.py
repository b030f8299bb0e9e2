"""Shows how the time of a step is divided, from the `time/...` metrics of recipes and
tinker-cookbook."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeper.metrics.rows import as_float

CLOCKS = ("time/total", "time/step", "time/step:total", "step_time")
"""Metrics with the seconds of a whole step. The first one that a run has recorded is used."""
_TIMELINES = {
    "timing_gantt": "Gantt chart",
    "trace_events.jsonl": "trace",
    "timing_spans.jsonl": "spans",
}
"""The kinds of tinker-cookbook's files that show the spans of steps on a time axis, by the prefixes
of their names."""

_PREFIX, _SUM = "time/", ":total"
_NOT_SUMS = (":count", ":mean", ":max", "_max", "_min", "_mean")
_MOST = 1e15
"""A step of more seconds than this is considered a mistake."""

Sums = Callable[[str], tuple[float, int]]
"""A function that returns the sum and the number of a metric's values."""


class StepTimes(NamedTuple):
    """The mean seconds of a step and of each of its parts, longest first. Parts may overlap, since
    tinker-cookbook's spans are nested."""

    seconds: float
    parts: Mapping[str, float]

    def share(self, part: str) -> float:
        """Return the fraction of a step that a part takes."""
        return self.parts[part] / self.seconds


def step_times(keys: Collection[str], sums: Sums) -> StepTimes | None:
    """Return the step times of a run that has recorded the metrics `keys`; None if the time of
    whole steps or the time of parts is missing. `sums` reads the sum of a metric's values."""
    clock = next((key for key in CLOCKS if key in keys), None)
    named = {name: key for key in keys if key not in CLOCKS and (name := _part(key))}
    if clock is None or not named:
        return None
    total, steps = sums(clock)
    if not total > 0:
        return None
    parts = {name: sums(key)[0] / steps for name, key in named.items()}
    return _longest_first(total / steps, parts)


def timelines(paths: Iterable[str]) -> dict[str, str]:
    """Return a dict from each kind of tinker-cookbook's timelines (such as `Gantt chart`) to the
    newest file of this kind in `paths`."""
    newest: dict[str, str] = {}
    for path in sorted(paths, key=_by_number):
        name = path.rpartition("/")[2]
        for start, kind in _TIMELINES.items():
            if name.startswith(start):
                newest[kind] = path
    return newest


def _by_number(path: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def _part(key: str) -> str | None:
    """Return the part of a step whose seconds the metric `key` records; None for other metrics."""
    if not key.startswith(_PREFIX) or key.endswith(_NOT_SUMS):
        return None
    return key.removeprefix(_PREFIX).removesuffix(_SUM)


def of_rows(rows: Sequence[Mapping[str, object]]) -> StepTimes | None:
    """Return the step times that `rows` of metrics have recorded; None if the time of whole steps
    or the time of parts is missing."""

    def sums(key: str) -> tuple[float, int]:
        values = [value for row in rows if (value := as_float(row.get(key))) is not None]
        values = [value for value in values if 0 <= value < _MOST]
        return sum(values), len(values)

    return step_times({key for row in rows for key in row}, sums)


def mean_times(several: Sequence[StepTimes]) -> StepTimes | None:
    """Return the means over runs; None without runs. A part that a run has not recorded counts as 0
    seconds."""
    if not several:
        return None
    names = dict.fromkeys(name for times in several for name in times.parts)
    count = len(several)
    parts = {name: sum(times.parts.get(name, 0.0) for times in several) / count for name in names}
    return _longest_first(sum(times.seconds for times in several) / count, parts)


def _longest_first(seconds: float, parts: Mapping[str, float]) -> StepTimes:
    ordered = sorted(parts, key=lambda name: (-parts[name], name))
    return StepTimes(seconds, {name: parts[name] for name in ordered})
