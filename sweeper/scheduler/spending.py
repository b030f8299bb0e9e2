"""What a sweep has used until now, and whether its budget is spent."""

from contextlib import suppress

from sweeper import prices
from sweeper.errors import Unreachable
from sweeper.fields import config_file
from sweeper.model.daily_spending import Spent
from sweeper.model.plan import Budget
from sweeper.model.usage import total
from sweeper.scheduler.account_budget import AccountBudget
from sweeper.scheduler.attempt_usage import AttemptUsage

__all__ = ["Spending"]

_SECONDS_AN_HOUR = 3600.0
_PER = {"all": "", "month": " for this month", "day": " for today"}
_RAISED = "a relaunch with more in {}"


class Spending:
    """What all attempts of a sweep have used, beside what they may use at most, by the sweep's own
    `budget` and by that of its `account`. Raises `UsageError` for a budget in dollars when the
    prices cannot be read."""

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
        found = self._attempts.look().values()
        return Spent(total(one.usage for one in found), sum(one.seconds for one in found))

    def _judge(self, limits: Budget, used: Spent, what: str, how: str) -> None:
        """Note what is reached of some limits. What stops runs outweighs what does not."""
        why = self._over(limits, used, what)
        if why is None or self.is_over:
            return
        self.is_over = limits.on_reach == "stop"
        stopped = ", and what runs is stopped" if self.is_over else ""
        self.reached = f"{why}: nothing else is started{stopped}; {how} goes on"

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
