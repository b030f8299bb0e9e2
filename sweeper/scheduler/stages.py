"""Handles the stages of a running sweep: which runs wait for which, which runs of a finished
stage are taken, and what a run gets from those that it starts from.

A choice is recorded exclusively before any run that follows from it is made. So a launcher that
restarts after a kill, or a second one, uses the same choice.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import AlreadyExists, StoreError
from sweeper.scheduler.context import Context
from sweeper.scheduler.pinning import Pins
from sweeper.scheduler.run_table import RunTable, View
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.hint import hint
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.request import Asked
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.stage_inputs import LATE, PARENT, Choice, Chosen, filled, references
from sweeper.sweep.stage_runs import depths, lineage, value_of
from sweeper.sweep.stage_waits import Fate, Wait, fate_of, halted, holds_back, told_of, waits
from sweeper.sweep.states import OPEN, State

if TYPE_CHECKING:
    from sweeper.results.sweeps import Sweep

_PATHS = {"checkpoint.state": "state_path", "checkpoint.sampler": "sampler_path"}


class Missing(StoreError):
    """A parent of a run lacks what the run takes from it. The text says what."""


class _Lack(NamedTuple):
    """What `runs` lack that others need. The result is reused until more than `size` has happened
    to these runs."""

    runs: tuple[str, ...]
    size: int
    wait: Wait


class Stages:
    """The stages of one sweep, as of the last `look`. Without stages nothing waits."""

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
        """The plan with all runs that are known by now."""
        return self._plan

    @property
    def messages(self) -> tuple[str, ...]:
        """Runs that wait in vain, one line per reason; and checkpoints that may be deleted before
        runs have started from them."""
        held = told_of(self._plan, self._runs, self._stages)
        return (*held, *dict.fromkeys(self._expiring.values()))

    @property
    def to_come(self) -> int:
        """The number of runs that are not known yet but will be."""
        return sum(self._plan.unknown[name] for name, w in self._stages.items() if not w.vain)

    @property
    def held_back(self) -> int:
        """The number of runs that wait in vain, including those not known yet."""
        unknown = sum(self._plan.unknown[name] for name, w in self._stages.items() if w.vain)
        return unknown + sum(wait.vain for wait in self._runs.values())

    def in_vain(self, run: str) -> bool:
        """Whether a run waits for something that will not come."""
        return run in self._runs and self._runs[run].vain

    def look(self, cancelled: Asked | None = None) -> None:
        """Finds what has ended, and makes the choices of finished stages; none if the sweep was
        `cancelled`. Files that cannot be read are `trouble`, and are read again at the next look.
        """
        if not self._plan.stages:
            return
        self._recorded = None
        trouble: list[str] = []
        # What stays so is not asked again: it takes reading the whole sweep.
        kept = self._lacking.items()
        self._lacking = {key: one for key, one in kept if one.size == self._size(one.runs)}
        self._away = {}
        self._halted = halted(self._plan, cancelled)
        while True:  # what one run waits for in vain, those do too that go on from it
            self._wait()
            before = self._known()
            if any(self._try(choice, trouble) for choice in self._plan.choices):
                self._plan = self._context.folder.with_chosen(self._plan)
                self._run_table.grow(self._plan)
                self._halted = halted(self._plan, cancelled)
            else:
                self._see_all(trouble)
            if self._known() == before:
                break
        self.trouble = tuple(dict.fromkeys(trouble))
        if cancelled is not None:
            self._cancel_fresh(cancelled)

    def _cancel_fresh(self, cancelled: Asked) -> None:
        """Cancels the runs that were created while the sweep was being cancelled, since its user
        does not know them: a choice may just have been made."""
        for run, view in self._run_table.views.items():
            at_work = view.wants or view.state.state in OPEN or view.state.unacknowledged
            fresh = view.state.opened <= 1 and self._run_table.runs[run].parents
            if at_work and fresh and not view.cancel:
                happened = set(self._run_table.events(run))
                retries = self._run_table.retries(run)
                request_cancel(self._context.folder, run, happened, retries, cancelled.by)

    def _try(self, choice: Choice, trouble: list[str]) -> bool:
        try:
            return self._choose(choice)
        except StoreError as error:
            trouble.append(str(error))
            return False

    def _wait(self) -> None:
        lacking = {key: one.wait for key, one in self._lacking.items()}
        seen = {**self._halted, **lacking, **self._away}
        self._runs, self._stages = waits(self._plan, self._fate, seen)

    def _known(self) -> tuple[object, ...]:
        """The state that a round may add to."""
        choices = tuple(choice.key for choice in self._plan.choices)
        return len(self._plan.runs), choices, len(self._lacking), len(self._away)

    def _lacks(self, key: str, runs: Iterable[str], told: str) -> None:
        """Records that these ended runs lack what others need from them."""
        runs = tuple(runs)
        self._lacking[key] = _Lack(runs, self._size(runs), Wait(told, vain=True))

    def _size(self, runs: Iterable[str]) -> int:
        """The number of events of runs, which never shrinks."""
        views = self._run_table.views
        return sum(views[run].size for run in runs if run in views)

    def _see_all(self, trouble: list[str]) -> None:
        for run, view in self._run_table.views.items():
            if view.wants and run not in self._runs:
                self._see(run, trouble)

    def _see(self, run: str, trouble: list[str]) -> None:
        """Checks that the succeeded parents of a run have everything it takes from them."""
        planned = self._run_table.runs[run]
        try:
            self.config(planned)
        except Missing as error:
            above = (one.id for one in lineage(planned, self._run_table.runs))
            self._lacks(run, (run, *above), str(error))
        except StoreError as error:
            self._away[run] = Wait(str(error), vain=False)
            trouble.append(str(error))

    def waiting(self, run: str) -> Observation | None:
        """What a run waits for; None if it may start."""
        wait = self._runs.get(run)
        if wait is None:
            return None
        return Observation(Kind.ORPHAN if wait.vain else Kind.PARENT, wait.on)

    def in_order(self) -> Iterable[tuple[str, View]]:
        """The runs in the order in which they are to start."""
        views = self._run_table.views.items()
        if not self._plan.stages:
            return views
        runs, sign = self._run_table.runs, 1 if self._plan.order == "breadth" else -1
        return sorted(views, key=lambda item: sign * self._depths.get(runs[item[0]].stage or "", 0))

    def config(self, run: Run) -> dict[str, object]:
        """The configuration of a run, with everything that it takes from its parents. Raises
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
                raise Missing(f"a run of {stage}, from which it does not come")
            return self._late(above, key) if key in LATE else self._early(above, key)

        return filled(run.config, find)

    def _early(self, run: Run, key: str) -> object:
        try:
            return value_of(self._plan, run, key)
        except KeyError:
            raise Missing(f"{key} of {run.name}, which has none") from None

    def _late(self, run: Run, key: str) -> object:
        from sweeper.results.checkpoints import last, may_expire, when_expired

        recorded = next(one for one in self._sweep().runs if one.id == run.id)
        if key not in _PATHS:
            return recorded.path
        found = last(recorded.checkpoint_records(), _PATHS[key])
        if found is None:
            raise Missing(f"{key} of {run.name}, which has recorded no {_PATHS[key]}")
        path = str(found[_PATHS[key]])
        if may_expire(found):
            self._keep(run, key, path, when_expired(found, recorded.times["ended"]))
        return path

    def _keep(self, run: Run, key: str, path: str, end: datetime | None) -> None:
        """Keeps a checkpoint that expires at `end`. Raises `Missing` if it has expired."""
        pinned = self._pins.keep(path)
        past = end is not None and end.timestamp() < self._context.wall()
        if pinned == "gone" or (pinned == "unknown" and past):
            raise Missing(f"{key} of {run.name}, which has expired")
        if pinned == "unknown":
            what = f"the checkpoint of {run.name} that others go on from"
            names = f"{self._context.sweep}/{run.name}", "--ttl", "never"
            mend = f"`{hint('checkpoints', *names, root=self._context.store.root)}` keeps it"
            known = self._plan.service != "none"
            self._expiring[path] = f"{what} will expire{f': {mend}' if known else ''}"

    def _choose(self, choice: Choice) -> bool:
        """Makes a choice if all runs that it chooses from have ended. Returns whether it is
        recorded now."""
        fates: dict[str, Fate] = {
            run: fate_of(run, self._fate, self._runs) for run in choice.candidates
        }
        if choice.key in self._lacking or choice.key in self._halted:
            return False
        if holds_back(choice, fates) or "open" in fates.values():
            return False
        from sweeper.scheduler.stage_choice import choose

        recorded = {run.id: run for run in self._sweep().runs}
        taken = choose(choice, recorded, [run for run, one in fates.items() if one == "succeeded"])
        if not taken:
            told = f"{choice.take.words}, of which none has recorded {choice.metric.name}"
            self._lacks(choice.key, choice.candidates, told)
            return False
        path = self._context.folder.chosen(choice.take.stage, choice.key)
        document = Chosen(taken, timestamp()).document(choice)
        with suppress(AlreadyExists):  # an earlier launcher's, or ours whose reply was lost
            self._context.store.create(path, encode(document))
        return True

    def _sweep(self) -> "Sweep":
        """The recorded sweep, read once per look."""
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
