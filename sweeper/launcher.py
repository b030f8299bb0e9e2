"""The reconcile loop: what should run, what does, and what to start next.

Each step reads the store, asks the backend once, and moves every run at most one step along

    intent -> (find) -> submit -> acknowledge -> the worker's own events

Nothing is kept in memory that a restart could miss, but the clock of the leases, which then starts
again. So the launcher may be killed anywhere and started again: an attempt whose intent is on
record is looked for by its token before it is submitted a second time.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.command import worker_command
from sweeper.documents import SCHEMA, encode, read_json, timestamp
from sweeper.errors import AlreadyExists, StoreError, Unreachable
from sweeper.layout import Layout, token
from sweeper.states import OPEN, Event, State, fold, wants_attempt
from sweeper.store import Store
from sweeper.sweeps import Events, read_events, read_plan

__all__ = ["Launcher", "Summary"]

POLL_SECONDS = 0.5
SETTLE_SECONDS = 12.0
"""How long a job must have ended, and no worker of its attempt have beaten, before the launcher
says that the worker died: a second copy of the job may have ended while the first one trains."""


class Summary(NamedTuple):
    """How a sweep stands: runs by state, and how many of them the launcher will still start."""

    counts: Counter[State]
    to_start: int
    unreachable: str | None

    @property
    def open(self) -> int:
        """Runs that have a job."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def finished(self) -> bool:
        """Nothing runs and nothing is left to start."""
        return self.open == 0 and self.to_start == 0


class Launcher:
    """Drives one sweep to its end. The caller holds the sweep's lock.

    `clock` gives monotonic seconds and `sleep` waits; tests pass their own. `notify` is called with
    the summary whenever it has changed.
    """

    def __init__(
        self,
        store: Store,
        sweep: str,
        backend: Backend,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        notify: Callable[[Summary], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._sweep = sweep
        self._layout = Layout(sweep)
        self._backend = backend
        self._clock = clock
        self._sleep = sleep
        self._notify = notify
        self._plan = read_plan(store, sweep)
        self._runs = {run["id"]: run for run in self._plan["runs"]}
        # Runs that the grid no longer has are started no more, but looked after while they run.
        self._retired = {run["id"] for run in self._plan["runs"] if run.get("retired")}
        self._env_file: str | None = read_json(store, self._layout.service)["env_file"]
        self._beats: dict[str, tuple[int, float]] = {}
        self._observed: dict[str, str] = {}
        self._told: Summary | None = None
        self._published: tuple[dict[str, str], str | None] | None = None

    def run(self) -> Summary:
        """Step until nothing runs and nothing is left to start."""
        while True:
            try:
                summary = self.step()
            except StoreError as error:
                if self._told is None:
                    raise  # it never worked: say so at once
                summary = self._told._replace(unreachable=str(error))
            if summary != self._told:
                self._notify(summary)
                self._told = summary
            if summary.finished:
                return summary
            self._sleep(POLL_SECONDS)

    def step(self) -> Summary:
        """One round of reconciliation."""
        events = read_events(self._store, self._sweep)
        unreachable = None
        try:
            self._acknowledge(events)
            self._settle(events)
            self._start(events)
        except Unreachable as error:
            unreachable = str(error)  # says nothing about any job: look again next time
        self._publish(unreachable)
        states = {run: fold(events.get(run, ())) for run in self._runs}
        shown = [s for run, s in states.items() if run not in self._retired or s.state in OPEN]
        waiting = len(self._wanting(events)) + sum(
            state.unacknowledged for run, state in states.items() if run not in self._retired
        )
        return Summary(Counter(s.state for s in shown), waiting, unreachable)

    def _acknowledge(self, events: Events) -> None:
        """Submit again what an earlier launcher meant to submit, unless the backend has it."""
        opened = {
            token(run, state.opened): run
            for run in self._runs
            if (state := fold(events.get(run, ()))).unacknowledged
        }
        if not opened:
            return
        found = self._backend.find(list(opened))
        missing = [run for job, run in opened.items() if job not in found]
        self._submit(events, [run for run in missing if run not in self._retired])
        for job in found:
            self._event(events, opened[job], _attempt_of(job), Event.SUBMITTED, {})

    def _settle(self, events: Events) -> None:
        """Find the attempts that ended without their worker's word, and the lost ones."""
        opened = {
            token(run, state.attempt): run
            for run in self._runs
            if (state := fold(events.get(run, ()))).state in OPEN
        }
        if not opened:
            self._observed = {}
            return
        statuses = self._backend.poll(list(opened))
        quiet = self._quiet_seconds(opened)
        gone = {job for job in opened if statuses[job].state in (JobState.ENDED, JobState.ABSENT)}
        if gone:
            # A worker records its outcome before it exits: only what is missing after the
            # backend's answer is missing.
            events.update(read_events(self._store, self._sweep))
        lease: float = self._plan["launch"]["lease_s"]
        self._observed = {}
        for job, run in opened.items():
            if fold(events.get(run, ())).state not in OPEN:
                continue
            if statuses[job].state is JobState.ENDED and quiet[job] > SETTLE_SECONDS:
                self._fail(events, run, _attempt_of(job), statuses[job])
            elif quiet[job] > lease:
                if statuses[job].state is JobState.ABSENT:
                    self._event(events, run, _attempt_of(job), Event.LOST, {})
                else:
                    self._observed[run] = "stale"

    def _fail(self, events: Events, run: str, attempt: int, status: JobStatus) -> None:
        """The worker died without a word: say so for it."""
        body = {
            "code": status.code,
            "signal": None,
            "reason": status.reason or "killed",
            "detail": "the worker ended without recording an outcome",
            "started": None,
            "ended": None,
            "wall_s": None,
            "max_rss_bytes": None,
            "host": None,
        }
        self._event(events, run, attempt, Event.FAILED, body)

    def _quiet_seconds(self, jobs: dict[str, str]) -> dict[str, float]:
        """Token -> seconds, by our own clock, since its heartbeat was last seen to change."""
        now = self._clock()
        stamps = {
            entry.path.rpartition("/")[2]: entry.stamp
            for entry in self._store.list(self._layout.heartbeats)
        }
        for job, run in jobs.items():
            stamp = stamps.get(f"{run}.{_attempt_of(job)}", 0)
            if job not in self._beats or self._beats[job][0] != stamp:
                self._beats[job] = (stamp, now)
        return {job: now - self._beats[job][1] for job in jobs}

    def _start(self, events: Events) -> None:
        """Open attempts for runs that want one, as far as `max_parallel` allows."""
        states = {run: fold(events.get(run, ())) for run in self._runs}
        busy = sum(state.state in OPEN for state in states.values())
        free = max(0, self._plan["launch"]["max_parallel"] - busy)
        chosen = self._wanting(events)[:free]
        for run in chosen:
            self._open(events, run, states[run].opened + 1)
        self._submit(events, chosen)

    def _wanting(self, events: Events) -> list[str]:
        """The runs that are to be started (again), in the order of the plan."""
        retries: int = self._plan["launch"]["retries"]
        return [
            run
            for run in self._runs
            if run not in self._retired and wants_attempt(events.get(run, ()), retries)
        ]

    def _open(self, events: Events, run: str, attempt: int) -> None:
        """Put on record what the attempt is to do, then that it is about to be submitted."""
        launch, planned = self._plan["launch"], self._runs[run]
        job = {
            "schema": SCHEMA,
            "run": run,
            "attempt": attempt,
            "name": planned["name"],
            "seed": planned["seed"],
            "config": planned["config"],
            "recipe": self._plan["recipe"],
            "cwd": self._plan["recipe"]["cwd"],
            "env": launch["env"],
            "env_file": self._env_file,
            "secrets": self._plan["secrets"],
            "timeout_s": launch["timeout_s"],
            "grace_s": launch["grace_s"],
            "resume": launch["resume"],
        }
        self._store.replace(self._layout.job(run, attempt), encode(job))
        self._event(events, run, attempt, Event.INTENT, {})

    def _submit(self, events: Events, runs: Sequence[str]) -> None:
        """Hand the newest opened attempt of each run to the backend, and acknowledge."""
        if not runs:
            return
        attempts = {run: fold(events[run]).opened for run in runs}
        folder = f"{self._store.root}/{self._sweep}"
        self._backend.submit(
            [
                JobSpec(
                    token(run, attempt),
                    self._runs[run]["name"],
                    worker_command(folder, token(run, attempt)),
                    self._store.local_path(self._sweep) or "/",
                    {},
                )
                for run, attempt in attempts.items()
            ]
        )
        for run, attempt in attempts.items():
            self._event(events, run, attempt, Event.SUBMITTED, {})

    def _event(
        self, events: Events, run: str, attempt: int, event: Event, body: dict[str, Any]
    ) -> None:
        """Record an event; that it is on record already is as good."""
        document = {"schema": SCHEMA, "time": timestamp()} | body
        with suppress(AlreadyExists):  # an earlier launcher's, or ours whose reply was lost
            self._store.create(self._layout.event(run, attempt, event), encode(document))
        events.setdefault(run, set()).add((attempt, event))

    def _publish(self, unreachable: str | None) -> None:
        """Tell readers what is observed and is no state: runs that do not beat, a backend that
        does not answer."""
        document = {
            "schema": SCHEMA,
            "time": timestamp(),
            "pid": os.getpid(),
            "observed": self._observed,
            "unreachable": unreachable,
        }
        if (self._observed, unreachable) != self._published:
            self._published = (self._observed, unreachable)
            self._store.replace(self._layout.observations, encode(document))


def _attempt_of(job: str) -> int:
    return int(job.rpartition("-a")[2])
