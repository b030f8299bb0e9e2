"""A sweep and its runs as the view shows them: plain values, and values derived from them (ranks,
remaining times). Pure: no clock, no store, no terminal."""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeper.metrics.objective import sign_of
from sweeper.results.cells import counts
from sweeper.sweep.marks import NO_MARKS, Marks
from sweeper.sweep.states import OPEN


class Alarm(NamedTuple):
    """A problem of a run: the rule that detected it, and a sentence."""

    rule: str
    text: str


class RunView(NamedTuple):
    """A run as the screen shows it; unknown values are None.

    `state` is the name of its state; `wants`: the run is still to be started, or started again.
    `waits` is the reason why the service delays it, `observed` any other observation of its
    launcher. `silent`: no heartbeat for longer than `launch.lease`. `stalled`: no step for too
    long, according to its launcher. `reason` is why it ended, `last_line` the last output line of a
    failed run. `step` is the last recorded step, `total` the number of steps, `fraction` the
    completed fraction, `eta` the seconds until its end, `beat` the seconds since its heartbeat
    changed. `curve` has the values of the sweep's metric, thinned out. `backend` is the backend of
    its latest attempt, in a sweep with several backends. `value` is the value that it is judged by,
    `diverged` whether its last value was not finite, `rank` its rank among the runs that count.
    """

    id: str
    name: str
    cell: str
    seed: int | None
    config: Mapping[str, object]
    state: str
    attempt: int = 0
    wants: bool = False
    waits: str = ""
    observed: str = ""
    silent: bool = False
    stalled: bool = False
    reason: str = ""
    last_line: str = ""
    step: float | None = None
    total: int | None = None
    fraction: float | None = None
    eta: float | None = None
    curve: tuple[float, ...] = ()
    value: float | None = None
    diverged: bool = False
    rank: int | None = None
    beat: float | None = None
    alarms: tuple[Alarm, ...] = ()
    marks: Marks = NO_MARKS
    backend: str = ""

    @property
    def shown_state(self) -> str:
        """The state, or the problem of a run that is open. Silence comes first, since it is unknown
        whether a silent worker still waits; then waiting, since a waiting run takes no steps."""
        if self.silent and self.state == "running":
            return "silent"
        if self.waits:
            return "waiting"
        return "stalled" if self.stalled else self.state

    @property
    def done_steps(self) -> float | None:
        """The last step. For a run that succeeded at its last step, the number of steps, whether
        the program counts from 0 or from 1."""
        if self.step is None or self.total is None or self.state != "succeeded":
            return self.step
        return float(self.total) if self.step + 1 == self.total else self.step

    @property
    def counts(self) -> bool:
        """Whether the run is included in means and ranks."""
        return counts_so_far(self.state, self.wants, self.value, self.diverged)

    @property
    def remark(self) -> str:
        """A short remark on the run."""
        if self.silent:
            return "no heartbeat"
        at = f"on {self.backend}" if self.backend else ""
        if self.waits:
            return "; ".join(filter(None, (at, self.waits)))
        return "; ".join(filter(None, (at, self.observed, self._ended)))

    @property
    def _ended(self) -> str:
        return ": ".join(filter(None, (self.reason, self.last_line)))


class SweepView(NamedTuple):
    """A sweep as the screen shows it.

    `launcher`: a launcher is running. `held` is the reason why nothing more is started,
    `unreachable` the reason why the launcher waits for a service or a store, `limit` the most jobs
    at once, if that is less than `parallel`. `problem` is the reason why this view is outdated;
    `loading` is the number of runs whose metrics are still to be read; `costs`
    describes the usage so far and the expected rest. `stages` has the names and goals of the
    stages, if there are any; runs are compared only within a stage. `race` describes a race for
    seeds.
    """

    name: str
    runs: tuple[RunView, ...]
    metric: str | None = None
    goal: str = "minimize"
    axes: tuple[str, ...] = ()
    launcher: bool = False
    parallel: int = 1
    limit: int | None = None
    held: str = ""
    unreachable: str = ""
    eta: float | None = None
    problem: str = ""
    loading: int = 0
    stages: tuple[tuple[str, str], ...] = ()
    costs: str = ""
    race: str = ""

    def of_stage(self, stage: str, goal: str) -> "SweepView":
        """Return one stage as if it were the sweep."""
        runs = tuple(run for run in self.runs if stage_of(run) == stage)
        return self._replace(runs=runs, goal=goal, stages=())

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each displayed state."""
        return Counter(run.shown_state for run in self.runs)

    @property
    def ended(self) -> bool:
        """Whether the sweep has ended: nothing is running, and no launcher will start anything."""
        return not self.launcher and not any(
            run.state in ("running", "submitted") for run in self.runs
        )


def stage_of(run: RunView) -> str:
    """Return the stage of a run, which is the beginning of its cell's name."""
    return run.cell.partition("/")[0]


_TOTALS = (
    *("max_steps", "num_steps", "total_steps", "n_steps", "steps", "max_iterations"),
    *("num_iterations", "n_iterations", "iterations", "num_batches", "n_batches", "max_batches"),
)


def total_steps(config: Mapping[str, object], defaults: Mapping[str, object]) -> int | None:
    """Return how many steps a run will take, if its configuration or its recipe's defaults have one
    of the usual settings."""
    for settings in (config, defaults):
        for key in _TOTALS:
            total = settings.get(key)
            if isinstance(total, int | float) and not isinstance(total, bool) and total >= 1:
                return int(total) if math.isfinite(total) else None
    return None


def remaining(
    fraction: float | None, seen: tuple[float, float] | None, since: float | None, now: float
) -> float | None:
    """Return the seconds until a run is done, from the completed `fraction`. `seen` is an earlier
    observation, (time, fraction). Without it, `since` is when the run began. None if its speed is
    unknown."""
    if fraction is None or not 0.0 < fraction < 1.0:
        return None if fraction is None or fraction <= 0.0 else 0.0
    if seen is not None and fraction > seen[1] and now - seen[0] >= 5.0:
        return (1.0 - fraction) * (now - seen[0]) / (fraction - seen[1])
    if since is not None and now > since:
        return (1.0 - fraction) * (now - since) / fraction
    return None


def sweep_remaining(
    at_work: Sequence[float | None], waiting: int, typical: float | None, slots: int
) -> float | None:
    """Return the seconds until a sweep is done. `at_work` has the remaining seconds of each running
    run; then `waiting` runs of `typical` seconds follow, each in the first free of `slots` slots.
    None if unknown."""
    estimates = [seconds for seconds in at_work if seconds is not None]
    if at_work and not estimates and typical is None:
        return None
    usual = typical if typical is not None else max(estimates, default=None)
    if usual is None:
        return None if waiting else 0.0
    free = [usual if seconds is None else seconds for seconds in at_work]
    free += [0.0] * max(0, slots - len(free))
    heapq.heapify(free)
    if len(at_work) > slots:  # the limit was lowered: no run follows the first that end
        free = sorted(free)[len(at_work) - max(slots, 1) :]
        heapq.heapify(free)
    for _ in range(waiting):
        heapq.heapreplace(free, free[0] + usual)
    return max(free, default=0.0)


def counts_so_far(state: str, wants: bool, value: float | None, diverged: bool) -> bool:
    """Return whether a run is included in means and ranks. An ended run counts as in the report;
    any other run counts by its present value. `wants`: it is still to be started, or started
    again."""
    return counts("succeeded" if wants or state in OPEN else state, value, diverged)


def ranks(values: Mapping[str, float | None], goal: str) -> dict[str, int]:
    """Rank the runs with a finite value, from 1. Equal values share a rank."""
    sign = sign_of(goal)
    finite = [
        (sign * value, run)
        for run, value in values.items()
        if value is not None and math.isfinite(value)
    ]
    rank_of: dict[str, int] = {}
    before: tuple[float, int] | None = None
    for place, (number, run) in enumerate(sorted(finite), start=1):
        before = before if before is not None and before[0] == number else (number, place)
        rank_of[run] = before[1]
    return rank_of


def best_run(runs: Iterable[RunView], other_than: str = "") -> RunView | None:
    """Return the run of the best rank other than `other_than`; None if no run has a value."""
    ranked = [run for run in runs if run.rank is not None and run.id != other_than]
    return min(ranked, key=lambda run: run.rank or 0, default=None)


def coarse(seconds: float | None) -> float | None:
    """Round seconds down to the displayed precision, so that views that look the same are equal."""
    if seconds is None:
        return None
    grain = 5.0 if seconds < 60 else 60.0 if seconds < 3600 else 300.0
    return seconds // grain * grain


def nearly(seconds: float | None) -> float | None:
    """Round seconds to the nearest value of the displayed precision, for estimated times."""
    if seconds is None:
        return None
    return coarse(seconds + (2.5 if seconds < 60 else 30.0 if seconds < 3600 else 150.0))
