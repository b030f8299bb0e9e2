"""Looking at a sweep again and again: from its store to a `SweepView`, for the price of what has
changed. Reads the store and nothing else, so it works from any machine that reaches it."""

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sweeper.alarms.records import Alarm as Recorded
from sweeper.alarms.records import read as read_alarms
from sweeper.errors import NotFound, StoreError
from sweeper.records.following import Follower
from sweeper.records.runs import Sweep, SweepRun
from sweeper.states import OPEN, RunState, State
from sweeper.store.documents import read_json
from sweeper.store.files import Store
from sweeper.store.lock import is_held
from sweeper.store.sweeps import read_outcome
from sweeper.tables.keeping import Folder
from sweeper.tables.sources import Files
from sweeper.watch.past import last_row, past_points
from sweeper.watch.signs import Beats, States
from sweeper.watch.trails import Trail
from sweeper.watch.view import (
    Alarm,
    RunView,
    SweepView,
    coarse,
    nearly,
    ranks,
    remaining,
    sweep_remaining,
    total_steps,
)

__all__ = ["Looker"]

_LOADING_SECONDS = 0.2
"""How long one look may take to read metrics that were there before: the rest is read by the
next."""
_REMOTE_OUTCOMES = 20
_PLANNED = RunState(State.PLANNED, 0, 0, None)
_NO_OBSERVATIONS: Mapping[str, Any] = {"observed": {}}


class Looker:
    """Looks at one sweep. Raises `NotFound` when there is none. `clock` gives monotonic seconds,
    `wall` those since 1970."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._name = store, name
        self._clock, self._wall = clock, wall
        self._remote = store.local_path("") is None
        self._memory = Folder(store.root)
        self._plan_stamp: object = None
        self._view: SweepView | None = None
        self._open()

    def _open(self) -> None:
        """Read the plan, which a launch may have changed, and begin anew."""
        stamp = self._stamp(f"{self._name}/sweep.json")
        self.sweep = Sweep(self._store, self._name, self._memory)
        document = self.sweep.document
        self._layout = self.sweep.layout
        self._runs: list[dict[str, Any]] = document["runs"]
        self._ids = [run["id"] for run in self._runs]
        self._launch: dict[str, Any] = document.get("launch") or {}
        self._takes = _defaults(document)
        self._totals = {
            run["id"]: total_steps(run.get("config") or {}, self._takes) for run in self._runs
        }
        self._states = States(self._store, self._layout)
        self._beats = Beats(self._store, self._layout, self._clock, self._wall)
        self._followed: set[str] = set()
        self._follower = Follower(() if self._remote else self.sweep.runs)
        self._trails: dict[str, Trail] = {}
        self._loaded: dict[str, int] = {}
        self._pending = dict.fromkeys(self._ids)
        self._bodies: dict[str, dict[str, Any]] = {}
        self._unread = dict.fromkeys(self._ids)
        self._progress: dict[str, tuple[int, float, float]] = {}
        self._alarms: dict[str, Recorded] = {}
        self._moves = 0
        self._ranked: tuple[int, dict[str, int]] = (-1, {})
        self._made: dict[str, tuple[tuple[Any, ...], RunView]] = {}
        self._observed: tuple[object, Mapping[str, Any]] = (None, _NO_OBSERVATIONS)
        self._plan_stamp = stamp  # now that all of it was read

    def _stamp(self, path: str) -> object:
        """What changes with a file of a local store; None on a remote one."""
        full = self._store.local_path(path)
        if full is None:
            return None
        try:
            status = os.stat(full)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def run(self, identity: str) -> SweepRun:
        """A run as it is now, to read what it recorded."""
        planned = next(run for run in self._runs if run["id"] == identity)
        made = SweepRun(self.sweep, planned, self._states.known.get(identity, _PLANNED))
        made.files = Files(self._store, self._layout.runs)
        return made

    def look(self) -> SweepView:
        """The sweep as it is now: the same object as last time when nothing has changed. A store
        that does not answer is a `problem` beside what was known."""
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
        if not self._remote and self._stamp(f"{self._name}/sweep.json") != self._plan_stamp:
            self._open()
        for run in self._states.look(self._ids):
            self._unread[run] = None
            if self._loaded.get(run, 0) != self._states.known[run].opened:
                self._pending[run] = None
        launcher = is_held(self._store, self._name)
        observations = self._observations()
        if self._remote and self._replanned(observations.get("pid")):
            return self._look()
        opened = {
            run: state.attempt for run, state in self._states.known.items() if state.state in OPEN
        }
        self._beats.look(opened.items())
        self._follow(opened)
        for news in self._follower.poll():
            if news.again:
                self._pending[news.run.id] = None
            elif news.run.id in self._trails:
                self._moves += 1
                self._trails[news.run.id].add(news.rows)
        self._load(opened)
        self._read_bodies(opened)
        alarms = self._read_alarms()
        return self._make(launcher, observations, alarms)

    def _replanned(self, launcher: object) -> bool:
        """Whether the plan of a remote store was read again: there its stamp is not cheap, but each
        launch has a launcher of its own."""
        if self._plan_stamp == launcher:
            return False
        if self._view is None:
            self._plan_stamp = launcher
            return False
        self._open()
        self._plan_stamp = launcher
        return True

    def _follow(self, opened: Mapping[str, int]) -> None:
        """See that the metrics of the right runs are followed: all, or where each look at one
        costs, those at work; of the others all is read once more."""
        if not self._remote or set(opened) == self._followed:
            return
        gone = self._followed - opened.keys()
        self._pending |= dict.fromkeys(gone)
        self._followed = set(opened)
        self._follower = Follower([self.run(run) for run in self._followed])

    def _observations(self) -> Mapping[str, Any]:
        """What the launcher has published; read again when its file has changed."""
        stamp = self._stamp(self._layout.observations)
        if stamp is None and not self._remote:
            return _NO_OBSERVATIONS
        if self._remote or stamp != self._observed[0]:
            try:
                found = read_json(self._store, self._layout.observations)
            except NotFound:
                found = dict(_NO_OBSERVATIONS)
            self._observed = (stamp, found)
        return self._observed[1]

    def _read_alarms(self) -> dict[str, tuple[Alarm, ...]]:
        """Those of each run's newest attempt: what was wrong with one before it is over."""
        found: dict[str, list[Alarm]] = {}
        for one in read_alarms(self._store, self._layout, self._alarms):
            if one.attempt < self._states.known.get(one.run, _PLANNED).opened:
                continue
            text = f"{one.message}; {one.advice}" if one.advice else one.message
            found.setdefault(one.run, []).append(Alarm(one.run, one.rule, text))
        return {run: tuple(several) for run, several in found.items()}

    # What was there before

    def _load(self, opened: Mapping[str, int]) -> None:
        """Read the metrics of runs of which nothing is known yet, those at work first, for as long
        as a look may take."""
        if not self._pending:
            return
        deadline = self._clock() + _LOADING_SECONDS
        metric = self.sweep.metric or {}
        name, goal = metric.get("name"), metric.get("goal", "minimize")
        for run in sorted(self._pending, key=lambda run: run not in opened):
            if self._clock() > deadline:
                return
            del self._pending[run]
            trail = Trail(name, goal, metric.get("at", "last"))
            if run in self._trails:
                trail.version = self._trails[run].version
            self._moves += 1
            opened_now = self._states.known.get(run, _PLANNED).opened
            self._loaded[run] = opened_now
            if opened_now:
                handle = self.run(run)
                points = () if name is None else past_points(handle, name, self._memory)
                trail.load(points, last_row(handle))
            self._trails[run] = trail

    def _read_bodies(self, opened: Mapping[str, int]) -> None:
        """What the events say beside their names: when attempts began, how they ended. All of it
        where that is quick; on a remote store those of what is shown first."""
        budget = _REMOTE_OUTCOMES if self._remote else len(self._unread)
        for run in sorted(self._unread, key=lambda run: run not in opened):
            if budget <= 0:
                return
            del self._unread[run]
            state = self._states.known.get(run)
            if state is not None and state.event is not None:
                budget -= 1
                self._bodies[run] = read_outcome(self._store, self._name, run, state)

    # From what is known to what is shown

    def _make(
        self,
        launcher: bool,
        observations: Mapping[str, Any],
        alarms: Mapping[str, tuple[Alarm, ...]],
    ) -> SweepView:
        metric = self.sweep.metric or {}
        goal = metric.get("goal", "minimize")
        if metric and self._moves != self._ranked[0]:
            values = {run: trail.value for run, trail in self._trails.items()}
            self._ranked = (self._moves, ranks(values, goal))
        observed: Mapping[str, str] = observations["observed"] if launcher else {}
        runs = tuple(
            self._run(planned, observed.get(planned["id"], ""), alarms.get(planned["id"], ()))
            for planned in self._runs
            if not planned.get("retired") or self._is_open(planned["id"])
        )
        limit = observations.get("limit") if launcher else None
        view = SweepView(
            name=self._name,
            runs=runs,
            metric=metric.get("name"),
            goal=goal,
            axes=tuple(self.sweep.axes),
            launcher=launcher,
            parallel=int(self._launch.get("max_parallel") or 1),
            limit=limit,
            held=str(observations.get("held") or ""),
            unreachable=str(observations.get("unreachable") or "") if launcher else "",
            alarms=tuple(one for run in runs for one in run.alarms) + alarms.get("", ()),
            loading=len(self._pending),
        )
        return view._replace(eta=self._sweep_eta(view))

    def _is_open(self, run: str) -> bool:
        return self._states.known.get(run, _PLANNED).state in OPEN

    def _run(self, planned: Mapping[str, Any], observed: str, alarms: tuple[Alarm, ...]) -> RunView:
        """The run as it is shown: the same object while nothing about it has changed."""
        identity: str = planned["id"]
        state = self._states.known.get(identity, _PLANNED)
        trail, body = self._trails.get(identity), self._bodies.get(identity)
        beat = None
        if state.state in OPEN:
            beat = self._beats.known.get((identity, state.attempt))
        silent = None if beat is None else self._clock() - beat.seen
        lease: float = self._launch.get("lease_s") or 60.0
        late = observed == "stale" or (silent is not None and silent > lease)
        about = (
            *(state, observed, alarms, self._ranked[1].get(identity), body is None),
            *(0 if trail is None else trail.version, coarse(silent), late),
            "" if beat is None else beat.paused,
        )
        made = self._made.get(identity)
        if made is None or made[0] != about:
            view = self._run_anew(planned, state, trail, body or {}, about)
            made = self._made[identity] = (about, view)
        return made[1]

    def _run_anew(
        self,
        planned: Mapping[str, Any],
        state: RunState,
        trail: Trail | None,
        body: Mapping[str, Any],
        about: tuple[Any, ...],
    ) -> RunView:
        _, observed, alarms, rank, _, _, silent, late, paused = about
        identity: str = planned["id"]
        is_open = state.state in OPEN
        # The launcher publishes less often than a worker beats, but sees those of all stores.
        waits = paused or (observed[8:] if observed.startswith("paused: ") else "")
        fraction = self._fraction(identity, state, trail)
        eta = None
        if is_open and not waits:
            eta = self._eta(identity, state, fraction, body)
        return RunView(
            id=identity,
            name=planned["name"],
            cell=planned.get("cell", planned["name"]),
            seed=planned.get("seed"),
            config=planned.get("config") or {},
            state=state.state.value,
            attempt=state.opened,
            waits=_clock_only(waits) if is_open else "",
            observed="" if waits or state.state is State.SUCCEEDED else observed,
            reason=str(body.get("reason") or "") if not is_open else "",
            step=None if trail is None else trail.step,
            total=self._totals[identity],
            fraction=fraction,
            eta=nearly(eta),
            curve=() if trail is None else trail.curve,
            value=None if trail is None else trail.value,
            rank=rank,
            beat=silent,
            stale=is_open and late,
            alarms=alarms,
        )

    def _fraction(self, run: str, state: RunState, trail: Trail | None) -> float | None:
        if state.state is State.SUCCEEDED:
            return 1.0
        if trail is None or trail.step is None:
            return None
        if trail.done is not None:
            return trail.done
        total = self._totals[run]
        return None if total is None else min(1.0, (trail.step + 1) / total)

    def _eta(
        self, run: str, state: RunState, fraction: float | None, body: Mapping[str, Any]
    ) -> float | None:
        now = self._clock()
        if fraction is None:
            return None
        attempt, at, then = self._progress.get(run, (0, 0.0, 0.0))
        if attempt != state.attempt:
            attempt, at, then = self._progress[run] = (state.attempt, now, fraction)
        since = None
        if state.attempt == 1:  # a later one may have begun with something done
            began = _moment(body.get("started") or body.get("time"))
            since = None if began is None else now - max(0.0, self._wall() - began)
        return remaining(fraction, (at, then), since, now)

    def _sweep_eta(self, view: SweepView) -> float | None:
        if not view.launcher or view.held:
            return None
        at_work = [run.eta for run in view.runs if run.state in ("running", "submitted")]
        waiting = sum(run.state == "planned" or "next attempt" in run.observed for run in view.runs)
        took = [
            float(body["wall_s"])
            for run, body in self._bodies.items()
            if isinstance(body.get("wall_s"), int | float)
            and self._states.known[run].state is State.SUCCEEDED
        ] or [
            run.eta / (1.0 - run.fraction)
            for run in view.runs
            if run.eta and run.fraction is not None and run.fraction < 1.0
        ]
        typical = sum(took) / len(took) if took else None
        slots = view.limit or view.parallel
        return nearly(sweep_remaining(at_work, waiting, typical, slots))


def _clock_only(waiting: str) -> str:
    """`rate limit since 12:01:03Z` -> `rate limit since 12:01`."""
    head, since, rest = waiting.partition(" since ")
    return f"{head}{since}{rest[:5]}" if since else waiting


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's defaults, as recorded."""
    recipe: dict[str, Any] = document.get("recipe") or {}
    takes: dict[str, dict[str, Any]] = recipe.get("takes") or {}
    return {key: about.get("default") for key, about in takes.items()}
