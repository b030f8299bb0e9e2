"""Computes what runs cost: steps, tokens, time, and dollars if prices are known."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.labels import duration
from sweeper.analysis.reading.history import History
from sweeper.analysis.reading.series import Floats
from sweeper.analysis.reading.sources import Source
from sweeper.errors import UsageError
from sweeper.metrics.recorded_usage import ALSO, SOURCES
from sweeper.money.forecast import Going, forecast, forecast_of, going, sentence
from sweeper.money.prices import Prices, amount, load, money
from sweeper.results.runs import RecordedRun
from sweeper.results.step_times import CLOCKS, StepTimes, step_times
from sweeper.results.sweeps import Sweep, SweepRun
from sweeper.sweep.labels import plural
from sweeper.sweep.usage import Usage, total

KINDS = ("prefill", "sample", "train")
"""The kinds of tokens that the Tinker service counts: prefill, sampled, trained."""

_MOST = 1e15
"""A larger number of tokens or seconds in a step is considered an error."""


@dataclass(frozen=True)
class AtPlace:
    """The usage of all attempts at one backend. `seconds` is the total time of the attempts that
    ended. `usd` is the cost of tokens (None if unknown); `prices` is a phrase with their dates. The
    cost of the backend's machines is not included."""

    name: str
    attempts: int
    seconds: float
    tokens: int
    usd: float | None
    prices: str | None = None

    @property
    def text(self) -> str:
        """A text such as `12 attempts on slurm, 3 h 20 min, 1,200 tokens, 0.4 dollars at prices of
        2026-10`."""
        parts = [f"{plural(self.attempts, 'attempt')} on {self.name}", duration(self.seconds)]
        parts += [f"{self.tokens:,} tokens"] if self.tokens else []
        if self.usd is not None:
            dated = "" if self.prices is None else f" at {self.prices}"
            parts.append(f"{money(self.usd)} dollars{dated}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Cost:
    """The cost of a run: `steps` done, `tokens` by kind, `seconds` of all attempts, and `usd` by
    the price table. `steps` and `seconds` are None if not recorded; `usd` is None if unknown."""

    steps: float | None
    tokens: Mapping[str, float]
    seconds: float | None
    usd: float | None = None

    @property
    def total(self) -> float | None:
        """The tokens of all kinds."""
        return sum(self.tokens.values()) if self.tokens else None


def steps_done(history: History, training: Sequence[str]) -> float | None:
    """Return the number of steps that a run did; None if it recorded no step. `training` are keys
    that only training steps record: evaluations before the first step or after the last step do not
    count. Steps may start at 0 or 1. If a run records only every 10th step, the last record stands
    for 10 steps."""
    recorded = [key for key in training if key in history.keys]
    there = [history.column(key)[1] for key in recorded]
    rows = np.logical_or.reduce(there) if there else np.ones(len(history.steps), dtype=bool)
    steps = np.unique(history.steps[rows & np.isfinite(history.steps)])
    if not len(steps):
        return None
    gap = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    each = bool(recorded) or gap == 1
    return float(steps[-1] - steps[0] + gap) if each and steps[0] <= gap else float(steps[-1])


def token_keys() -> list[str]:
    """Return the keys under which tokens are counted."""
    return [name for names in SOURCES.values() for name in names]


def token_columns(history: History) -> dict[str, Floats]:
    """Return a dict from kind to the tokens of each row (0 in rows without a count). The keys of
    tinker-cookbook and of sweeper's recipes are read. Kinds that the run never counted are left
    out."""
    columns: dict[str, Floats] = {}
    for kind, names in SOURCES.items():
        key = next((name for name in names if name in history.keys), None)
        if key is None:
            continue
        counts = _counts(history, key)
        if ALSO.get(key) in history.keys:
            counts = counts + _counts(history, ALSO[key])
        if key.startswith("tokens/") and not counts.any():
            continue  # the meter records all kinds, including those that the program does not use
        columns[kind] = counts
    return columns


def clock(history: History) -> Floats | None:
    """Return, for each row, the total seconds of all steps up to this row. A step that was repeated
    after a resume counts once. None if the run recorded no times."""
    key = next((name for name in CLOCKS if name in history.keys), None)
    return None if key is None else np.cumsum(_counts(history, key))


def spent(history: History) -> StepTimes | None:
    """Return the mean time of a run's step and of its parts. None if not recorded."""

    def sums(key: str) -> tuple[float, int]:
        return float(_counts(history, key).sum()), int(history.column(key)[1].sum())

    return step_times(history.keys, sums)


def _counts(history: History, key: str) -> Floats:
    values, there = history.column(key)
    return np.where(there & (values >= 0) & (values < _MOST), values, 0.0)


def parse_prices(text: str | None) -> dict[str, float]:
    """Parse `train=0.4,sample=0.8`, dollars per million tokens by kind. Raises `UsageError` if
    `text` has another form."""
    prices: dict[str, float] = {}
    for part in (text or "").split(","):
        kind, equals, amount = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        try:
            number = float(amount)
        except ValueError:
            number = -1.0
        if not equals or kind not in KINDS or not 0 <= number < float("inf"):
            raise UsageError(
                f"prices {part.strip()!r}: write dollars per million tokens, like "
                "train=0.4,sample=0.8,prefill=0.1"
            )
        prices[kind] = number
    return prices


def dollars(cost: Cost, prices: Mapping[str, float]) -> float | None:
    """Return the price of a run's tokens in dollars, by `prices`, or by the price table if
    `prices` is empty. None if no tokens were counted, or a kind of tokens has no price."""
    if not prices:
        return cost.usd
    if not cost.tokens or not set(cost.tokens) <= set(prices):
        return None
    return sum(count * prices[kind] / 1e6 for kind, count in cost.tokens.items())


class Priced:
    """The costs of metered usage, by the price table."""

    def __init__(self) -> None:
        self._prices: Prices | None = None
        with suppress(UsageError):  # `sweeper costs --prices` reports the error
            self._prices = load()

    def basis_of(self, used: Sequence[Usage]) -> str | None:
        """Return a phrase with the dates of the prices; None without a price table."""
        return None if self._prices is None else amount(total(used), self._prices).basis

    def sum_of(self, used: Sequence[Usage]) -> float | None:
        """Return the cost in dollars; None if unknown."""
        whole = total(used)
        if self._prices is None or not whole.models:
            return None
        cost = amount(whole, self._prices)
        return None if cost.unpriced else cost.usd

    def usd(self, run: RecordedRun) -> float | None:
        """Return the cost of all attempts of a run; None if unknown."""
        return self.sum_of([run.usage])

    def by_place(self, sources: Sequence[Source]) -> tuple[AtPlace, ...]:
        """Return the usage at each backend, for sweeps with several backends; else an empty
        tuple."""
        used: dict[str, list[Usage]] = {}
        seconds: dict[str, float] = {}
        for run in (placed.run for source in sources for placed in source.runs):
            if not isinstance(run, SweepRun) or not run.launch.backends:
                continue
            for place in run.launch.places:
                used.setdefault(place, [])
            for attempt in range(1, run.attempts + 1):
                place = run.backend_of(attempt)
                used.setdefault(place, []).append(run.used(attempt).usage)
                seconds[place] = seconds.get(place, 0.0) + (run.ended(attempt).wall_s or 0.0)
        return tuple(
            AtPlace(
                *(place, len(usage), seconds.get(place, 0.0)),
                *(total(usage).counts.tokens, self.sum_of(usage), self.basis_of(usage)),
            )
            for place, usage in used.items()
        )

    def of_sweep(self, sweep: Sweep) -> str | None:
        """Describe the usage of a sweep so far and the usage that is still expected; None if no
        usage was counted or the price table is unreadable."""
        prediction = forecast_of(sweep)
        if prediction is None or self._prices is None:
            return None
        return sentence(prediction, self._prices)

    def sentence(self, sources: Sequence[Source]) -> str | None:
        """Describe the usage of all sources so far and the usage that is still expected; None if
        no usage was counted or the price table is unreadable."""
        runs: list[Going] = []
        for source in sources:
            if source.plan is not None:
                handles = [placed.run for placed in source.runs if isinstance(placed.run, SweepRun)]
                runs += going(handles, source.plan)
        prediction = forecast(runs)
        if prediction is None or self._prices is None:
            return None
        return sentence(prediction, self._prices)
