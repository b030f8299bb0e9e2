"""A sweep and its runs as the view shows them: plain values, and values derived from them (ranks,
times left). Pure: no clock, no store, no terminal."""

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
    """A problem with a run: the rule that detected it, and a sentence."""

    rule: str
    text: str


class RunView(NamedTuple):
    """A run as the screen shows it.

    `state` is the name of its state; `wants` says that it is still to be started, or started
    again. `waits` says why the service holds it back, `observed` what else its launcher observes.
    `silent`: no heartbeat for longer than `launch.lease`; `stalled`: no step for too long,
    according to its launcher. `reason` says why it ended, `said` is the last line of a failed run.
    `step` is the last one recorded, `total` the number of steps, `fraction` the share done, `eta`
    the seconds to its end, `beat` the seconds since its heartbeat changed; each is None when
    unknown. `curve` is the sweep's metric over time, thinned out. `backend` is the backend of its
    latest attempt, in a sweep with several. `value` is what the run is judged by, `diverged` says
    whether its last value was not finite, `rank` is its place among the runs that count, `marks`
    are the notes on it.
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
    said: str = ""
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
        """The state, or the problem of a run in it. A silent worker may be waiting or not, which
        cannot be known; a waiting one takes no steps."""
        if self.silent and self.state == "running":
            return "silent"
        if self.waits:
            return "waiting"
        return "stalled" if self.stalled else self.state

    @property
    def done_steps(self) -> float | None:
        """The last step. Of a run that succeeded at its last step it is the number of steps,
        whether the program counts from 0 or from 1."""
        if self.step is None or self.total is None or self.state != "succeeded":
            return self.step
        return float(self.total) if self.step + 1 == self.total else self.step

    @property
    def counts(self) -> bool:
        """Whether the run takes part in means and ranks."""
        return counts_so_far(self.state, self.wants, self.value, self.diverged)

    @property
    def remark(self) -> str:
        """Further information about the run, in a few words."""
        if self.silent:
            return "no heartbeat"
        at = f"on {self.backend}" if self.backend else ""
        if self.waits:
            return "; ".join(filter(None, (at, self.waits)))
        return "; ".join(filter(None, (at, self.observed, self._ended)))

    @property
    def _ended(self) -> str:
        return ": ".join(filter(None, (self.reason, self.said)))


class SweepView(NamedTuple):
    """A sweep as the screen shows it. `launcher`: one is running. `held` says why it starts
    nothing, `unreachable` what does not answer it, `limit` how many jobs it allows at once if that
    is less than `parallel`. `problem` says why this view is outdated; `loading` counts the runs
    whose metrics are still to be read; `costs` describes the usage so far and the expected rest.
    `stages` has the names and goals of the stages, if there are any: runs are compared within a
    stage only. `race` says how a race for seeds stands."""

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
        """Return one stage, as if it were the sweep."""
        runs = tuple(run for run in self.runs if stage_of(run) == stage)
        return self._replace(runs=runs, goal=goal, stages=())

    @property
    def counts(self) -> Counter[str]:
        """The number of runs in each state, as shown."""
        return Counter(run.shown_state for run in self.runs)

    @property
    def ended(self) -> bool:
        """Whether the sweep is over: nothing runs, and no launcher is running that would start
        anything."""
        return not self.launcher and not any(
            run.state in ("running", "submitted") for run in self.runs
        )


def stage_of(run: RunView) -> str:
    """Return the stage of a run, with which its cell begins."""
    return run.cell.partition("/")[0]


_TOTALS = (
    *("max_steps", "num_steps", "total_steps", "n_steps", "steps", "max_iterations"),
    *("num_iterations", "n_iterations", "iterations", "num_batches", "n_batches", "max_batches"),
)


def total_steps(config: Mapping[str, object], defaults: Mapping[str, object]) -> int | None:
    """Return how many steps a run will take, if its configuration or its recipe's defaults say so
    under one of the usual names."""
    for known in (config, defaults):
        for key in _TOTALS:
            total = known.get(key)
            if isinstance(total, int | float) and not isinstance(total, bool) and total >= 1:
                return int(total) if math.isfinite(total) else None
    return None


def remaining(
    fraction: float | None,
    seen: tuple[float, float] | None,
    since: float | None,
    now: float,
) -> float | None:
    """Return the seconds until a run is done, given the `fraction` done. `seen` is an earlier
    observation: its time and the share done then. Without one, `since` is when the run began with
    nothing done. None while its speed is unknown."""
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
    """Return the seconds until a sweep is done. `at_work` has the seconds left of each run at
    work; `waiting` runs of `typical` seconds follow, each in the first of `slots` that is free.
    None while that is unknown."""
    known = [one for one in at_work if one is not None]
    if at_work and not known and typical is None:
        return None
    usual = typical if typical is not None else max(known, default=None)
    if usual is None:
        return None if waiting else 0.0
    free = [usual if one is None else one for one in at_work]
    free += [0.0] * max(0, slots - len(free))
    heapq.heapify(free)
    if len(at_work) > slots:  # the limit has dropped: the first to end are not followed
        free = sorted(free)[len(at_work) - max(slots, 1) :]
        heapq.heapify(free)
    for _ in range(waiting):
        heapq.heapreplace(free, free[0] + usual)
    return max(free, default=0.0)


def counts_so_far(state: str, wants: bool, value: float | None, diverged: bool) -> bool:
    """Return whether a run takes part in means and ranks. A run that is over counts as in the
    report; any other by the value reached so far (`wants`: it is still to be started, or started
    again)."""
    return counts("succeeded" if wants or state in OPEN else state, value, diverged)


def ranks(values: Mapping[str, float | None], goal: str) -> dict[str, int]:
    """Rank the runs with a finite value, from 1; equal values share a rank."""
    sign = sign_of(goal)
    finite = [
        (sign * one, run) for run, one in values.items() if one is not None and math.isfinite(one)
    ]
    rank_of: dict[str, int] = {}
    before: tuple[float, int] | None = None
    for place, (number, run) in enumerate(sorted(finite), start=1):
        before = before if before is not None and before[0] == number else (number, place)
        rank_of[run] = before[1]
    return rank_of


def best_run(runs: Iterable[RunView], other_than: str = "") -> RunView | None:
    """Return the run of the best rank other than `other_than`; None without values."""
    ranked = [run for run in runs if run.rank is not None and run.id != other_than]
    return min(ranked, key=lambda run: run.rank or 0, default=None)


def coarse(seconds: float | None) -> float | None:
    """Round to the displayed precision, so that views that look the same compare equal."""
    if seconds is None:
        return None
    grain = 5.0 if seconds < 60 else 60.0 if seconds < 3600 else 300.0
    return seconds // grain * grain


def nearly(seconds: float | None) -> float | None:
    """Round an estimated time to the displayed precision."""
    if seconds is None:
        return None
    return coarse(seconds + (2.5 if seconds < 60 else 30.0 if seconds < 3600 else 150.0))
