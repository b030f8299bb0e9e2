"""Forecasts the usage of runs from finished runs with the same model and the same settings, except
the seed and fractions such as learning rates. If only the number of steps differs, usage is scaled
in proportion."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.money.prices import Amount, Prices, amount, basis, money
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan
from sweeper.sweep.race import later_runs
from sweeper.sweep.recipe import Recipe
from sweeper.sweep.states import State
from sweeper.sweep.usage import NO_USAGE, Counts, SweepUsage, Usage, beyond, total

if TYPE_CHECKING:
    from sweeper.results.sweeps import Sweep, SweepRun

_STEPS = ("max_steps", "n_steps", "num_steps", "max_train_steps", "n_batches")
"""Names that recipes use for the number of steps."""
_CHECKPOINT = "tinker://"
_REFERENCE = "${"


class Settings(NamedTuple):
    """The properties of a run that may change its usage: its recipe, and `values`, which is its
    configuration except for floats, the seed and the paths of checkpoints."""

    recipe: str
    values: Mapping[str, object]


class Example(NamedTuple):
    """A run from which the usage of other runs is forecast: its settings, its usage, and its
    duration in hours without pauses (0: unknown)."""

    settings: Settings
    usage: Usage
    hours: float = 0.0


class Guess(NamedTuple):
    """A forecast for one run: the mean usage of its examples, the usage of each example, their mean
    hours, and the indices of the examples."""

    usage: Usage
    each: tuple[Usage, ...]
    hours: float
    examples: frozenset[int]


def settings_of(config: Mapping[str, object], recipe: Recipe) -> Settings:
    """Return the settings of a run of the recipe."""
    values = {
        key: value
        for key, value in config.items()
        if not isinstance(value, float)
        and key != recipe.seed_field
        and not (isinstance(value, str) and value.startswith(_CHECKPOINT))
    }
    return Settings(recipe.reference, values)


class Guesses:
    """Forecasts of runs from examples. The forecast for equal settings is computed only once."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._made: dict[str, Guess | None] = {}

    def of(self, wanted: Settings) -> Guess | None:
        """Return the forecast for a run with the settings `wanted`; None if no example has matching
        settings."""
        key = repr((wanted.recipe, sorted(wanted.values.items(), key=lambda item: item[0])))
        if key not in self._made:
            self._made[key] = self._guess(wanted)
        return self._made[key]

    def _guess(self, wanted: Settings) -> Guess | None:
        ratios = ((n, _ratio(wanted, example.settings)) for n, example in enumerate(self._examples))
        fitting = [(n, ratio) for n, ratio in ratios if ratio is not None]
        scaled = [(n, ratio) for n, ratio in fitting if ratio == 1] or fitting
        if not scaled:
            return None
        usages = [_times(self._examples[n].usage, ratio) for n, ratio in scaled]
        return Guess(
            usage=_times(total(usages), 1 / len(usages)),
            each=tuple(usages),
            hours=sum(self._examples[n].hours * ratio for n, ratio in scaled) / len(scaled),
            examples=frozenset(n for n, _ in scaled),
        )


def _ratio(wanted: Settings, other: Settings) -> float | None:
    """Return the number of steps of `wanted` divided by that of `other`; None if another setting
    differs. A setting with a reference to an earlier run matches any value."""
    if wanted.recipe != other.recipe:
        return None
    either = (*wanted.values.items(), *other.values.items())
    free = {k for k, v in either if isinstance(v, str) and _REFERENCE in v}
    values = {key: value for key, value in wanted.values.items() if key not in free}
    other_values = {key: value for key, value in other.values.items() if key not in free}
    if values == other_values:
        return 1.0
    for key in _STEPS:
        steps, other_steps = values.get(key), other_values.get(key)
        if not (
            isinstance(steps, int) and isinstance(other_steps, int) and steps > 0 < other_steps
        ):
            continue
        if {**values, key: other_steps} == other_values:
            return steps / other_steps
    return None


def _times(usage: Usage, ratio: float) -> Usage:
    models = {
        model: Counts(*(round(count * ratio) for count in counts))
        for model, counts in usage.models.items()
    }
    return Usage(models, usage.unknown)


def not_known_yet(plan: Plan) -> list[Settings]:
    """Return the settings of each run that the plan does not contain yet: runs that later stages
    will add, and runs that a race may still start."""
    later = later_runs(plan) if plan.unknown else []
    settings = [settings_of(run.config, plan.recipe) for run in later]
    for stage in plan.stages:
        number = plan.unknown.get(stage.name, 0)
        each = [settings_of(run.config, stage.recipe) for run in stage.runs]
        settings += [each[n % len(each)] for n in range(number)] if each else []
    return settings


class Going(NamedTuple):
    """A run of a sweep: its settings, and the usage of all its attempts. `finished` is True if the
    run will use no more tokens, and `example` is True if other runs can be forecast from it (it
    succeeded in its first attempt)."""

    settings: Settings
    used: Usage = NO_USAGE
    finished: bool = False
    example: bool = False


def forecast(runs: Iterable[Going]) -> SweepUsage | None:
    """Return the past and the forecast usage of a sweep; None if no usage was counted."""
    runs = list(runs)
    used = total(run.used for run in runs)
    if not used.models:
        return None
    examples = [
        Example(guess.settings, guess.used) for guess in runs if guess.example and guess.used.models
    ]
    guesses = Guesses(examples)
    guessed = [(run, guesses.of(run.settings)) for run in runs if not run.finished]
    to_come = total(beyond(guess.usage, run.used) for run, guess in guessed if guess is not None)
    return SweepUsage(used, to_come, sum(guess is None for _, guess in guessed))


def forecast_of(sweep: "Sweep") -> SweepUsage | None:
    """Return the past and the forecast usage of a recorded sweep; None if no usage was counted."""
    return forecast((*going(sweep.runs, sweep.plan), *map(Going, not_known_yet(sweep.plan))))


def going(runs: "Sequence[SweepRun]", plan: Plan) -> list[Going]:
    """Return the recorded runs of a plan in the form that `forecast` takes."""
    return [_going(run, plan.recipe_of(run.stage)) for run in runs]


def _going(run: "SweepRun", recipe: Recipe) -> Going:
    finished = run.is_finished or run.retired
    succeeded = run.state is State.SUCCEEDED and run.attempts == 1
    return Going(settings_of(run.config, recipe), run.usage, finished, succeeded)


def sentence(forecast: SweepUsage, prices: Prices) -> str:
    """Return a forecast for people: `used 1,240,000 tokens, 3.10 dollars at prices of 2026-10;
    about 2,000,000 tokens, 4.90 dollars to come`. Dollars are left out if a model has no price."""
    spent, to_come = amount(forecast.used, prices), amount(forecast.to_come, prices)
    unpriced = sorted({*spent.unpriced, *to_come.unpriced})
    text = f"used {forecast.used.counts.tokens:,} tokens"
    if unpriced:
        text += f" (no price known for {', '.join(unpriced)})"
    else:
        text += f", {money(spent.usd)} dollars at {basis(spent, to_come)}"
    if forecast.to_come.models:
        text += f"; about {forecast.to_come.counts.tokens:,} tokens"
        text += " to come" if unpriced else f", {money(to_come.usd)} dollars to come"
    if forecast.untold:
        text += f"; no data yet on {plural(forecast.untold, 'run')}"
    return text


def brief(forecast: SweepUsage, prices: Prices) -> str:
    """Return a short forecast for people: `3.10 dollars, 4.90 to come (prices of 2026-10)`, or in
    tokens if a model has no price. If the usage of some runs is unknown, add `and more`, or `so
    far` if no run has a forecast."""
    spent, later = amount(forecast.used, prices), amount(forecast.to_come, prices)
    if spent.unpriced or later.unpriced:
        used, to_come = (
            _rounded(forecast.used.counts.tokens),
            _rounded(forecast.to_come.counts.tokens),
        )
        unit, by = "tokens", ""
    else:
        used, to_come, unit = money(spent.usd), money(later.usd), "dollars"
        by = f" ({basis(spent, later)})"
    if not forecast.to_come.models:
        return f"{used} {unit}" + (" so far" if forecast.untold else "") + by
    more = " and more" if forecast.untold else ""
    return f"{used} {unit}, {to_come}{more} to come{by}"


def document(forecast: SweepUsage, prices: Prices) -> dict[str, object]:
    """Return the forecast as in `status --json`; `usd` is None if a model has no price."""
    spent, to_come = amount(forecast.used, prices), amount(forecast.to_come, prices)
    return {
        "used": _document(forecast.used, spent),
        "to_come": _document(forecast.to_come, to_come),
        "untold": forecast.untold,
        "time": forecast.time,
        "prices": basis(spent, to_come),
    }


def _rounded(count: int) -> str:
    """Format a count as `1.96 M` or `320 k`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def _document(usage: Usage, cost: Amount) -> dict[str, object]:
    usd = None if cost.unpriced else cost.usd
    return {"tokens": usage.counts.tokens, "usd": usd, "unpriced": list(cost.unpriced)}
