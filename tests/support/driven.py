"""Sweeps on the fake backend, whose jobs the test ends."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.launcher.manifest import merge
from sweeper.planner.plan import plan
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.scheduler.progress import Summary
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.requests import request_retry
from sweeper.sweep.states import OPEN, Event
from sweeper.testing import FakeBackend, FakeClock, Fault


class Driven:
    """A sweep whose runs fail if they are in `failing`. A subclass implements `files`."""

    def __init__(self, root: Path, name: str) -> None:
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, name)
        self.backend, self.clock = FakeBackend(), FakeClock()
        self.failing: set[str] = set()
        self.outcome: dict[str, Any] = {}
        self.store.replace(self.folder.service, encode({"schema": 1, "env_file": None}))

    def files(self, run: Run, attempt: int) -> Mapping[str, str]:
        """Return the files of an attempt and their texts."""
        raise NotImplementedError

    def record(self, grid: dict[str, Any]) -> Plan:
        """Record the plan of a grid, as a launch does."""
        fresh = plan({"name": self.folder.name, **grid}, validate=False)
        fresh = self.folder.with_chosen(fresh)
        if self.store.exists(self.folder.plan):
            fresh = merge(self.folder.read_plan(), fresh)
        self.store.replace(self.folder.plan, encode(fresh.document()))
        return fresh

    @property
    def plan(self) -> Plan:
        return self.folder.read_plan()

    def id_of(self, name: str) -> str:
        [run] = [run.id for run in self.plan.runs if run.name == name]
        return run

    def scheduler(self, store: Any = None, backend: Any = None) -> Scheduler:
        used = self.folder.at(store or self.store), backend or self.backend
        return Scheduler(Context(*used, self.clock, self.clock.sleep))

    def work(self) -> None:
        """End every submitted job."""
        planned = {run.id: run for run in self.plan.runs}
        for run, state in self.folder.read_states().items():
            at_work = state.state in OPEN or state.unacknowledged
            if at_work and token(run, state.opened) in self.backend.jobs and run in planned:
                self._finish(planned[run], state.opened)

    def _finish(self, run: Run, attempt: int) -> None:
        for name, text in self.files(run, attempt).items():
            path = f"{self.folder.log_path(run.id, attempt)}/{name}"
            self.store.replace(path, text.encode())
        end = Event.FAILED if run.name in self.failing else Event.SUCCEEDED
        for event in (Event.CLAIMED, end):
            path = self.folder.event(run.id, attempt, event)
            if not self.store.exists(path):
                body = {"schema": 1, "reason": "error", "code": 1, **self.outcome}
                self.store.create(path, encode(body))
        self.backend.end(token(run.id, attempt))

    def drive(self, scheduler: Scheduler | None = None) -> Summary:
        """Step until the sweep is finished; end the jobs after each step."""
        scheduler = scheduler or self.scheduler()
        for _ in range(100):
            self.clock.sleep(0.5)
            summary = scheduler.step()
            if summary.finished:
                return summary
            self.work()
        raise AssertionError("the sweep never ends")

    def drive_until_submitted(self, jobs: int, scheduler: Scheduler | None = None) -> None:
        """Step until this number of jobs has been submitted."""
        scheduler = scheduler or self.scheduler()
        while len(self.backend.submitted) < jobs:
            self.clock.sleep(0.5)
            scheduler.step()
            self.work()

    def cancel(self, name: str) -> None:
        """Request that a run is cancelled."""
        event = self.folder.event(self.id_of(name), 1, Event.CANCEL)
        self.store.create(event, encode({"schema": 1}))

    def retry(self, name: str) -> None:
        """Request a retry of a failed run, which then succeeds."""
        self.failing.discard(name)
        run = self.id_of(name)
        request_retry(self.folder, run, self.folder.read_events()[run])


def metrics(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def at_write(number: int, fault: Fault) -> Callable[[int, str], Fault | None]:
    """Return a rule for `Faults` that applies the fault to the write call of this number."""
    writes = 0

    def choose(_: int, call: str) -> Fault | None:
        nonlocal writes
        writes += call.startswith(("store.create", "backend.submit"))
        return fault if writes == number else None

    return choose
