"""Compares what a sweep has used with its budget."""

from contextlib import suppress

from sweeper.errors import Unreachable
from sweeper.fields import config_file
from sweeper.money import prices
from sweeper.scheduler.account_budget import AccountBudget
from sweeper.scheduler.attempt_usage import AttemptUsage
from sweeper.sweep.daily_spending import Spent
from sweeper.sweep.plan import Budget
from sweeper.sweep.usage import total

_SECONDS_AN_HOUR = 3600.0
_PER = {"all": "", "month": " for this month", "day": " for today"}
_RAISED = "a relaunch with more in {}"


class Spending:
    """The usage of all attempts of a sweep, and its limits: the sweep's own `budget` and that of
    its `account`. Raises `UsageError` for a budget in dollars if the prices cannot be read."""

    def __init__(
        self,
        budget: Budget | None,
        attempts: AttemptUsage,
        account: AccountBudget | None = None,
    ) -> None:
        self._attempts, self._account = attempts, account
        self._budget = budget or Budget()
        limits = [self._budget] + ([] if account is None else [account.limits.budget])
        in_dollars = any(one.usd is not None for one in limits)
        self._prices = prices.load() if in_dollars else None
        self.reached: str | None = None
        self.is_over = False
        """Whether running jobs are to be stopped."""

    def look(self) -> None:
        """Adds up the usage and compares it with the limits. Raises `Unreachable` if the
        account's usage is unknown; then nothing more may start."""
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
        """Reports the final usage to the account."""
        if self._account is not None:
            with suppress(OSError):  # then what was told before holds
                self._account.exchange(self._used())

    def _used(self) -> Spent:
        """The current usage of all attempts."""
        found = self._attempts.look().values()
        return Spent(total(one.usage for one in found), sum(one.seconds for one in found))

    def _judge(self, limits: Budget, used: Spent, what: str, how: str) -> None:
        """Records which limits are reached. A limit that stops runs takes precedence."""
        why = self._over(limits, used, what)
        if why is None or self.is_over:
            return
        self.is_over = limits.on_reach == "stop"
        stopped = ", and what runs is stopped" if self.is_over else ""
        self.reached = f"{why}: nothing else is started{stopped}; {how} goes on"

    def _over(self, limits: Budget, used: Spent, what: str) -> str | None:
        """The reached limit, for people; None if there is none."""
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
