"""The stages of a running sweep: which runs wait for which, which runs of a finished stage are
chosen, and which checkpoints later runs start from. Choices are recorded exclusively."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from sweeper.errors import AlreadyExists, StoreError, SweeperError
from sweeper.metrics.objective import sign_of
from sweeper.results.cells import choose_scale, mean
from sweeper.results.runs import RecordedRun
from sweeper.scheduler.context import Context
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.hint import hint
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.request import Request
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.run_table import RunTable, View
from sweeper.sweep.stage_inputs import LATE, PARENT, Choice, Chosen, filled, references
from sweeper.sweep.stage_runs import depths, lineage, value_of
from sweeper.sweep.stage_waits import Fate, Wait, fate_of, halted, holds_back, told_of, waits
from sweeper.sweep.states import OPEN, State

if TYPE_CHECKING:
    from sweeper.results.sweeps import Sweep


def choose(
    choice: Choice, runs: Mapping[str, RecordedRun], succeeded: Collection[str]
) -> tuple[tuple[str, float], ...]:
    """Return the chosen runs, each with its value; empty if no candidate has a finite value. Runs
    without a finite value are left out. `best` takes the best run and `top` the best few, the best
    first; among equal values the first in the plan wins. Runs that did not record the metric at
    their end come last, since they may have diverged. For `best-cell` see `_of_best_cell`."""
    metric = choice.metric._asdict()
    values: dict[str, float] = {}
    missing: set[str] = set()
    for run in choice.candidates:
        point = runs[run].value(metric) if run in succeeded and run in runs else None
        if point is not None and math.isfinite(point.value):
            values[run] = point.value
            missing |= {run} if point.missing else set()
    sign = sign_of(choice.metric.goal)
    if choice.take.how == "best-cell":
        return _of_best_cell(choice, runs, values, missing, sign)
    # `best` takes the first of these, `top` the first few.
    ordered = sorted(values, key=lambda run: (run in missing, sign * values[run]))
    return tuple((run, values[run]) for run in ordered[: choice.take.number])


def _of_best_cell(
    choice: Choice,
    runs: Mapping[str, RecordedRun],
    values: Mapping[str, float],
    missing: Collection[str],
    sign: float,
) -> tuple[tuple[str, float], ...]:
    """Return the runs of the best cell that have a value, each with its value; empty if no run has
    one. A cell is judged by its mean. Cells in which a run has no value rank last, unless the
    metric has `failed: drop`. Cells in which a run did not record the metric at its end rank just
    above those."""
    planned: dict[str, list[str]] = {}
    for run in choice.candidates:
        if run in runs:
            planned.setdefault(runs[run].cell, []).append(run)
    cells = {
        cell: [run for run in runs_of_cell if run in values]
        for cell, runs_of_cell in planned.items()
    }
    cells = {cell: runs_of_cell for cell, runs_of_cell in cells.items() if runs_of_cell}
    if not cells:
        return ()
    scale = choose_scale([values[run] for run in runs_of_cell] for runs_of_cell in cells.values())

    def rank(cell: str) -> tuple[bool, bool, float]:
        torn = choice.metric.failed != "drop" and len(cells[cell]) < len(planned[cell])
        doubtful = any(run in missing for run in cells[cell])
        return torn, doubtful, sign * mean(_values(values, cells[cell]), scale)

    best = min(cells, key=rank)
    return tuple((run, values[run]) for run in cells[best])


def _values(values: Mapping[str, float], runs: Sequence[str]) -> list[float]:
    return [values[run] for run in runs]


_SCHEME = "tinker://"

Pinned = Literal["kept", "gone", "unknown"]


class Pins:
    """The checkpoints that the service `service` was asked to keep. `env_file` has the environment
    of the launch. A service that could not be called is not called again."""

    def __init__(self, service: str, env_file: str | None) -> None:
        self._name, self._env_file = service, env_file
        self._pins: dict[str, Pinned] = {}
        self._away = False

    def keep(self, path: str) -> Pinned:
        """Ask the service to keep a checkpoint permanently. Return `kept` if it does, `gone` if it
        has no such checkpoint, and `unknown` if it cannot be called or the path belongs to no
        service."""
        if not path.startswith(_SCHEME):
            return "unknown"
        if path not in self._pins and not self._away:
            try:
                self._pins[path] = self._ask(path)
            except SweeperError:
                self._away = True
        return self._pins.get(path, "unknown")

    def _ask(self, path: str) -> Pinned:
        from sweeper.results import kept_checkpoints
        from sweeper.results.service_requests import of_service
        from sweeper.sweep.environment_file import read_environment

        service = of_service(self._name, read_environment(self._env_file))
        return (
            "kept"
            if kept_checkpoints.expire(service, kept_checkpoints.Kept(path, 0, None, None), None)
            else "gone"
        )


_PATHS = {"checkpoint.state": "state_path", "checkpoint.sampler": "sampler_path"}


class Missing(StoreError):
    """The error that a run takes a value from an ancestor that lacks this value. The message names
    the value."""


class _Lack(NamedTuple):
    """A value that other runs need and that `runs` do not have. `size` is the number of events of
    `runs`; after a new event, the value is looked up again."""

    runs: tuple[str, ...]
    size: int
    wait: Wait


class Stages:
    """The stages of one sweep, as of the last `check`. In a sweep without stages no run waits. A
    run waits in vain if its wait cannot end without a user's action."""

    def __init__(self, context: Context, run_table: RunTable, env_file: str | None = None) -> None:
        self._context, self._run_table = context, run_table
        self._plan = context.plan
        self._runs: dict[str, Wait] = {}
        self._stages: dict[str, Wait] = {}
        self._pins = Pins(self._plan.service, env_file)
        self._expiring: dict[str, str] = {}
        self._filled: dict[str, dict[str, object]] = {}
        self._lacking: dict[str, _Lack] = {}
        self._away: dict[str, Wait] = {}
        self._halted: dict[str, Wait] = {}
        self._depths = depths(self._plan.stages)
        self._recorded: Sweep | None = None
        self.trouble: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan with all runs that are known now."""
        return self._plan

    @property
    def messages(self) -> tuple[str, ...]:
        """Messages about runs that wait in vain, one for each reason, and about checkpoints that
        may expire before runs have started from them."""
        held = told_of(self._plan, self._runs, self._stages)
        return (*held, *dict.fromkeys(self._expiring.values()))

    @property
    def to_come(self) -> int:
        """The largest number of runs that stages that do not wait in vain may still create."""
        return sum(self._plan.unknown[name] for name, w in self._stages.items() if not w.vain)

    @property
    def held_back(self) -> int:
        """The number of runs that wait in vain, including runs that a stage has not created yet."""
        unknown = sum(self._plan.unknown[name] for name, w in self._stages.items() if w.vain)
        return unknown + sum(wait.vain for wait in self._runs.values())

    def in_vain(self, run: str) -> bool:
        """Return whether a run waits in vain."""
        return run in self._runs and self._runs[run].vain

    def check(self, cancelled: Request | None = None) -> None:
        """Check which runs have ended, and make the choices of finished stages, unless the sweep
        was `cancelled`. The attribute `trouble` gets the errors of files that cannot be read; the
        next check reads these files again."""
        if not self._plan.stages:
            return
        self._recorded = None
        trouble: list[str] = []
        # Earlier results that cannot have changed are not checked again, since a check reads the
        # whole sweep.
        lacking = self._lacking.items()
        self._lacking = {key: lack for key, lack in lacking if lack.size == self._size(lack.runs)}
        self._away = {}
        self._halted = halted(self._plan, cancelled)
        while True:  # If one run waits in vain, so do its descendants.
            self._wait()
            before = self._progress()
            if any(self._choose_or_report(choice, trouble) for choice in self._plan.choices):
                self._plan = self._context.folder.with_chosen(self._plan)
                self._run_table.grow(self._plan)
                self._halted = halted(self._plan, cancelled)
            else:
                self._see_all(trouble)
            if self._progress() == before:
                break
        self.trouble = tuple(dict.fromkeys(trouble))
        if cancelled is not None:
            self._cancel_fresh(cancelled)

    def _cancel_fresh(self, cancelled: Request) -> None:
        """Cancel runs that a choice created while the user was cancelling the sweep. The user's
        command has not cancelled these runs."""
        for run, view in self._run_table.views.items():
            at_work = view.wants or view.state.state in OPEN or view.state.unacknowledged
            fresh = view.state.opened <= 1 and self._run_table.runs[run].parents
            if at_work and fresh and not view.cancel:
                happened = set(self._run_table.events(run))
                retries = self._run_table.retries(run)
                request_cancel(self._context.folder, run, happened, retries, cancelled.by)

    def _choose_or_report(self, choice: Choice, trouble: list[str]) -> bool:
        try:
            return self._choose(choice)
        except StoreError as error:
            trouble.append(str(error))
            return False

    def _wait(self) -> None:
        lacking = {key: lack.wait for key, lack in self._lacking.items()}
        seen = {**self._halted, **lacking, **self._away}
        self._runs, self._stages = waits(self._plan, self._fate, seen)

    def _progress(self) -> tuple[object, ...]:
        choices = tuple(choice.key for choice in self._plan.choices)
        return len(self._plan.runs), choices, len(self._lacking), len(self._away)

    def _lacks(self, key: str, runs: Iterable[str], reason: str) -> None:
        """Record that these ended runs lack values that other runs need."""
        runs = tuple(runs)
        self._lacking[key] = _Lack(runs, self._size(runs), Wait(reason, vain=True))

    def _size(self, runs: Iterable[str]) -> int:
        views = self._run_table.views
        return sum(views[run].size for run in runs if run in views)

    def _see_all(self, trouble: list[str]) -> None:
        for run, view in self._run_table.views.items():
            if view.wants and run not in self._runs:
                self._see(run, trouble)

    def _see(self, run: str, trouble: list[str]) -> None:
        """Check that the parents of a run have everything that the run takes from them."""
        planned = self._run_table.runs[run]
        try:
            self.config(planned)
        except Missing as error:
            above = (ancestor.id for ancestor in lineage(planned, self._run_table.runs))
            self._lacks(run, (run, *above), str(error))
        except StoreError as error:
            self._away[run] = Wait(str(error), vain=False)
            trouble.append(str(error))

    def waiting(self, run: str) -> Observation | None:
        """Return what a run waits for, or None if it may start."""
        wait = self._runs.get(run)
        if wait is None:
            return None
        return Observation(Kind.ORPHAN if wait.vain else Kind.PARENT, wait.on)

    def in_order(self) -> Iterable[tuple[str, View]]:
        """Return the runs in the order in which they are started."""
        views = self._run_table.views.items()
        if not self._plan.stages:
            return views
        runs, sign = self._run_table.runs, 1 if self._plan.order == "breadth" else -1
        return sorted(views, key=lambda item: sign * self._depths.get(runs[item[0]].stage or "", 0))

    def config(self, run: Run) -> dict[str, object]:
        """Return the configuration of a run, with everything that it takes from its parents. Raises
        `Missing`."""
        if run.stage is None or next(references(run.config), None) is None:
            return run.config
        if run.id not in self._filled:
            self._filled[run.id] = self._fill(run)
        return self._filled[run.id]

    def _fill(self, run: Run) -> dict[str, object]:
        runs = self._run_table.runs
        by_stage: dict[str, Run] = {}
        for above in lineage(run, runs):
            by_stage.setdefault(above.stage or "", above)
        if run.parents and run.parents[0] in runs:
            by_stage[PARENT] = runs[run.parents[0]]

        def find(stage: str, key: str) -> object:
            above = by_stage.get(stage)
            if above is None:
                raise Missing(f"a run of {stage}, but no ancestor is a run of that stage")
            return self._late(above, key) if key in LATE else self._early(above, key)

        return filled(run.config, find)

    def _early(self, run: Run, key: str) -> object:
        try:
            return value_of(self._plan, run, key)
        except KeyError:
            raise Missing(f"{key} of {run.name}, which has no such value") from None

    def _late(self, run: Run, key: str) -> object:
        from sweeper.results.checkpoints import last, may_expire, when_expired

        recorded = next(entry for entry in self._sweep().runs if entry.id == run.id)
        if key not in _PATHS:
            return recorded.path
        checkpoint = last(recorded.checkpoint_records(), _PATHS[key])
        if checkpoint is None:
            raise Missing(f"{key} of {run.name}, which has recorded no {_PATHS[key]}")
        path = str(checkpoint[_PATHS[key]])
        if may_expire(checkpoint):
            self._keep(run, key, path, when_expired(checkpoint, recorded.times["ended"]))
        return path

    def _keep(self, run: Run, key: str, path: str, end: datetime | None) -> None:
        """Ask the service to keep a checkpoint that expires at `end`. Raises `Missing` if the
        checkpoint has expired."""
        pinned = self._pins.keep(path)
        past = end is not None and end.timestamp() < self._context.wall()
        if pinned == "gone" or (pinned == "unknown" and past):
            raise Missing(f"{key} of {run.name}, which has expired")
        if pinned == "unknown":
            checkpoint_name = f"the checkpoint of {run.name} from which other runs start"
            names = f"{self._context.sweep}/{run.name}", "--ttl", "never"
            mend = f"`{hint('checkpoints', *names, root=self._context.store.root)}` keeps it"
            has_service = self._plan.service != "none"
            self._expiring[path] = (
                f"{checkpoint_name} will expire{f': {mend}' if has_service else ''}"
            )

    def _choose(self, choice: Choice) -> bool:
        """Record a choice if all its candidates have ended. Return whether it is recorded."""
        fates: dict[str, Fate] = {
            run: fate_of(run, self._fate, self._runs) for run in choice.candidates
        }
        if choice.key in self._lacking or choice.key in self._halted:
            return False
        if holds_back(choice, fates) or "open" in fates.values():
            return False

        recorded = {run.id: run for run in self._sweep().runs}
        taken = choose(
            choice, recorded, [run for run, fate in fates.items() if fate == "succeeded"]
        )
        if not taken:
            reason = f"{choice.take.words}, but none has recorded {choice.metric.name}"
            self._lacks(choice.key, choice.candidates, reason)
            return False
        path = self._context.folder.chosen(choice.take.stage, choice.key)
        document = Chosen(taken, timestamp()).document(choice)
        # An earlier launcher may have recorded the choice, or this one if the reply was lost.
        with suppress(AlreadyExists):
            self._context.store.create(path, encode(document))
        return True

    def _sweep(self) -> "Sweep":
        """Return the recorded sweep, read at most once per `check`."""
        if self._recorded is None:
            from sweeper.results.sweeps import Sweep

            self._recorded = Sweep(self._context.folder)
        return self._recorded

    def _fate(self, run: str) -> Fate:
        view = self._run_table.views.get(run)
        if view is None:
            return "open"
        state = view.state
        if state.state is State.SUCCEEDED:
            return "succeeded"
        if view.wants or state.state in OPEN or state.unacknowledged:
            return "open"
        return "cancelled" if state.state is State.CANCELLED else "failed"
