"""The launcher's table of runs: their events, read in one listing per step, and their states. In
the launcher, only this module writes events."""

import os
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists, Damaged, NotFound, StoreError
from sweeper.store.base import each
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.folder import Events, SweepFolder
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import (
    OPEN,
    Event,
    RunState,
    cancel_asked,
    fold,
    retry_asked,
    wants_attempt,
)

WITHDRAWN = "withdrawn"
"""The `reason` in a launcher's claim, and in the outcome of the attempt that the launcher has ended
by this claim."""
_NOTHING: Mapping[str, object] = MappingProxyType({})


class View(NamedTuple):
    """The state of a run, from its events. With `wants`, the run should be started or restarted.
    `cancel` and `retry` say whether a user's request to cancel or to retry the run is in effect
    (see `cancel_asked` and `retry_asked`). `size` is the number of events."""

    size: int
    state: RunState
    wants: bool
    cancel: bool
    retry: bool


class RunTable:
    """The runs of a sweep, in the order of its plan. Retired runs are included, and are never
    started."""

    def __init__(self, folder: SweepFolder, plan: Plan) -> None:
        self._store = folder.store
        self._folder = folder
        self._retries: dict[str, int] = {}
        self.runs: dict[str, Run] = {}
        self.retired: set[str] = set()
        self.views: dict[str, View] = {}
        self._events: Events = {}
        self._with_worker: set[tuple[str, int]] = set()  # claimed by a worker, not by a launcher
        self.grow(plan)

    def grow(self, plan: Plan) -> None:
        """Replace the plan, for example by one with more runs."""
        has_views = bool(self.views)
        back = self.retired - {run.id for run in plan.runs if run.retired}
        self.runs = {run.id: run for run in plan.runs}
        self._retries = {run.id: plan.retries_of(run.stage) for run in plan.runs}
        self.retired = {run.id for run in plan.runs if run.retired}
        for run in back:
            self.views.pop(run, None)
        for run in self.runs if has_views else ():
            self._look(run)

    def retries(self, run: str) -> int:
        """Return the maximum number of times that a run is retried after failures."""
        return self._retries[run]

    def read(self) -> None:
        """Read all events again.

        Events are never removed, so `read` raises an error if events are missing: `NotFound` if the
        plan is missing too, and `StoreError` otherwise.
        """
        where = self._folder.address
        removed = f"{where} was removed while its launcher was running, so the launcher ends"
        try:
            events = self._folder.read_events()
        except NotFound as error:
            raise NotFound(removed) from error
        if any(len(events.get(run, ())) < view.size for run, view in self.views.items()):
            if not self._store.exists(self._folder.plan):
                raise NotFound(removed)
            raise StoreError(
                f"recorded events of {where} are missing: check that its disk is mounted"
            )
        self._events = events
        for run in self.runs:
            self._look(run)

    def events(self, run: str) -> set[tuple[int, Event]]:
        """Return the events of a run, each with its attempt."""
        return self._events.get(run, set())

    def open(self) -> dict[str, int]:
        """Return {run: attempt} for the runs that may be running."""
        return {r: v.state.attempt for r, v in self.views.items() if v.state.state in OPEN}

    def unacknowledged(self) -> dict[str, int]:
        """Return {run: attempt} for the attempts that are recorded, but perhaps not submitted."""
        return {r: v.state.opened for r, v in self.views.items() if v.state.unacknowledged}

    def add(
        self, run: str, attempt: int, event: Event, body: Mapping[str, object] | None = None
    ) -> bool:
        """Record an event. Return False if it is recorded already."""
        return bool(self.add_each(event, {(run, attempt): body or {}}))

    def add_each(
        self, event: Event, bodies: Mapping[tuple[str, int], Mapping[str, object]]
    ) -> set[tuple[str, int]]:
        """Record the same event for several attempts. `bodies` maps (run, attempt) to the
        event's body. Return the attempts that did not have the event yet."""
        now = {"schema": SCHEMA, "time": timestamp()}

        def create(key: tuple[str, int]) -> bool:
            # An earlier launcher has recorded the event, or this launcher if the reply was lost.
            with suppress(AlreadyExists):
                self._store.create(self._folder.event(*key, event), encode(now | dict(bodies[key])))
                return True
            return False

        fresh = each(self._store, create, bodies)
        for run, attempt in bodies:
            self._events.setdefault(run, set()).add((attempt, event))
            self._look(run)
        return {key for key, new in zip(bodies, fresh, strict=True) if new}

    def end(
        self,
        run: str,
        attempt: int,
        event: Event,
        reason: str,
        detail: str,
        facts: Mapping[str, object] = _NOTHING,
    ) -> None:
        """Record the outcome of an attempt whose worker cannot record it. `facts` are fields of the
        outcome that the backend reports: `code`, `host`."""
        body = dict.fromkeys(
            ("code", "signal", "started", "ended", "wall_s", "max_rss_bytes", "host")
        )
        self.add(run, attempt, event, {**body, **facts, "reason": reason, "detail": detail})

    def withdraw(self, run: str, attempt: int, why: str) -> bool:
        """Claim an attempt that no worker has claimed, and end it. If the attempt's job starts
        later, its worker finds the claim and does not train. Return False if a worker claimed the
        attempt first, or if the claim cannot be read."""
        body = {"nonce": os.urandom(8).hex(), "submitted": attempt, "by": "the launcher"}
        self.add(run, attempt, Event.CLAIMED, body | {"reason": WITHDRAWN, "detail": why})
        return self.finish_withdrawal(run, attempt)

    def finish_withdrawal(self, run: str, attempt: int) -> bool:
        """End an attempt that a launcher has claimed so that no worker trains it. The launcher may
        have been killed after the claim. Return False if a worker has made the claim, or if the
        claim is missing or damaged. Raises `StoreError`."""
        if (run, attempt) in self._with_worker:
            return False
        try:
            claim = self._folder.read_event(run, attempt, Event.CLAIMED)
        except (NotFound, Damaged):
            return False
        if claim.reason != WITHDRAWN:
            self._with_worker.add((run, attempt))
            return False
        self.end(run, attempt, Event.PREEMPTED, WITHDRAWN, claim.detail or "")
        return True

    def is_cancelled(self, run: str, attempt: int) -> bool:
        """Return whether a user has requested to cancel this attempt. Looks for new requests in
        the store. Raises `StoreError`."""
        if (attempt, Event.CANCEL) not in self.events(run):
            if not self._store.exists(self._folder.event(run, attempt, Event.CANCEL)):
                return False
            self._events.setdefault(run, set()).add((attempt, Event.CANCEL))
            self._look(run)
        return True

    def _look(self, run: str) -> None:
        events = self.events(run)
        view = self.views.get(run)
        if view is None or view.size != len(events):
            self.views[run] = View(
                len(events),
                fold(events),
                run not in self.retired and wants_attempt(events, self._retries[run]),
                cancel_asked(events),
                retry_asked(events),
            )
