"""What all sweeps of an account have used together, beside what they may use at most by the user's
configuration.

    <account>/spent/<sweep>.json      replaced by the sweep's launcher, and there when it is over

The account and its place are those of the quota (`account.py`).
"""

import time
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.fields import config_file
from sweeper.grid.budget import ACCOUNT
from sweeper.model import spent
from sweeper.model.launcher import Service
from sweeper.model.plan import Budget
from sweeper.model.spent import NOTHING, Spent, SweepSpent
from sweeper.scheduler.account import account_of, quota_settings
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import name_of
from sweeper.storage.documents import encode, read_as
from sweeper.storage.files import Store, open_store

__all__ = ["AccountBudget", "account_budget", "configured_budget"]

_WRITE_SECONDS = 1.0
_REMOTE_SECONDS = 5.0


class Limits(NamedTuple):
    """The limits, and of which time they are: `day`, `month` or `all`."""

    budget: Budget
    per: str = "all"


def configured_budget() -> Limits | None:
    """What the table `budget` of the configuration says; None without one. Raises
    `EnvironmentFailure` for what is wrong with it."""
    node, problems = config_file.table("budget")
    if not node.entries:
        return None
    found = dict(ACCOUNT.read(node, "budget", problems).values)
    config_file.refuse(problems)
    per = found.pop("per", "all")
    return Limits(Budget(**found), per)


def account_budget(context: Context, service: Service) -> "AccountBudget | None":
    """The budget of the account that a sweep uses; None where it has none. Raises
    `EnvironmentFailure`, `StoreError`."""
    limits = None if context.plan.service == "none" else configured_budget()
    if limits is None:
        return None
    settings = quota_settings()
    account = account_of(context.plan, service, settings)
    return AccountBudget(context, open_store(settings.place), f"{account}/spent", limits)


class AccountBudget:
    """What a launcher knows of an account's spending."""

    def __init__(self, context: Context, store: Store, folder: str, limits: Limits) -> None:
        self.limits = limits
        self._context, self._store, self._folder = context, store, folder
        self._own = f"{folder}/{name_of(context.store.root, context.sweep)}.json"
        self._seconds = _REMOTE_SECONDS if store.is_remote else _WRITE_SECONDS
        self._next = context.clock()
        self._known: dict[str, tuple[int, SweepSpent]] = {}
        self._mine: SweepSpent | None = None
        self.spent = NOTHING

    def look(self, now: Spent) -> Spent:
        """What all sweeps have used in the time that counts, given that this one has used `now` in
        all. A place that does not answer says nothing new."""
        if self._mine is None or self._context.clock() >= self._next:
            self._next = self._context.clock() + self._seconds
            with suppress(StoreError):
                self._exchange(now)
        self.spent = spent.together(
            [
                one
                for _, sweep in self._known.values()
                for day, one in sweep.days.items()
                if self._counts(day)
            ]
        )
        return self.spent

    def _exchange(self, now: Spent) -> None:
        """Write what is ours, and read what is others'."""
        if self._mine is None:
            try:
                self._mine = read_as(self._store, self._own, spent.read)
            except NotFound:
                self._mine = SweepSpent(self._context.sweep)
        found = self._mine.plus(now, self._context.plan.created, self._today())
        if found != self._mine:
            self._store.replace(self._own, encode(found.document()))
            self._mine = found
        listed = {entry.path: entry.stamp for entry in self._store.list(self._folder)}
        self._known = {path: one for path, one in self._known.items() if path in listed}
        for path, stamp in listed.items():
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                with suppress(NotFound):
                    self._known[path] = (stamp, read_as(self._store, path, spent.read))

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._context.wall()))

    def _counts(self, day: str) -> bool:
        today = self._today()
        per = self.limits.per
        return per == "all" or (day == today if per == "day" else day[:7] == today[:7])
