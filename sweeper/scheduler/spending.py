"""What a sweep has used until now, and whether its budget is spent.

An attempt that has ended counts as its outcome says. One that is at work counts as its recipe has
counted until a moment ago, where the store is on this machine, else as its last heartbeat says.
Nothing is kept but what was read: a launcher that is started again finds the same sum.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from sweeper import prices
from sweeper.errors import NotFound, StoreError
from sweeper.model.heartbeat import Heartbeat
from sweeper.model.plan import Budget
from sweeper.model.states import ENDED, Event
from sweeper.model.usage import NO_USAGE, Usage, total
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.storage.heartbeats import Heartbeats, read_heartbeat
from sweeper.storage.sweeps import read_event
from sweeper.worker.usage import FOLDER, UsageFiles

__all__ = ["Spending"]

_SECONDS_AN_HOUR = 3600.0

Attempt = tuple[str, int]


class Used(NamedTuple):
    """Of one attempt: what it used, and for how long it was at work, pauses left out."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


class Spending:
    """What all attempts of a sweep have used, beside what they may use at most."""

    def __init__(
        self, context: Context, budget: Budget, run_table: RunTable, heartbeats: Heartbeats
    ) -> None:
        self._context, self.budget = context, budget
        self._run_table, self._heartbeats = run_table, heartbeats
        self._prices = prices.load()
        self._ended: dict[Attempt, Used] = {}
        self._silent: dict[Attempt, Used] = {}
        self._files: dict[Attempt, UsageFiles] = {}
        self.reached: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether runs at work are to be stopped."""
        return self.reached is not None and self.budget.on_reach == "stop"

    def look(self) -> None:
        """Sum up, and see whether there is anything left to spend."""
        found = [
            self._used(run, attempt)
            for run, view in self._run_table.views.items()
            for attempt in range(1, view.state.opened + 1)
        ]
        self.reached = self._judged(
            total(used.usage for used in found), sum(used.seconds for used in found)
        )

    def _judged(self, usage: Usage, seconds: float) -> str | None:
        """Which limit is reached, for people; None while none is."""
        limits, hours, tokens = self.budget, seconds / _SECONDS_AN_HOUR, usage.counts.tokens
        if limits.tokens is not None and tokens >= limits.tokens:
            return _told(f"{tokens:,} of {limits.tokens:,.0f} tokens")
        if limits.hours is not None and hours >= limits.hours:
            return _told(f"{hours:.2f} of {limits.hours:g} hours of runs")
        if limits.usd is None:
            return None
        amount = prices.amount(usage, self._prices)
        if amount.unpriced:
            models = ", ".join(amount.unpriced)
            return (
                f"the budget is in dollars, and no price is known of {models}: nothing else is "
                "started; `sweeper prices --refresh` takes a table that has it"
            )
        if amount.usd >= limits.usd:
            spent = f"{amount.usd:,.4g} of {limits.usd:g} dollars, by {self._prices.told}"
            return _told(spent)
        return None

    def _used(self, run: str, attempt: int) -> Used:
        key = run, attempt
        if key in self._ended:
            return self._ended[key]
        happened = self._run_table.events(run)
        event = next((event for event in ENDED if (attempt, event) in happened), None)
        if event is not None:
            return self._outcome(key, event)
        if (beat := self._heartbeats.known.get(key)) is not None:
            self._silent.pop(key, None)
            return self._now(key, _of(beat.body))
        if key not in self._silent and attempt < self._run_table.views[run].state.opened:
            path = self._context.layout.heartbeat(run, attempt)
            self._silent[key] = _of(read_heartbeat(self._context.store, path))
        return self._silent.get(key, Used())

    def _now(self, key: Attempt, said: Used) -> Used:
        """What an attempt at work has used: its heartbeat is some seconds old."""
        files = self._files.get(key)
        if files is None:
            folder = self._context.store.local_path(self._context.layout.attempt(*key))
            if folder is None:
                return said
            files = self._files[key] = UsageFiles(os.path.join(folder, FOLDER))
        counted = files.read()
        return said if counted == NO_USAGE else said._replace(usage=counted)

    def _outcome(self, key: Attempt, event: Event) -> Used:
        """As the outcome has it, else as the worker said last: another may have told for it."""
        store, (run, attempt) = self._context.store, key
        with suppress(NotFound, StoreError):
            outcome = read_event(store, self._context.sweep, run, attempt, event)
            seconds = max(0.0, (outcome.wall_s or 0.0) - (outcome.paused_s or 0.0))
            used = Used(outcome.usage, seconds)
            if outcome.usage == NO_USAGE:
                said = _of(read_heartbeat(store, self._context.layout.heartbeat(run, attempt)))
                used = Used(said.usage, seconds or said.seconds)
            self._ended[key] = used
            self._files.pop(key, None)
        return self._ended.get(key, Used())


def _of(body: Heartbeat) -> Used:
    paused = body.document.get("paused_s")
    waited = float(paused) if isinstance(paused, int | float) else 0.0
    return Used(body.usage, max(0.0, (body.up_s or 0.0) - waited))


def _told(spent: str) -> str:
    return (
        f"the budget is spent ({spent}): nothing else is started; `sweeper launch` with a larger "
        "budget goes on"
    )
