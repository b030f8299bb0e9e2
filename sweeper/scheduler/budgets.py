"""Compares the usage of a sweep and of its account with their budgets."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError, Unreachable
from sweeper.fields import config_file
from sweeper.grid.budget import ACCOUNT
from sweeper.metrics.recorded_usage import AttemptRecords
from sweeper.money import prices
from sweeper.money.forecast import Going, forecast, not_known_yet, settings_of
from sweeper.scheduler.account import account_of, quota_settings
from sweeper.scheduler.context import Context
from sweeper.scheduler.parallelism import name_of
from sweeper.store.base import Store, each
from sweeper.store.documents import encode, parse_json, place_of, read_as, timestamp
from sweeper.store.opening import open_store
from sweeper.sweep import daily_spending
from sweeper.sweep.daily_spending import NOTHING, Spent, SweepSpent
from sweeper.sweep.event import read as read_outcome
from sweeper.sweep.heartbeats import Heartbeat, Heartbeats, read_heartbeat
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Budget, Plan
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import OUTCOMES, Event, State
from sweeper.sweep.usage import NO_USAGE, SweepUsage, Usage, total
from sweeper.worker.usage import FOLDER, UsageFiles

_SUM_SECONDS = 10.0
"""Seconds between two calculations of a sweep's usage."""
_MOST_OUTCOMES = 10_000
_REMOTE_LOOKS = 100
"""Maximum number of outcomes that a calculation reads from a remote store, where each read is
slow."""

Attempt = tuple[str, int]


class Used(NamedTuple):
    """The usage of one attempt, and its working time in seconds, without pauses."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


class AttemptUsage:
    """The usage of all attempts of a sweep. If an attempt's usage cannot be read, the last known
    value counts."""

    def __init__(self, context: Context, run_table: RunTable, heartbeats: Heartbeats) -> None:
        self._context = context
        self._run_table, self._heartbeats = run_table, heartbeats
        self.outcomes: dict[str, bytes] = {}
        """The outcomes that were read from a remote store, by path."""
        self._seen: dict[Attempt, Used] = {}
        self._final: set[Attempt] = set()
        self._files: dict[Attempt, UsageFiles] = {}
        self._records: dict[Attempt, tuple[float, AttemptRecords]] = {}

    def check(self, most: int | None = None) -> Mapping[Attempt, Used]:
        """Return the current usage of each attempt. One call reads at most `most` new attempts. The
        result lacks the other new attempts."""
        keys: list[Attempt] = []
        for run, view in self._run_table.views.items():
            for attempt in range(1, view.state.opened + 1):
                key = run, attempt
                if key in self._final or (most == 0 and key not in self._seen):
                    continue
                most = most if most is None or key in self._seen else most - 1
                keys.append(key)
        each(self._context.store, self._look_at, keys)
        return self._seen

    def _look_at(self, key: Attempt) -> None:
        """Record the current usage of an attempt if it is larger than the known usage."""
        run, attempt = key
        happened = self._run_table.events(run)
        event = next((event for event in OUTCOMES if (attempt, event) in happened), None)
        used = self._ended(key, event) if event is not None else self._at_work(key)
        if used.usage == NO_USAGE:
            used = used._replace(usage=self._recorded(key, ended=key in self._final))
        before = self._seen.get(key, Used())
        usage = max(before.usage, used.usage, key=lambda usage: usage.counts.tokens)
        self._seen[key] = Used(usage, max(before.seconds, used.seconds))

    def _at_work(self, key: Attempt) -> Used:
        beat = self._heartbeats.known.get(key)
        if beat is not None:
            return self._counted(key, _of(beat.body))
        if key in self._seen:  # A lost worker reports nothing new.
            return Used()
        return self._counted(key, self._usage_so_far(key))

    def _ended(self, key: Attempt, event: Event) -> Used:
        """Return the usage of an ended attempt, from its outcome."""
        path = self._context.folder.event(*key, event)
        try:
            data = self._context.store.read(path)
            place = place_of(self._context.store, path)
            outcome = read_outcome(parse_json(data, place), place)
        except (NotFound, StoreError):
            return Used()  # The outcome is read again in the next round.
        if self._context.store.is_remote and len(self.outcomes) < _MOST_OUTCOMES:
            self.outcomes[path] = data
        self._final.add(key)
        seconds = max(0.0, (outcome.wall_s or 0.0) - (outcome.paused_s or 0.0))
        used = Used(outcome.usage, seconds)
        if outcome.usage == NO_USAGE and self._recipe_counts():
            used = self._counted(key, self._usage_so_far(key)._replace(seconds=seconds))
        self._files.pop(key, None)
        return used

    def _recorded(self, key: Attempt, *, ended: bool) -> Usage:
        """Return the tokens in an attempt's metrics. Return `NO_USAGE` if the metrics cannot be
        read, or were read from a remote store only seconds ago."""
        now, store = self._context.clock(), self._context.store
        records = AttemptRecords(self._context.folder, *key, self._context.listed)
        at, records = self._records.get(key, (now - _SUM_SECONDS, records))
        if store.is_remote and not ended and now - at < _SUM_SECONDS:
            return NO_USAGE  # The value that was read last still counts.
        try:
            usage = records.read(self._run_table.runs[key[0]].config, ended=ended)
        except StoreError:
            self._final.discard(key)  # The usage is read again in the next round.
            return NO_USAGE
        self._records[key] = now, records
        if ended:
            del self._records[key]
        return usage

    def _recipe_counts(self) -> bool:
        return any(part.recipe.kind != "command" for part in self._context.plan.parts)

    def _usage_so_far(self, key: Attempt) -> Used:
        """Return the usage that the worker last reported."""
        return _of(read_heartbeat(self._context.store, self._context.folder.heartbeat(*key)))

    def _counted(self, key: Attempt, recorded: Used) -> Used:
        """Return `recorded`, with the usage in the attempt's usage files if this machine can read
        them."""
        files = self._files.get(key)
        if files is None:
            folder = self._context.store.local_path(self._context.folder.attempt(*key))
            if folder is None:
                return recorded
            files = self._files[key] = UsageFiles(os.path.join(folder, FOLDER))
        counted = files.read()
        return recorded if counted == NO_USAGE else recorded._replace(usage=counted)


def _of(body: Heartbeat) -> Used:
    return Used(body.usage, max(0.0, (body.up_s or 0.0) - body.paused_s))


class SweepUsageWatch:
    """The usage of a sweep, which is added up every few seconds. The launcher publishes the sum, so
    that readers need not query each run."""

    def __init__(self, context: Context, run_table: RunTable, attempts: AttemptUsage) -> None:
        self._context, self._run_table, self._attempts = context, run_table, attempts
        self._at: float | None = None
        self._events = 0
        self._published: SweepUsage | None = None

    def check(self, plan: Plan) -> SweepUsage | None:
        """Return the sweep's usage, which may be some seconds old. Return None if no attempt has
        used the service yet, or if the usage of an attempt is unknown."""
        now, views = self._context.clock(), self._run_table.views.values()
        events = sum(view.size for view in views)
        happened = events != self._events or self._published is None
        busy = any(view.state.at_work for view in views)
        if self._at is None or now - self._at >= _SUM_SECONDS or (happened and not busy):
            self._at, self._events = now, events
            usage = self._sum(plan)
            before = self._published and self._published._replace(time=None)
            if usage != before:
                self._published = None if usage is None else usage._replace(time=timestamp())
        return self._published

    def _sum(self, plan: Plan) -> SweepUsage | None:
        usages = self._attempts.check(_REMOTE_LOOKS if self._context.store.is_remote else None)
        runs = [Going(settings) for settings in not_known_yet(plan)]
        for run, view in self._run_table.views.items():
            planned, state = self._run_table.runs[run], view.state
            attempts = [(run, attempt) for attempt in range(1, state.opened + 1)]
            if any(key not in usages for key in attempts):
                return None
            wants = view.wants and run not in self._run_table.retired
            runs.append(
                Going(
                    settings_of(planned.config, plan.recipe_of(planned.stage)),
                    total(usages[key].usage for key in attempts),
                    finished=not (wants or state.at_work),
                    example=state.state is State.SUCCEEDED and state.opened == 1,
                )
            )
        return forecast(runs)


_WRITE_SECONDS = 1.0
_REMOTE_SECONDS = 5.0


class Limits(NamedTuple):
    """The budget of an account. It is for each `day` or `month`, or for all time (`all`)."""

    budget: Budget
    per: str = "all"


def configured_budget() -> Limits | None:
    """Return the budget in the user's configuration file; None if the file has no budget. Raises
    `EnvironmentFailure` for mistakes in the file."""
    node, problems = config_file.table("budget")
    if not node.entries:
        return None
    limits = dict(ACCOUNT.read(node, "budget", problems).values)
    config_file.refuse(problems)
    per = limits.pop("per", "all")
    return Limits(Budget(**limits), per)


def account_budget(context: Context, service: Service) -> "AccountBudget | None":
    """Return the budget of the account that a sweep uses; None if no budget is configured or the
    sweep uses no service. Raises `EnvironmentFailure` for mistakes in the configuration file,
    `StoreError` if a store cannot be used."""
    limits = None if context.plan.service == "none" else configured_budget()
    if limits is None:
        return None
    settings = quota_settings()
    account = account_of(context.plan, service, settings)
    return AccountBudget(context, open_store(settings.place), f"{account}/spent", limits)


def _tokens(spent: Spent) -> int:
    return spent.usage.counts.tokens


class AccountBudget:
    """The spending of all sweeps of an account. `trouble` is the reason why the spending may be
    incomplete, or None. Raises `StoreError` if the sweep's identity cannot be read or created."""

    def __init__(self, context: Context, store: Store, folder: str, limits: Limits) -> None:
        self.limits = limits
        self._context, self._store, self._folder = context, store, folder
        root, sweep, self._created = context.store.root, context.sweep, context.plan.created
        self._identity = context.folder.ensure_identity()
        self._path = f"{folder}/{name_of(root, sweep, self._identity)}.json"
        self._before = f"{folder}/{name_of(root, sweep)}.json"
        self._seconds = _REMOTE_SECONDS if store.is_remote else _WRITE_SECONDS
        self._next = context.clock()
        self._others: dict[str, tuple[int, SweepSpent]] = {}
        self._mine: SweepSpent | None = None
        self.spent = NOTHING
        self.trouble: str | None = None

    def check(self, now: Spent) -> Spent:
        """Return the usage of all sweeps of the account in the period. `now` is the total usage of
        this sweep. The result may be incomplete; then `trouble` says why."""
        if self._context.clock() >= self._next:
            self._next = self._context.clock() + self._seconds
            self.exchange(now)
        several = [spent for _, spent in self._others.values()]
        several.append(self._with_ours(now))
        days = (item for sweep in several for item in sweep.days.items())
        self.spent = daily_spending.together([spent for day, spent in days if self._counts(day)])
        return self.spent

    def exchange(self, now: Spent) -> None:
        """Write the usage of this sweep, and read the usage of the account's other sweeps."""
        self.trouble = None
        try:
            self._write(now)
        except StoreError as error:
            self.trouble = f"cannot report this sweep's spending to the account: {error}"
        try:
            self._read()
        except StoreError as error:
            self.trouble = f"cannot read the account's spending: {error}"

    def _with_ours(self, now: Spent) -> SweepSpent:
        """Return the usage of this sweep, including usage that is not written yet."""
        record = self._mine or SweepSpent(self._context.sweep)
        return record.plus(now, self._created, self._today())

    def _write(self, now: Spent) -> None:
        if self._mine is None:
            self._mine = self._recorded(now)
        records = self._with_ours(now)
        if records != self._mine:
            self._store.replace(self._path, encode(records.document()))
            self._mine = records

    def _recorded(self, now: Spent) -> SweepSpent:
        """Return the usage that earlier launchers of this sweep have recorded for the account. If
        the sweep was moved or copied, `counted` starts at the usage in the original's file."""
        try:
            return read_as(self._store, self._path, daily_spending.read)._replace(
                identity=self._identity
            )
        except NotFound:
            fresh = SweepSpent(self._context.sweep, identity=self._identity)
        with suppress(StoreError):  # `exchange` reports files that cannot be read.
            self._read()
        lines = [
            record.counted
            for path, (_, record) in self._others.items()
            if record.created == self._created
            and (path == self._before or record.identity == self._identity)
        ]
        if not lines:
            return fresh
        # Several copies of the sweep may have continued separately. The copy that this one comes
        # from had no more usage than this one has now.
        before = [record for record in lines if _tokens(record) <= _tokens(now)] or lines
        counted = daily_spending.least(now, max(before, key=_tokens))
        return fresh._replace(created=self._created, counted=counted)

    def _read(self) -> None:
        """Read the files of other sweeps. If a file cannot be read, first read all other files, and
        then raise `StoreError`."""
        listed = {entry.path: entry.stamp for entry in self._store.list(self._folder)}
        listed.pop(self._path, None)
        self._others = {path: entry for path, entry in self._others.items() if path in listed}
        failed: StoreError | None = None
        for path, stamp in listed.items():
            cached = self._others.get(path)
            if cached is not None and cached[0] == stamp:
                continue
            try:
                self._others[path] = (stamp, read_as(self._store, path, daily_spending.read))
            except NotFound:  # The file was removed meanwhile.
                self._others.pop(path, None)
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


_SECONDS_AN_HOUR = 3600.0
_PER = {"all": "", "month": " for this month", "day": " for today"}
_RAISED = "raise it in {} and launch again"


class Spending:
    """The usage of all attempts of a sweep, compared with the budgets of the sweep and of its
    account. Raises `UsageError` for a budget in dollars if the prices cannot be read."""

    def __init__(
        self,
        budget: Budget | None,
        attempts: AttemptUsage,
        account: AccountBudget | None = None,
    ) -> None:
        self._attempts, self._account = attempts, account
        self._budget = budget or Budget()
        limits = [self._budget] + ([] if account is None else [account.limits.budget])
        in_dollars = any(limit.usd is not None for limit in limits)
        self._prices = prices.load() if in_dollars else None
        self.reached: str | None = None
        self.is_over = False
        """Whether running jobs must be stopped."""

    def check(self) -> None:
        """Add up the usage and compare it with the limits. Raises `Unreachable` if no limit is
        reached but the account's usage may be incomplete."""
        used = self._used()
        self.reached, self.is_over = None, False
        if self._account is not None:
            limits, per = self._account.limits
            name = "the budget of your account" + _PER[per]
            self._judge(limits, self._account.check(used), name, _RAISED.format(config_file.file()))
        self._judge(self._budget, used, "the budget", "run `sweeper launch` with a larger budget")
        if self._account is not None and self._account.trouble and self.reached is None:
            raise Unreachable(self._account.trouble)

    def end(self) -> None:
        """Report the final usage to the account."""
        if self._account is not None:
            with suppress(OSError):  # The last report remains.
                self._account.exchange(self._used())

    def _used(self) -> Spent:
        """Return the current usage of all attempts."""
        usages = self._attempts.check().values()
        return Spent(total(used.usage for used in usages), sum(used.seconds for used in usages))

    def _judge(self, limits: Budget, used: Spent, name: str, how: str) -> None:
        """Record whether one of the `limits` is reached. Change nothing if an earlier limit
        already stops the running jobs."""
        why = self._over(limits, used, name)
        if why is None or self.is_over:
            return
        self.is_over = limits.on_reach == "stop"
        stopped = ", and running jobs are stopped" if self.is_over else ""
        self.reached = f"{why}: no more runs are started{stopped}; {how} to continue"

    def _over(self, limits: Budget, used: Spent, name: str) -> str | None:
        """Return a message if a limit is reached, or if a limit in dollars cannot be checked since
        a model has no price; else None. The message calls the budget `name`."""
        hours, tokens = used.seconds / _SECONDS_AN_HOUR, used.usage.counts.tokens
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"{name} is spent ({tokens:,} of {limits.tokens:,.0f} tokens)"
        if limits.hours is not None and hours >= limits.hours:
            return f"{name} is spent ({hours:,.2f} of {limits.hours:,.2f} hours of runs)"
        if limits.usd is None or self._prices is None:
            return None
        amount = prices.amount(used.usage, self._prices)
        if amount.unpriced:
            models = ", ".join(amount.unpriced)
            return f"{name} is in dollars, but no price is known for {models}"
        if amount.usd >= limits.usd:
            spent = f"{prices.money(amount.usd)} of {prices.money(limits.usd)} dollars"
            return f"{name} is spent ({spent}, at {amount.basis})"
        return None
