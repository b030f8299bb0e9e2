"""The poller, which makes a `SweepView` of a sweep. A poll reads only what has changed, and only
from the store, so the view works on any machine that can reach the store."""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from sweeper.alarms.records import Alarm as Recorded
from sweeper.alarms.records import read as read_alarms
from sweeper.common.last_line import cause
from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.sources import Files
from sweeper.money import prices
from sweeper.money.forecast import brief
from sweeper.results.marks import Marked, by_subject
from sweeper.results.metrics_follower import Follower
from sweeper.results.progress import reached
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.sweep.event import NOTHING, Outcome
from sweeper.sweep.folder import INFORMATIVE, SweepFolder
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import NO_OBSERVATIONS, Observations, held_of
from sweeper.sweep.lock import is_held
from sweeper.sweep.marks import Mark, Marks, read_marks
from sweeper.sweep.metric import Metric
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Run
from sweeper.sweep.race import sentence
from sweeper.sweep.states import OPEN, RunState, State
from sweeper.tui.model import Alarm, RunView, SweepView, coarse, counts_so_far, ranks
from sweeper.tui.run_views import (
    RunFacts,
    States,
    Timing,
    by_our_clock,
    is_kind,
    past_points,
    run_view,
    sweep_left,
    why_waits,
)
from sweeper.tui.series import Series

_LOADING_SECONDS = 0.2
"""Seconds that one poll may spend on reading older metrics. The next poll continues."""
_REMOTE_OUTCOMES = 20
_REMOTE_BEATS = 16
_PLANNED = RunState(State.PLANNED, 0, 0, None)
_SAID_BYTES = 16_384


class Poller:
    """A poller of one sweep. Raises `NotFound` if the sweep does not exist. `clock` returns
    monotonic seconds, and `wall` returns seconds since 1970."""

    def __init__(
        self,
        folder: SweepFolder,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._store = folder, folder.store
        self._clock, self._wall = clock, wall
        self._remote = folder.store.is_remote
        self._memory = Folder(folder.store.root)
        self._plan_stamp: object = None
        self._view: SweepView | None = None
        self._open()

    def _open(self) -> None:
        """Read the plan, and discard everything that was read before."""
        stamp = self._stamp(self._folder.plan)
        self.sweep = Sweep(self._folder, self._memory)
        plan = self.sweep.plan
        self._folder = self.sweep.folder
        self._runs = plan.runs
        self._ids = [run.id for run in self._runs]
        self._stage_of = {run.id: run.stage for run in self._runs}
        self._metrics: dict[str | None, Metric | None] = {None: plan.metric}
        if plan.stages:
            self._metrics = {stage.name: stage.metric for stage in plan.stages}
        self._retired = {run.id for run in self._runs if run.retired}
        self._launch = plan.launch
        self._timing = Timing(plan, self._clock)
        self._states = States(self._folder, lambda run: plan.retries_of(self._stage_of.get(run)))
        self._beats = Heartbeats(self._folder, self._clock, wall=self._wall, most=_REMOTE_BEATS)
        self._followed: set[str] = set()
        self._follower = Follower(() if self._remote else self.sweep.runs)
        self._series: dict[str, Series] = {}
        self._loaded: dict[str, int] = {}
        self._pending = dict.fromkeys(self._ids)
        self._unreadable: dict[str, None] = {}
        self._bodies: dict[str, Outcome] = {}
        self._last_words: dict[str, str] = {}
        self._backends: dict[str, str] = {}  # only in sweeps with several backends
        self._unread = dict.fromkeys(self._ids)
        self._alarms: dict[str, Recorded] = {}
        self._marks: dict[str, Mark] = {}
        self._moves = 0
        self._ranked: tuple[int, dict[str, int]] = (-1, {})
        self._made: dict[str, tuple[RunFacts, RunView]] = {}
        self._observed: tuple[object, Observations] = (None, NO_OBSERVATIONS)
        self._plan_stamp = stamp  # only after everything was read

    def _stamp(self, path: str) -> object:
        """Return a value that changes when the file changes. Return None if the file is missing or
        the store is remote."""
        full = self._store.local_path(path)
        if full is None:
            return None
        try:
            status = os.stat(full)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def run(self, identity: str) -> SweepRun:
        """Return the handle of the run with the id `identity`, in the run's current state."""
        planned = next(run for run in self._runs if run.id == identity)
        handle = SweepRun(self.sweep, planned, self._states.known.get(identity, _PLANNED))
        handle.files = Files(self._store, self._folder.runs)
        return handle

    def check(self) -> SweepView:
        """Poll the sweep. If nothing has changed, return the same object as the last call. If the
        store does not answer, return the last view with `problem` set. If there is no view yet,
        raise the error."""
        try:
            view = self._look()
        except (StoreError, OSError) as error:
            if self._view is None:
                raise
            view = self._view._replace(problem=str(error))
        if view != self._view:
            self._view = view
        return self._view or view

    def _look(self) -> SweepView:
        changed = not self._remote and self._stamp(self._folder.plan) != self._plan_stamp
        if changed or self._has_grown():
            self._open()
        for run in self._states.check(self._ids):
            self._unread[run] = None
            self._moves += 1
            if self._loaded.get(run, 0) != self._states.known[run].opened:
                self._pending[run] = None
        launcher = is_held(self._folder)
        problems: list[str] = []
        observations = self._observations(problems)
        if self._remote and self._replanned(observations.pid):
            return self._look()
        opened = {
            run: state.attempt for run, state in self._states.known.items() if state.state in OPEN
        }
        self._beats.check(opened.items())
        problems = [*problems, self._follow(opened), self._poll(), self._load(opened)]
        problems.append(self._read_bodies(opened))
        alarms = self._read_alarms(problems)
        marks = self._read_marks(problems)
        return self._make(launcher, observations, alarms, marks)._replace(
            problem=next(filter(None, problems), "")
        )

    def _has_grown(self) -> bool:
        """Return whether the plan has grown since it was read: runs were chosen for a later stage,
        or a race has a new round."""
        plan = self.sweep.plan
        if plan.race is not None and plan.unknown:
            return self._store.exists(self._folder.race_round(len(plan.rounds) + 1))
        return any(self._folder.read_chosen(choice) for choice in plan.choices)

    def _poll(self) -> str:
        """Read new rows of metrics. Return the error, or ""."""
        try:
            rows = self._follower.poll()
        except (StoreError, OSError) as error:
            return str(error)
        for news in rows:
            if news.again:
                self._pending[news.run.id] = None
            elif news.run.id in self._series:
                self._moves += 1
                series = self._series[news.run.id]
                series.add(news.rows)
                if series.stale:
                    self._pending[news.run.id] = None
        return ""

    def _replanned(self, launcher: object) -> bool:
        """Read the plan again if another launcher has started since the last call. Return whether
        the plan was read. Only used on remote stores."""
        if self._plan_stamp == launcher:
            return False
        if self._view is None:
            self._plan_stamp = launcher
            return False
        self._open()
        self._plan_stamp = launcher
        return True

    def _follow(self, opened: Mapping[str, int]) -> str:
        """On a remote store, follow only the metrics of running runs, to save requests. When a run
        has ended, read its metrics once more. Return the error, or ""."""
        if not self._remote or set(opened) == self._followed:
            return ""
        follower = Follower([self.run(run) for run in opened])
        problem = self._poll()  # read what was recorded before the new attempt began
        if not problem:
            self._pending |= dict.fromkeys(self._followed - opened.keys())
            self._follower, self._followed = follower, set(opened)
        return problem

    def _observations(self, problems: list[str]) -> Observations:
        """Return the content of the launcher's file `observations.json`. On a local store, read
        the file again only if the file has changed."""
        stamp = self._stamp(self._folder.observations)
        if stamp is None and not self._remote:
            return NO_OBSERVATIONS
        if self._remote or stamp != self._observed[0]:
            try:
                self._observed = (stamp, self._folder.read_observations())
            except StoreError as error:
                problems.append(str(error))
                return NO_OBSERVATIONS
        return self._observed[1]

    def _read_alarms(self, problems: list[str]) -> dict[str, tuple[Alarm, ...]]:
        """Return the alarms of each run's latest attempt. Alarms of earlier attempts are
        outdated."""
        alarms: dict[str, list[Alarm]] = {}
        for alarm in read_alarms(
            self._folder, self._alarms, lambda error: problems.append(str(error))
        ):
            if alarm.attempt < self._states.known.get(alarm.run, _PLANNED).opened:
                continue
            text = f"{alarm.message}; {alarm.advice}" if alarm.advice else alarm.message
            alarms.setdefault(alarm.run, []).append(Alarm(alarm.rule, by_our_clock(text)))
        return {run: tuple(several) for run, several in alarms.items()}

    def _read_marks(self, problems: list[str]) -> Marked:
        """Read the marks of the sweep and its runs."""
        return by_subject(
            read_marks(self._folder, lambda error: problems.append(str(error)), self._marks)
        )

    # Records that were written earlier

    def _load(self, opened: Mapping[str, int]) -> str:
        """Read the metrics of runs whose metrics were not read yet, running runs first. Stop
        after `_LOADING_SECONDS`. Runs that cannot be read are tried again in the next poll.
        Return the first error, or ""."""
        self._pending |= self._unreadable
        self._unreadable = {}
        problem = ""
        deadline = self._clock() + _LOADING_SECONDS
        for run in sorted(self._pending, key=lambda run: run not in opened):
            if self._clock() > deadline:
                break
            del self._pending[run]
            try:
                self._load_one(run)
            except (StoreError, OSError) as error:
                self._unreadable[run] = None
                problem = problem or str(error)
        return problem

    def _load_one(self, run: str) -> None:
        metric = self._metrics.get(self._stage_of[run])
        series = Series(None) if metric is None else Series(*metric[:3])
        if run in self._series:
            series.version = self._series[run].version
        opened = self._states.known.get(run, _PLANNED).opened
        if opened:
            handle = self.run(run)
            points = () if metric is None else past_points(handle, metric.name, self._memory)
            series.load(points, reached(handle))
        self._moves += 1
        self._loaded[run] = opened
        self._series[run] = series

    def _read_bodies(self, opened: Mapping[str, int]) -> str:
        """Read the contents of new events, such as exit codes. Events of running runs come first.
        On a remote store, one poll reads only some events. Events that cannot be read are tried
        again in the next poll. Return the first error, or ""."""
        problem = ""
        budget = _REMOTE_OUTCOMES if self._remote else math.inf
        again: list[str] = []
        for run in sorted(self._unread, key=lambda run: run not in opened):
            if budget <= 0:
                break
            del self._unread[run]
            state = self._states.known.get(run)
            if state is not None and state.event is not None:
                budget -= 2 if state.state is State.FAILED else 1
                # The contents of an earlier event do not apply to this one.
                self._bodies.pop(run, None)
                self._last_words.pop(run, None)
                try:
                    body = self._bodies[run] = self._folder.read_outcome(run, state)
                    if self._launch.backends:
                        at = self._folder.place_of(run, state.opened)
                        self._backends[run] = at or ""
                    failed = state.state is State.FAILED
                    self._last_words[run] = (
                        (body.detail or self._outcome_text(run)) if failed else ""
                    )
                except (StoreError, OSError) as error:
                    again.append(run)
                    problem = problem or str(error)
                else:
                    if body is NOTHING and state.event in INFORMATIVE:
                        again.append(run)  # not in the store at the moment
        self._unread |= dict.fromkeys(again)
        return problem

    def _outcome_text(self, run: str) -> str:
        """Return the reason for a run's failure from the end of the run's log, or "" without a
        log."""
        try:
            tail = self.run(run).log_tail(limit=_SAID_BYTES)
        except NotFound:
            return ""
        return cause("\n".join(tail).encode())

    # Making views of records

    def _make(
        self,
        launcher: bool,
        observations: Observations,
        alarms: Mapping[str, tuple[Alarm, ...]],
        marks: Marked,
    ) -> SweepView:
        metric = self.sweep.plan.metric
        goal = "minimize" if metric is None else metric.goal
        if metric is not None and self._moves != self._ranked[0]:
            self._ranked = (self._moves, self._ranks())
        observed = observations.observed if launcher else NO_OBSERVATIONS.observed
        runs = tuple(
            self._run(
                planned, observed.get(planned.id), alarms.get(planned.id, ()), marks.of(planned.id)
            )
            for planned in self._runs
            if planned.id not in self._retired or self._is_open(planned.id)
        )
        limit = observations.limit if launcher else None
        view = SweepView(
            name=self._folder.name,
            runs=runs,
            metric=None if metric is None else self._metric_name(metric.name),
            goal=goal,
            stages=tuple(
                (stage.name, stage.metric.goal if stage.metric else goal)
                for stage in self.sweep.plan.stages
            ),
            axes=tuple(self.sweep.axes),
            launcher=launcher,
            parallel=self._launch.max_parallel,
            limit=limit,
            held=by_our_clock(held_of(observations) or ""),
            unreachable=by_our_clock((launcher and observations.unreachable) or ""),
            loading=len(self._pending),
            race=sentence(self.sweep.plan) or "",
        )
        durations = [
            body.wall_s
            for run, body in self._bodies.items()
            if body.wall_s is not None and self._states.known[run].state is State.SUCCEEDED
        ]
        return view._replace(eta=sweep_left(view, durations), costs=_costs(observations))

    def _ranks(self) -> dict[str, int]:
        """Return {run: rank}. A run is ranked among the runs of the same stage."""
        values: dict[str | None, dict[str, float | None]] = {}
        for run, series in self._series.items():
            if run in self._stage_of:
                value = series.value
                if self._counts(run, value, series.diverged):
                    values.setdefault(self._stage_of[run], {})[run] = value
        rank_of: dict[str, int] = {}
        for stage, values_of_stage in values.items():
            metric = self._metrics.get(stage)
            if metric is not None:
                rank_of |= ranks(values_of_stage, metric.goal)
        return rank_of

    def _metric_name(self, name: str) -> str:
        """Return the metric's name, or `metric` if stages have different metrics."""
        names = {metric.name for metric in self._metrics.values() if metric is not None}
        return name if len(names) <= 1 else "metric"

    def _counts(self, run: str, value: float | None, diverged: bool) -> bool:
        """Return whether a run is ranked."""
        state = self._states.known.get(run, _PLANNED).state
        if run in self._retired and state not in OPEN:
            return False
        wants = run not in self._retired and self._states.wants(run)
        return counts_so_far(state.value, wants, value, diverged)

    def _is_open(self, run: str) -> bool:
        return self._states.known.get(run, _PLANNED).state in OPEN

    def _run(
        self, planned: Run, observed: Observation | None, alarms: tuple[Alarm, ...], marks: Marks
    ) -> RunView:
        """Return the view of a run. If nothing about the run has changed, return the previous
        object."""
        identity: str = planned.id
        state = self._states.known.get(identity, _PLANNED)
        beat = None
        if state.state in OPEN:
            beat = self._beats.known.get((identity, state.attempt))
            beat = beat if beat is not None and beat.stamp else None
        since = None if beat is None else self._clock() - beat.seen
        lease = self._launch.lease_s
        series = self._series.get(identity)
        again = state.state not in OPEN and identity in self._states.again
        wants = self._states.wants(identity)
        body = self._bodies.get(identity, NOTHING)
        facts = RunFacts(
            state=state,
            observed=observed,
            again=again,
            wants=identity not in self._retired and wants,
            waits=why_waits(state, observed, beat, body, again=again, wants=wants),
            alarms=alarms,
            marks=marks,
            body=body,
            backend=self._backends.get(identity, ""),
            last_line=self._last_words.get(identity, ""),
            version=0 if series is None else series.version,
            beat=coarse(since),
            late=is_kind(observed, Kind.STALE) or (since is not None and since > lease),
        )
        before, view = self._made.get(identity, (None, None))
        rank = self._ranked[1].get(identity)
        if view is None or before != facts:
            began = None if beat is None else beat.began
            view = run_view(planned, facts, series, self._timing, began)._replace(rank=rank)
            self._made[identity] = (facts, view)
        elif view.rank != rank:  # a run that improves changes the ranks of others
            view = view._replace(rank=rank)
            self._made[identity] = (facts, view)
        return view


def _costs(observations: Observations) -> str:
    """Describe the usage of the runs; "" if no usage was counted."""
    if observations.usage is None:
        return ""
    with suppress(UsageError):  # the price table cannot be read
        return brief(observations.usage, prices.load())
    return ""
