"""What a sweep has used until now, and whether its budget is spent.

An attempt that has ended counts as its outcome says. One that is at work counts as its recipe has
counted until a moment ago, where the store is on this machine, else as its last heartbeat says.
Nothing is kept but what was read: a launcher that is started again finds the same sum.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from sweeper import prices
from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.fields import config_file
from sweeper.model.heartbeat import Heartbeat
from sweeper.model.plan import Budget
from sweeper.model.spent import Spent
from sweeper.model.states import Event
from sweeper.model.usage import NO_USAGE, Usage, total
from sweeper.scheduler.account_budget import AccountBudget
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.storage.heartbeats import Heartbeats, read_heartbeat
from sweeper.storage.sweeps import read_event
from sweeper.worker.usage import FOLDER, UsageFiles

__all__ = ["Spending"]

_SECONDS_AN_HOUR = 3600.0
_ENDS = (Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.PREEMPTED)
"""Events with the outcome of an attempt, the most telling first."""

_PER = {"all": "", "month": " for this month", "day": " for today"}
_RAISED = "a relaunch with more in {}"

Attempt = tuple[str, int]


class Used(NamedTuple):
    """Of one attempt: what it used, and for how long it was at work, pauses left out."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


class Spending:
    """What all attempts of a sweep have used, beside what they may use at most, by the sweep's own
    `budget` and by that of its `account`. What was once seen of an attempt counts, also when it
    cannot be read for a moment. Raises `UsageError` for a budget in dollars when the prices cannot
    be read."""

    def __init__(
        self,
        context: Context,
        budget: Budget | None,
        run_table: RunTable,
        heartbeats: Heartbeats,
        account: AccountBudget | None = None,
    ) -> None:
        self._context, self._account = context, account
        self._budget = budget or Budget()
        self._run_table, self._heartbeats = run_table, heartbeats
        limits = [self._budget] + ([] if account is None else [account.limits.budget])
        in_dollars = any(one.usd is not None for one in limits)
        self._prices = prices.load() if in_dollars else None
        self._seen: dict[Attempt, Used] = {}
        self._final: set[Attempt] = set()
        self._files: dict[Attempt, UsageFiles] = {}
        self.reached: str | None = None
        self.is_over = False
        """Whether runs at work are to be stopped."""

    def look(self) -> None:
        """Sum up, and see whether there is anything left to spend. Raises `Unreachable` where that
        is not known of the account: then nothing more may be started."""
        used = self._used()
        self.reached, self.is_over = None, False
        if self._account is not None:
            limits, per = self._account.limits
            what = "the budget of your account" + _PER[per]
            self._judge(limits, self._account.look(used), what, _RAISED.format(config_file.file()))
        self._judge(self._budget, used, "the budget", "`sweeper launch` with a larger budget")
        if self._account is not None and self._account.trouble and self.reached is None:
            raise Unreachable(self._account.trouble)

    def end(self) -> None:
        """Tell the account what was used in the end."""
        if self._account is not None:
            with suppress(OSError):  # then what was told before holds
                self._account.exchange(self._used())

    def _used(self) -> Spent:
        """What all attempts have used by now."""
        for run, view in self._run_table.views.items():
            for attempt in range(1, view.state.opened + 1):
                if (run, attempt) not in self._final:
                    self._look_at(run, attempt)
        found = self._seen.values()
        return Spent(total(one.usage for one in found), sum(one.seconds for one in found))

    def _judge(self, limits: Budget, used: Spent, what: str, how: str) -> None:
        """Note what is reached of some limits. What stops runs outweighs what does not."""
        why = self._over(limits, used, what)
        if why is None or self.is_over:
            return
        self.is_over = limits.on_reach == "stop"
        stopped = ", and what runs is stopped" if self.is_over else ""
        self.reached = f"{why}: nothing else is started{stopped}; {how} goes on"

    def _look_at(self, run: str, attempt: int) -> None:
        """Take note of what is known of an attempt now, unless more was known of it before."""
        key = run, attempt
        happened = self._run_table.events(run)
        event = next((event for event in _ENDS if (attempt, event) in happened), None)
        found = self._ended(key, event) if event is not None else self._at_work(key)
        before = self._seen.get(key, Used())
        usage = max(before.usage, found.usage, key=lambda usage: usage.counts.tokens)
        self._seen[key] = Used(usage, max(before.seconds, found.seconds))

    def _at_work(self, key: Attempt) -> Used:
        """Of an attempt without an outcome: its heartbeat, and what was counted since."""
        beat = self._heartbeats.known.get(key)
        if beat is not None:
            return self._counted(key, _of(beat.body))
        if key in self._seen:  # of a lost one there is nothing new
            return Used()
        return self._counted(key, self._said(key))

    def _ended(self, key: Attempt, event: Event) -> Used:
        """Of an attempt that has ended: its outcome, whoever has told it."""
        try:
            outcome = read_event(self._context.store, self._context.sweep, *key, event)
        except (NotFound, StoreError):
            return Used()  # it is read again in the next round
        self._final.add(key)
        seconds = max(0.0, (outcome.wall_s or 0.0) - (outcome.paused_s or 0.0))
        used = Used(outcome.usage, seconds)
        if outcome.usage == NO_USAGE and self._recipe_counts():
            used = self._counted(key, self._said(key)._replace(seconds=seconds))
        self._files.pop(key, None)
        return used

    def _recipe_counts(self) -> bool:
        return any(part.recipe.kind != "command" for part in self._context.plan.parts)

    def _said(self, key: Attempt) -> Used:
        """What the worker said last."""
        return _of(read_heartbeat(self._context.store, self._context.layout.heartbeat(*key)))

    def _counted(self, key: Attempt, said: Used) -> Used:
        """What the recipe has counted, where its files can be read here: a heartbeat is some
        seconds old."""
        files = self._files.get(key)
        if files is None:
            folder = self._context.store.local_path(self._context.layout.attempt(*key))
            if folder is None:
                return said
            files = self._files[key] = UsageFiles(os.path.join(folder, FOLDER))
        counted = files.read()
        return said if counted == NO_USAGE else said._replace(usage=counted)

    def _over(self, limits: Budget, used: Spent, what: str) -> str | None:
        """Which limit is reached, for people; None while none is."""
        hours, tokens = used.seconds / _SECONDS_AN_HOUR, used.usage.counts.tokens
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"{what} is spent ({tokens:,} of {limits.tokens:,.0f} tokens)"
        if limits.hours is not None and hours >= limits.hours:
            return f"{what} is spent ({hours:,.2f} of {limits.hours:,.2f} hours of runs)"
        if limits.usd is None or self._prices is None:
            return None
        amount = prices.amount(used.usage, self._prices)
        if amount.unpriced:
            models = ", ".join(amount.unpriced)
            return f"{what} is in dollars, and no price is known of {models}"
        if amount.usd >= limits.usd:
            spent = f"{prices.money(amount.usd)} of {prices.money(limits.usd)} dollars"
            return f"{what} is spent ({spent}, by {self._prices.told})"
        return None


def _of(body: Heartbeat) -> Used:
    return Used(body.usage, max(0.0, (body.up_s or 0.0) - body.paused_s))
