"""What runs will use of their service, by what others of the same settings used; and with it what a
sweep has used until now, and has yet to use.

A run counts as an example of another if nothing differs that could change its size: the model, and
every setting that is no fraction (steps, batch size, lengths, rank, task, ...), the seed left out.
A learning rate makes no run longer. Where no run is alike, one that differs in the number of its
steps alone is taken, in proportion. Where there is none either, nothing is said of that run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.money.prices import Prices, amount, money
from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan
from sweeper.sweep.race import later_runs
from sweeper.sweep.recipe import Recipe
from sweeper.sweep.states import State
from sweeper.sweep.usage import NO_USAGE, Counts, SweepUsage, Usage, beyond, total

if TYPE_CHECKING:
    from sweeper.results.sweeps import Sweep, SweepRun

_STEPS = ("max_steps", "n_steps", "num_steps", "max_train_steps", "n_batches")
"""What recipes call the number of their steps."""
_CHECKPOINT = "tinker://"
_REFERENCE = "${"


class Settings(NamedTuple):
    """What of a run may change how much it uses: its recipe, and of its configuration all but
    fractions, the seed, and which checkpoint it goes on from."""

    recipe: str
    values: Mapping[str, object]


class Example(NamedTuple):
    """What a run of those settings used, and its hours at work, pauses left out."""

    settings: Settings
    usage: Usage
    hours: float = 0.0


class Guess(NamedTuple):
    """Of one run: the mean usage of its examples and what each used, their mean hours, and which of
    the examples they are."""

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
    """Guesses by examples, each made once."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._made: dict[str, Guess | None] = {}

    def of(self, wanted: Settings) -> Guess | None:
        """Return what a run of these settings will use; None if no example shows it."""
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
    """Return how many times as many steps the wanted have, if the rest is the same; None if it is
    not. A setting that refers to a run before it may be anything."""
    if wanted.recipe != other.recipe:
        return None
    either = (*wanted.values.items(), *other.values.items())
    free = {k for k, v in either if isinstance(v, str) and _REFERENCE in v}
    here = {key: value for key, value in wanted.values.items() if key not in free}
    there = {key: value for key, value in other.values.items() if key not in free}
    if here == there:
        return 1.0
    for key in _STEPS:
        many, few = here.get(key), there.get(key)
        if not (isinstance(many, int) and isinstance(few, int) and many > 0 < few):
            continue
        if {**here, key: few} == there:
            return many / few
    return None


def _times(usage: Usage, ratio: float) -> Usage:
    models = {
        model: Counts(*(round(count * ratio) for count in counts))
        for model, counts in usage.models.items()
    }
    return Usage(models, usage.unknown)


def not_known_yet(plan: Plan) -> list[Settings]:
    """Return the settings of each run of the stages that is not known before others have ended, and
    of each that a race may still start."""
    later = later_runs(plan) if plan.unknown else []
    counts = [settings_of(run.config, plan.recipe) for run in later]
    for stage in plan.stages:
        number = plan.unknown.get(stage.name, 0)
        each = [settings_of(run.config, stage.recipe) for run in stage.runs]
        counts += [each[n % len(each)] for n in range(number)] if each else []
    return counts


class Going(NamedTuple):
    """A run of a sweep: what all its attempts have used, whether it will use more, and whether it
    is an `example` for others: one that has succeeded in one attempt."""

    settings: Settings
    used: Usage = NO_USAGE
    finished: bool = False
    example: bool = False


def forecast(runs: Iterable[Going]) -> SweepUsage | None:
    """Return what a sweep has used and has yet to use; None where nothing was counted."""
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
    """Return what a recorded sweep has used and has yet to use, by how each of its runs ended; None
    where nothing was counted."""
    return forecast((*going(sweep.runs, sweep.plan), *map(Going, not_known_yet(sweep.plan))))


def going(runs: "Sequence[SweepRun]", plan: Plan) -> list[Going]:
    """Return recorded runs of a plan."""
    return [_going(run, plan.recipe_of(run.stage)) for run in runs]


def _going(run: "SweepRun", recipe: Recipe) -> Going:
    finished = run.is_finished or run.retired
    succeeded = run.state is State.SUCCEEDED and run.attempts == 1
    return Going(settings_of(run.config, recipe), run.usage, finished, succeeded)


def sentence(forecast: SweepUsage, prices: Prices) -> str:
    """Return `used 1,240,000 tokens, 3.10 dollars by prices of 2026-10; about 2,000,000 tokens,
    4.90 dollars to come`. No dollars where a model has no price."""
    spent, to_come = amount(forecast.used, prices), amount(forecast.to_come, prices)
    unpriced = sorted({*spent.unpriced, *to_come.unpriced})
    text = f"used {forecast.used.counts.tokens:,} tokens"
    if unpriced:
        text += f" (no price known for {', '.join(unpriced)})"
    else:
        text += f", {money(spent.usd)} dollars by {prices.told}"
    if forecast.to_come.models:
        text += f"; about {forecast.to_come.counts.tokens:,} tokens"
        text += " to come" if unpriced else f", {money(to_come.usd)} dollars to come"
    if forecast.untold:
        text += f"; nothing is known yet of {plural(forecast.untold, 'run')}"
    return text


def brief(forecast: SweepUsage, prices: Prices) -> str:
    """Return `3.10 dollars, 4.90 to come`; in tokens where a model has no price. `and more` where
    of some runs nobody knows how much."""
    spent, later = amount(forecast.used, prices), amount(forecast.to_come, prices)
    if spent.unpriced or later.unpriced:
        used, to_come = (
            _rounded(forecast.used.counts.tokens),
            _rounded(forecast.to_come.counts.tokens),
        )
        unit = "tokens"
    else:
        used, to_come, unit = money(spent.usd), money(later.usd), "dollars"
    if not forecast.to_come.models:
        return f"{used} {unit}" + (" so far" if forecast.untold else "")
    more = " and more" if forecast.untold else ""
    return f"{used} {unit}, {to_come}{more} to come"


def document(forecast: SweepUsage, prices: Prices) -> dict[str, object]:
    """As `status --json` has it; `usd` is None where a model has no price."""
    return {
        "used": _document(forecast.used, prices),
        "to_come": _document(forecast.to_come, prices),
        "untold": forecast.untold,
        "time": forecast.time,
        "prices": prices.told,
    }


def _rounded(count: int) -> str:
    """Return `1.96 M`, `320 k`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def _document(usage: Usage, prices: Prices) -> dict[str, object]:
    cost = amount(usage, prices)
    usd = None if cost.unpriced else cost.usd
    return {"tokens": usage.counts.tokens, "usd": usd, "unpriced": list(cost.unpriced)}
