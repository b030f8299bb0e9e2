"""A sweep and its runs, read from a store. `registry.py` finds sweeps and makes DataFrames of
them."""

import functools
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeper.common import codec
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.cache_folder import Folder, Index
from sweeper.metrics.sources import Files
from sweeper.results.origins import Launches, Origin
from sweeper.results.runs import OPEN_DAY, OnError, RecordedRun, Used
from sweeper.store.base import each
from sweeper.sweep.event import NOTHING, Outcome
from sweeper.sweep.folder import INFORMATIVE, SweepFolder
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.plan import Run
from sweeper.sweep.states import OUTCOMES, Event, RunState, State, fold, is_finished
from sweeper.sweep.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from sweeper.sweep.heartbeats import Heartbeat
    from sweeper.sweep.run_record import Times

_PLANNED = RunState(State.PLANNED, 0, 0, None)
_NO_EVENTS: set[tuple[int, Event]] = set()
_END_EVENTS = (*OUTCOMES, Event.CLAIMED)
"""Events with facts about the end of an attempt, the most informative first."""


class Sweep:
    """A launched grid: its plan and its runs.

    The plan and the states are read once, when the object is made. Results are read on demand, or
    taken from the cache `memory`. Runs that have events but are not in the plan are left out.
    Errors about unreadable files of runs are passed to `on_error`, or raised if it is None. Raises
    `NotFound` if the sweep does not exist, `StoreError` if its plan is damaged.
    """

    def __init__(
        self, folder: SweepFolder, memory: Folder | None = None, on_error: OnError | None = None
    ) -> None:
        self.store = folder.store
        self.name = folder.name
        self.root = folder.store.root
        self.on_error = on_error
        self.plan = folder.read_plan()
        self._metrics: dict[str | None, dict[str, str] | None] = {}
        self.folder = folder.with_metrics_in(self.plan.launch.metrics_dir)
        self.index = Index(memory, f"sweep {folder.name}")
        self.files = Files(folder.store, self.folder.runs)
        self.state_files = Files(folder.store, self.folder.state)
        elsewhere = self.state_files.local is None
        self.events = folder.peek_events(self.state_files.entries() if elsewhere else None)
        folded: dict[int, RunState] = {}
        for events in self.events.values():
            if id(events) not in folded:
                folded[id(events)] = fold(events)
        self._states = {run: folded[id(events)] for run, events in self.events.items()}
        self._finished: dict[tuple[int, str | None, bool], bool] = {}

    @property
    def metric(self) -> dict[str, str] | None:
        """The metric's name, goal and `at`, or None if the grid has no metric."""
        return None if self.plan.metric is None else self.plan.metric._asdict()

    def metric_of(self, stage: str | None) -> dict[str, str] | None:
        """Return the metric of the runs of a stage; None if the stage has no metric."""
        if stage not in self._metrics:
            metric = self.plan.of(stage).metric
            self._metrics[stage] = None if metric is None else metric._asdict()
        return self._metrics[stage]

    @property
    def axes(self) -> dict[str, list[object]]:
        """The declared axes and their values, in grid order, without the seed."""
        return self.plan.axes

    @functools.cached_property
    def unseeded(self) -> bool:
        """Whether the runs of a cell are replicates without a seed (`seeds: {field: none}`)."""
        return self.plan.unseeded

    @property
    def path(self) -> str:
        """The folder of the sweep: a local path, or an address on a remote store."""
        return self.store.local_path(self.name) or f"{self.root.rstrip('/')}/{self.name}"

    @property
    def race(self) -> str | None:
        """A sentence about the progress of the sweep's race; None if the sweep has no race."""
        if self.plan.race is None:
            return None
        from sweeper.sweep.race import sentence  # imported late: few sweeps race

        return sentence(self.plan)

    @functools.cached_property
    def launches(self) -> Launches:
        """The recorded launches of the sweep."""
        return Launches(self.folder, self.plan)

    @functools.cached_property
    def runs(self) -> tuple["SweepRun", ...]:
        """Every planned run, in the order of the plan."""
        return tuple(
            SweepRun(self, planned, self._states.get(planned.id, _PLANNED))
            for planned in self.plan.runs
        )

    def is_finished(self, run: str, stage: str | None, *, retired: bool) -> bool:
        """Return whether a run is finished (`states.is_finished`)."""
        events = self.events.get(run, _NO_EVENTS)
        key = id(events), stage, retired
        finished = self._finished.get(key)
        if finished is None:
            finished = is_finished(events, self.plan.retries_of(stage), retired=retired)
            self._finished[key] = finished
        return finished

    @property
    def last_event(self) -> str | None:
        """The time of the last event of the sweep's runs (UTC, ISO 8601); None before the first."""
        return max(filter(None, (run.last_event for run in self.runs)), default=None)

    @functools.cached_property
    def _by_id(self) -> dict[str, "SweepRun"]:
        return {run.id: run for run in self.runs}

    def ancestors(self, run: str) -> tuple["SweepRun", ...]:
        """Return the runs of earlier stages from which a run started, directly or indirectly,
        nearest first."""
        if not self._by_id[run].parents:
            return ()
        from sweeper.sweep.stage_runs import lineage  # imported late: most sweeps have no stages

        planned_runs = {planned.id: planned for planned in self.plan.runs}
        return tuple(self._by_id[above.id] for above in lineage(planned_runs[run], planned_runs))

    def unreadable(self, error: StoreError) -> None:
        """Pass an error about an unreadable file to `on_error`, or raise it without `on_error`."""
        if self.on_error is None:
            raise error
        self.on_error(error)

    def write_report(self, files: Mapping[str, bytes]) -> list[str]:
        """Write files into the sweep's `report/` folder. Return their paths or addresses."""

        def write(name: str) -> str:
            path = f"{self.folder.report}/{name}"
            self.store.replace(path, files[name])
            return self.store.local_path(path) or f"{self.root.rstrip('/')}/{path}"

        return each(self.store, write, files)


class _Ending(NamedTuple):
    """The cached outcome of a run, for tables."""

    reason: str | None = None
    started: str | None = None
    ended: str | None = None
    wall_s: float | None = None
    launch: str | None = None
    program: str | None = None
    opened: str | None = None


_END = f"end {' '.join(_Ending._fields)}"
"""The name of an `_Ending` in the cache. The name changes if the fields change."""


class SweepRun(RecordedRun):
    """A run in the plan of a sweep."""

    def __init__(self, sweep: Sweep, planned: Run, state: RunState) -> None:
        super().__init__(sweep.folder, sweep.files, sweep.index, sweep.on_error)
        self._sweep = sweep
        self._state = state
        self._planned = planned
        self._unreadable = False
        self.id = planned.id
        self.name = planned.name
        self.cell = planned.cell
        self.seed = planned.seed
        self.state = state.state
        self.attempts = state.opened
        self.retired = planned.retired
        self.stage = planned.stage
        self.parents = planned.parents
        self.metric = sweep.metric_of(planned.stage)

    @functools.cached_property
    def config(self) -> dict[str, object]:
        return dict(self._planned.config)

    @property
    def race(self) -> str | None:
        """A sentence about the progress of the sweep's race; None if the sweep has no race."""
        return self._sweep.race

    def folders(self) -> list[str]:
        attempts = range(1, max(self.attempts, self._state.attempt) + 1)
        return [self.sweep_folder.recorded(self.id, attempt) for attempt in attempts]

    def log_paths(self) -> list[str]:
        attempts = range(1, max(self.attempts, self._state.attempt) + 1)
        return [self.sweep_folder.log_path(self.id, attempt) for attempt in attempts]

    @property
    def folder(self) -> str:
        return self.sweep_folder.log_path(self.id, max(self._state.attempt, 1))

    @functools.cached_property
    def outcome(self) -> Outcome:
        def read() -> Outcome:
            return self.sweep_folder.read_outcome(self.id, self._state)

        return self.readable(read, NOTHING)

    @property
    def reason(self) -> str | None:
        return self._ending.reason

    @property
    def last_event(self) -> str | None:
        def read() -> str | None:
            times: list[str | None] = []
            for attempt, event in self.events:
                with suppress(NotFound):
                    times.append(self.readable(partial(self._body, attempt, event), NOTHING).time)
            return max(filter(None, times), default=None)

        path, stamp = self.sweep_folder.event, self._sweep.state_files.stamp
        files = ((f"{n}.{event}", stamp(path(self.id, n, event))) for n, event in self.events)
        return self.index.recall(self.id, "last event", files, read)

    @property
    def times(self) -> "Times":
        ending = self._ending
        return {"started": ending.started, "ended": ending.ended, "wall_s": ending.wall_s}

    @functools.cached_property
    def _ending(self) -> _Ending:
        """The outcome of the run, cached as long as its event files are unchanged."""
        ends = sorted(
            (attempt, event)
            for attempt, event in self._sweep.events.get(self.id, ())
            if (attempt, event) == (self._state.attempt, self._state.event)
            or (attempt < self._state.attempt and event in _END_EVENTS)
        )
        endings: list[_Ending] = []

        def read() -> list[Any] | None:
            endings.append(self._read_ending())
            # Do not cache: an unreadable file may become readable without a new stamp.
            return None if self._unreadable else list(endings[0])

        def recall() -> _Ending:
            path, stamp = self.sweep_folder.event, self._sweep.state_files.stamp
            files = ((f"{n}.{event}", stamp(path(self.id, n, event))) for n, event in ends)
            recalled = self.index.recall(self.id, _END, files, read)
            return endings[0] if recalled is None else _Ending(*recalled)

        return self.readable(recall, _Ending())

    def _read_ending(self) -> _Ending:
        self._unreadable = False
        last = self.outcome
        # The event of a lost attempt does not contain the start, but the attempt's claim does.
        started = last.started or self.ended(self._state.attempt).started
        walls = [last.wall_s]
        for attempt in range(self._state.attempt - 1, 0, -1):
            earlier = self.ended(attempt)
            started = earlier.started or started
            walls.append(earlier.wall_s)
        self._unreadable |= last is NOTHING and self._state.event in INFORMATIVE
        known_walls = [wall for wall in walls if wall is not None]
        return _Ending(
            last.reason,
            started,
            last.ended,
            sum(known_walls) if known_walls else None,
            *self._launch_of(self._state.attempt, last),
        )

    def _launch_of(
        self, attempt: int, outcome: Outcome
    ) -> tuple[str | None, str | None, str | None]:
        happened = self._sweep.events.get(self.id, ())
        for event in (Event.CLAIMED, Event.INTENT):
            if outcome.launch is not None or (attempt, event) not in happened:
                continue
            if outcome.program is not None or self._sweep.launches.is_certain:
                continue  # nothing more to learn
            with suppress(NotFound):
                outcome = self.readable(partial(self._body, attempt, event), NOTHING)
        return outcome.launch, outcome.program, outcome.time

    def used(self, attempt: int) -> Used:
        """Return the usage in the outcome of an attempt. If no outcome has recorded usage, return
        the usage that the worker last reported."""
        happened = self._sweep.events.get(self.id, ())
        events = [event for event in OUTCOMES if (attempt, event) in happened]
        used_of: list[Used] = []

        def read() -> tuple[dict[str, object], str] | None:
            ended = self.ended(attempt)
            used_of.append(Used(ended.usage, (ended.ended or ended.time or OPEN_DAY)[:10]))
            counted = events and ended.usage != NO_USAGE
            return (ended.usage.document(), used_of[0].day) if counted else None

        path, stamp = self.sweep_folder.event, self._sweep.state_files.stamp
        files = ((f"{attempt}.{event}", stamp(path(self.id, attempt, event))) for event in events)
        recalled = self.index.recall(self.id, f"used {attempt}", files, read)
        if recalled is not None:
            return Used(codec.read(Usage, recalled[0], "cache"), recalled[1])
        if used_of[0].usage != NO_USAGE:
            return used_of[0]
        return used_of[0]._replace(usage=self.heartbeat(attempt).usage)

    def heartbeat(self, attempt: int) -> "Heartbeat":
        """Return the last heartbeat of an attempt's worker."""
        # Imported late: only running runs need it.
        from sweeper.sweep.heartbeats import read_heartbeat

        return read_heartbeat(self.store, self.sweep_folder.heartbeat(self.id, attempt))

    def ended(self, attempt: int) -> Outcome:
        """Return the outcome of an attempt, or its claim if it has no readable outcome; `NOTHING`
        if neither can be read."""
        happened = self._sweep.events.get(self.id, ())
        for event in (event for event in _END_EVENTS if (attempt, event) in happened):
            with suppress(NotFound):
                outcome = self.readable(partial(self._body, attempt, event), NOTHING)
                if outcome is not NOTHING:
                    return outcome
                self._unreadable = True
        return NOTHING

    def _body(self, attempt: int, event: Event) -> Outcome:
        return self.sweep_folder.read_event(self.id, attempt, event)

    @property
    def awaited(self) -> bool:
        """Whether runs of a later stage may still start from this run."""
        plan = self._sweep.plan
        later = (stage for stage in plan.stages if stage.name in plan.unknown)
        return not self.retired and any(self.stage in stage.before for stage in later)

    @property
    def lineage(self) -> tuple["SweepRun", ...]:
        """The runs of earlier stages from which this run started, nearest first."""
        return self._sweep.ancestors(self.id)

    @property
    def origin(self) -> Origin | None:
        ending = self._ending
        if not self._state.attempt:
            return None
        return self._sweep.launches.of(ending.launch, ending.program, ending.opened)

    def origin_of(self, attempt: int) -> Origin | None:
        """Return the provenance of an attempt, which may still be waiting; None if unknown."""
        return self._sweep.launches.of(*self._launch_of(attempt, self.ended(attempt)))

    @property
    def provenance(self) -> dict[str, object]:
        """The provenance of the code and packages that the run used. If the run has not started, or
        its provenance is unknown, this is the provenance of the last launch."""
        origin = self.origin
        return dict(self._sweep.plan.provenance or {}) if origin is None else origin.record

    @property
    def command(self) -> list[str] | None:
        """The command that the run executes; None if the recipe is not a command."""
        template = self._sweep.plan.recipe_of(self.stage).command
        if template is None:
            return None
        from sweeper.recipe.command_template import render_command

        facts = {"log_path": self.path, "run": self.id, "attempt": self.attempts or 1}
        seed = {} if self.seed is None else {"seed": self.seed}
        return render_command(template, {**self.config, **facts, **seed})

    @property
    def unseeded(self) -> bool:
        """Whether the run is a replicate without a seed (`seeds: {field: none}`)."""
        return self._sweep.unseeded

    @property
    def retired_ones(self) -> int:
        """The number of the sweep's runs that have started and are no longer in the grid."""
        return sum(run.retired and run.attempts > 0 for run in self._sweep.runs)

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished (`states.is_finished`)."""
        return self._sweep.is_finished(self.id, self.stage, retired=self.retired)

    @property
    def wandb(self) -> str | None:
        """The address of the run at W&B, if known."""
        from sweeper.sweep.tracking import link

        return link(self._sweep.plan, self.id)

    @property
    def launch(self) -> Launch:
        """The settings with which the sweep executes its runs."""
        return self._sweep.plan.launch

    @property
    def backend(self) -> str | None:
        return self.backend_of(self.attempts) if self.launch.backends and self.attempts else None

    def backend_of(self, attempt: int) -> str:
        """Return the backend of an attempt; the sweep's first backend if no backend is recorded."""
        first = self.launch.places[0]
        if not self.launch.backends:
            return first

        def read() -> list[object] | None:
            place = self.sweep_folder.place_of(self.id, attempt)
            return None if place is None else [place]

        def recall() -> str:
            stamp = self._sweep.state_files.stamp(
                self.sweep_folder.event(self.id, attempt, Event.INTENT)
            )
            files = [(f"{attempt}.{Event.INTENT}", stamp)]
            recorded = self.index.recall(self.id, f"backend {attempt}", files, read)
            return first if recorded is None else str(recorded[0])

        return self.readable(recall, first)

    @property
    def events(self) -> list[tuple[int, Event]]:
        """The events of the run, sorted by attempt, and then in the order of `Event`."""
        order = list(Event)
        events = self._sweep.events.get(self.id, set())
        return sorted(events, key=lambda pair: (pair[0], order.index(pair[1])))
