"""The data that the view shows about a sweep and its runs, with ranks and remaining times. Pure:
no clock, no store, no terminal."""

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
    """A problem of a run: the rule that detected the problem, and a sentence about it."""

    rule: str
    text: str


class RunView(NamedTuple):
    """The data that the view shows about a run. Unknown numbers are None, and unknown texts are
    empty.

    `state` is the name of the run's state. `attempt` is the number of the latest attempt. `wants`:
    the run needs an attempt that has not started. `waits` is the reason why the service delays the
    run. `observed` is what else the launcher reports about the run. `silent`: no heartbeat for
    longer than `launch.lease`. `stalled`: no step for too long, says the launcher. `reason` is the
    reason for the run's end, and `last_line` is the last output line of a failed run. `step` is the
    last recorded step, `total` the number of steps, and `fraction` the completed fraction. `eta` is
    the number of seconds until the run's end, and `beat` the number of seconds since the last
    heartbeat. `curve` has the values of the sweep's metric, thinned out. `value` is this metric's
    value for comparing runs. `diverged`: the last value is not finite. `rank` is the rank by value.
    `backend` is the latest attempt's backend if the sweep has several backends.
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
        """The state to display: `silent`, `waiting` or `stalled` if the run has this problem, else
        `state`. `silent` comes first, since a silent worker may no longer wait. `waiting` comes
        before `stalled`, since a waiting run makes no steps."""
        if self.silent and self.state == "running":
            return "silent"
        if self.waits:
            return "waiting"
        return "stalled" if self.stalled else self.state

    @property
    def done_steps(self) -> float | None:
        """The last recorded step, or `total` if the run succeeded and its last step is `total - 1`
        (the program counts steps from 0)."""
        if self.step is None or self.total is None or self.state != "succeeded":
            return self.step
        return float(self.total) if self.step + 1 == self.total else self.step

    @property
    def counts(self) -> bool:
        """Whether the run is included in means and ranks."""
        return counts_so_far(self.state, self.wants, self.value, self.diverged)

    @property
    def remark(self) -> str:
        """A short text about the run, such as the reason for waiting or failing."""
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
    """The data that the view shows about a sweep.

    `launcher`: a launcher is running. `held` is the reason why no more runs are started.
    `unreachable` is the reason why the launcher waits for a service or a store. `limit` is the
    launcher's current limit on concurrent jobs, or None if the limit is `parallel`. `problem` is
    the reason why this view is outdated. `loading` is the number of runs whose metrics have not
    been read yet. `costs` describes the usage and the forecast. `stages` has the name and the goal
    of each stage. Runs are compared only within a stage. `race` describes the progress of a race,
    in which worse cells get fewer seeds.
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
        """Return a view with only the runs of one stage."""
        runs = tuple(run for run in self.runs if stage_of(run) == stage)
        return self._replace(runs=runs, goal=goal, stages=())

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each displayed state."""
        return Counter(run.shown_state for run in self.runs)

    @property
    def ended(self) -> bool:
        """Whether no job and no launcher of the sweep is running."""
        return not self.launcher and not any(
            run.state in ("running", "submitted") for run in self.runs
        )


def stage_of(run: RunView) -> str:
    """Return the stage of a run, which is the first part of the cell's name."""
    return run.cell.partition("/")[0]


_TOTALS = (
    *("max_steps", "num_steps", "total_steps", "n_steps", "steps", "max_iterations"),
    *("num_iterations", "n_iterations", "iterations", "num_batches", "n_batches", "max_batches"),
)


def total_steps(config: Mapping[str, object], defaults: Mapping[str, object]) -> int | None:
    """Return the number of steps that a run will make, from a setting such as `max_steps` in
    `config` or else in `defaults`. Return None if there is no such setting."""
    for settings in (config, defaults):
        for key in _TOTALS:
            total = settings.get(key)
            if isinstance(total, int | float) and not isinstance(total, bool) and total >= 1:
                return int(total) if math.isfinite(total) else None
    return None


def remaining(
    fraction: float | None, seen: tuple[float, float] | None, since: float | None, now: float
) -> float | None:
    """Estimate the seconds until a run ends, from the completed `fraction`. The speed is measured
    since `seen`, an earlier observation (time, fraction). If `seen` is missing or too recent, the
    speed is measured since the run began at `since`. Return None if the speed is unknown."""
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
    """Estimate the seconds until a sweep ends. `at_work` has the remaining seconds of each running
    run. `waiting` other runs will execute, at most `slots` at the same time. `typical` is a run's
    duration in seconds. Return None if runs are left and no duration is known."""
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
    """Return whether a run is included in means and ranks, by the same rule as in the report
    (`cells.counts`). However, a run that has not ended, or that starts again (`wants`), is treated
    as succeeded."""
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
    """Return the run with the best rank, ignoring `other_than`. Return None if no other run has a
    rank."""
    ranked = [run for run in runs if run.rank is not None and run.id != other_than]
    return min(ranked, key=lambda run: run.rank or 0, default=None)


def coarse(seconds: float | None) -> float | None:
    """Round seconds down to a multiple of 5 s (below 1 min), 1 min (below 1 h) or 5 min. None stays
    None."""
    if seconds is None:
        return None
    grain = 5.0 if seconds < 60 else 60.0 if seconds < 3600 else 300.0
    return seconds // grain * grain


def nearly(seconds: float | None) -> float | None:
    """Round seconds to the nearest multiple of 5 s (below 1 min), 1 min (below 1 h) or 5 min. None
    stays None."""
    if seconds is None:
        return None
    return coarse(seconds + (2.5 if seconds < 60 else 30.0 if seconds < 3600 else 150.0))
