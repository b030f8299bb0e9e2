"""Adds up what all sweeps of an account have used, and compares it with the budget in the user's
configuration.

<account>/spent/<sweep>.json replaced by the sweep's launcher, and kept when it is over

If one of these files cannot be read, the rest of the budget is unknown, so nothing new is
started. The account and its place are those of the quota (`account.py`).
"""

import time
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.fields import config_file
from sweeper.grid.budget import ACCOUNT
from sweeper.scheduler.account import account_of, quota_settings
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import name_of
from sweeper.store.base import Store
from sweeper.store.documents import encode, read_as
from sweeper.store.opening import open_store
from sweeper.sweep import daily_spending
from sweeper.sweep.daily_spending import NOTHING, Spent, SweepSpent
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Budget

_WRITE_SECONDS = 1.0
_REMOTE_SECONDS = 5.0


class Limits(NamedTuple):
    """The limits, and the period that they apply to: `day`, `month` or `all`."""

    budget: Budget
    per: str = "all"


def configured_budget() -> Limits | None:
    """The table `budget` of the configuration; None without one. Raises `EnvironmentFailure` for
    mistakes in it."""
    node, problems = config_file.table("budget")
    if not node.entries:
        return None
    found = dict(ACCOUNT.read(node, "budget", problems).values)
    config_file.refuse(problems)
    per = found.pop("per", "all")
    return Limits(Budget(**found), per)


def account_budget(context: Context, service: Service) -> "AccountBudget | None":
    """The budget of the account that a sweep uses; None if it has none. Raises
    `EnvironmentFailure`, `StoreError`."""
    limits = None if context.plan.service == "none" else configured_budget()
    if limits is None:
        return None
    settings = quota_settings()
    account = account_of(context.plan, service, settings)
    return AccountBudget(context, open_store(settings.place), f"{account}/spent", limits)


def _tokens(one: Spent) -> int:
    return one.usage.counts.tokens


class AccountBudget:
    """A launcher's knowledge of its account's spending. `trouble`: why that may be incomplete.
    Raises `StoreError`."""

    def __init__(self, context: Context, store: Store, folder: str, limits: Limits) -> None:
        self.limits = limits
        self._context, self._store, self._folder = context, store, folder
        root, sweep, self._created = context.store.root, context.sweep, context.plan.created
        self._identity = context.folder.ensure_identity()
        self._own = f"{folder}/{name_of(root, sweep, self._identity)}.json"
        self._before = f"{folder}/{name_of(root, sweep)}.json"
        self._seconds = _REMOTE_SECONDS if store.is_remote else _WRITE_SECONDS
        self._next = context.clock()
        self._known: dict[str, tuple[int, SweepSpent]] = {}
        self._mine: SweepSpent | None = None
        self.spent = NOTHING
        self.trouble: str | None = None

    def look(self, now: Spent) -> Spent:
        """What all sweeps used in the period, given that this sweep has used `now` in total. It
        may be incomplete (`trouble`)."""
        if self._context.clock() >= self._next:
            self._next = self._context.clock() + self._seconds
            self.exchange(now)
        several = [one for _, one in self._known.values()]
        several.append(self._with_ours(now))
        days = (item for sweep in several for item in sweep.days.items())
        self.spent = daily_spending.together([one for day, one in days if self._counts(day)])
        return self.spent

    def exchange(self, now: Spent) -> None:
        """Writes our own usage, and reads that of other sweeps."""
        self.trouble = None
        try:
            self._write(now)
        except StoreError as error:
            self.trouble = f"spending of this sweep cannot be told to the account: {error}"
        try:
            self._read()
        except StoreError as error:
            self.trouble = f"spending of the account cannot be read: {error}"

    def _with_ours(self, now: Spent) -> SweepSpent:
        """The usage of this sweep, including what is not written yet."""
        known = self._mine or SweepSpent(self._context.sweep)
        return known.plus(now, self._created, self._today())

    def _write(self, now: Spent) -> None:
        if self._mine is None:
            self._mine = self._recorded(now)
        found = self._with_ours(now)
        if found != self._mine:
            self._store.replace(self._own, encode(found.document()))
            self._mine = found

    def _recorded(self, now: Spent) -> SweepSpent:
        """The usage that earlier launchers of this sweep recorded. Usage recorded by version 0.1,
        or by the same sweep in a folder from which it was moved or copied, stays in its file and
        is not recorded again."""
        try:
            return read_as(self._store, self._own, daily_spending.read)._replace(
                identity=self._identity
            )
        except NotFound:
            fresh = SweepSpent(self._context.sweep, identity=self._identity)
        with suppress(StoreError):  # of those that cannot be read `exchange` tells
            self._read()
        told = [
            one.counted
            for path, (_, one) in self._known.items()
            if one.created == self._created
            and (path == self._before or one.identity == self._identity)
        ]
        if not told:
            return fresh
        # Of several copies that went on each by itself, this one comes from one that had less.
        before = [one for one in told if _tokens(one) <= _tokens(now)] or told
        counted = daily_spending.least(now, max(before, key=_tokens))
        return fresh._replace(created=self._created, counted=counted)

    def _read(self) -> None:
        """Reads the files of other sweeps, each separately. Raises `StoreError` for unreadable
        ones."""
        listed = {entry.path: entry.stamp for entry in self._store.list(self._folder)}
        listed.pop(self._own, None)
        self._known = {path: one for path, one in self._known.items() if path in listed}
        failed: StoreError | None = None
        for path, stamp in listed.items():
            known = self._known.get(path)
            if known is not None and known[0] == stamp:
                continue
            try:
                self._known[path] = (stamp, read_as(self._store, path, daily_spending.read))
            except NotFound:  # removed meanwhile
                self._known.pop(path, None)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._context.wall()))

    def _counts(self, day: str) -> bool:
        today = self._today()
        per = self.limits.per
        return per == "all" or (day == today if per == "day" else day[:7] == today[:7])
