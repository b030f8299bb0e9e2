"""The usage and the cost of runs, in total and by day and model. The meter's counts are preferred
to tokens that a run recorded itself (`recorded_usage`)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sweeper.metrics.recorded_usage import RecordedTokens
from sweeper.money.prices import Amount, Prices, amount
from sweeper.results.runs import OPEN_DAY, RecordedRun, Used
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.usage import NO_USAGE, Usage, total


class Spent(NamedTuple):
    """The usage and cost of runs. `counted` is the source of the usage: `meter`, `metrics` (the
    runs recorded the usage), `meter and metrics`, or `nothing`. `days` has one entry per attempt
    (without a meter, per run): its usage, and the day (UTC) on which it ended."""

    usage: Usage
    amount: Amount
    counted: str
    days: tuple[Used, ...] = ()

    def record(self) -> dict[str, object]:
        """Return plain values: tokens by kind, requests, steps, `usd`, the models without a price,
        the source of the usage, the dates of the prices, and a text about usage that was not
        counted. `usd` is None if a model has no price or no tokens were counted."""
        counts = self.usage.counts
        unpriced = list(self.amount.unpriced)
        usd = None if unpriced or not counts.tokens else self.amount.usd
        fields = {"usd": usd, "unpriced": unpriced, "counted": self.counted}
        fields["prices"] = list(self.amount.dates)
        return {**counts._asdict(), **fields, "unknown": self.usage.unknown}


def spent(run: RecordedRun, prices: Prices) -> Spent:
    """Return the usage and cost of all attempts of a run. A repeated step counts each time, because
    the service charged for it each time."""
    days = tuple(run.used(attempt) for attempt in range(1, run.attempts + 1))
    usage = total(used.usage for used in days)
    if usage.models:
        return Spent(usage, amount(usage, prices), "meter", days)
    tokens = RecordedTokens()
    tokens.add(run.readable(run.written_rows, []))
    used, day = tokens.usage(run.config), (run.times["ended"] or OPEN_DAY)[:10]
    if used == NO_USAGE:
        return Spent(usage, Amount(0.0), "nothing", (Used(usage, day),))
    used = used._replace(unknown=usage.unknown)
    return Spent(used, amount(used, prices), "metrics", (Used(used, day),))


def together(several: Iterable[Spent], prices: Prices) -> Spent:
    """Return the sum of several usages and costs."""
    parts = list(several)
    usage = total(part.usage for part in parts)
    sources = sorted({part.counted for part in parts} - {"nothing"}) or ["nothing"]
    days = tuple(used for part in parts for used in part.days)
    return Spent(usage, amount(usage, prices), " and ".join(sources), days)


def chain(run: RecordedRun, costs: Spent, prices: Prices) -> Spent:
    """Return the total usage and cost of a run and of the earlier runs from whose checkpoints it
    started. `costs` has the usage and cost of the run alone."""
    above = run.lineage if isinstance(run, SweepRun) else ()
    return together((costs, *(spent(ancestor, prices) for ancestor in above)), prices)


def parts(
    costs: Spent, prices: Prices, *, by_day: bool, by_model: bool
) -> Iterator[tuple[str, str, Spent]]:
    """Yield (day, model, costs) for the parts of a run's costs. The day is the one in `Spent.days`,
    or `open` for an attempt or run that has not ended. Without `by_day` the day is "", and without
    `by_model` the model is ""."""
    for used in costs.days if by_day else (Used(costs.usage, ""),):
        if by_day and used.usage == NO_USAGE and costs.counted == "meter":
            continue
        usages = {"": used.usage}
        if by_model:
            models = used.usage.models
            usages = {name: used.usage._replace(models={name: models[name]}) for name in models}
        for model, usage in usages.items():
            yield used.day, model, Spent(usage, amount(usage, prices), costs.counted)
