"""What runs will use of their service, by what others of the same settings used; and with it what a
sweep has used until now, and has yet to use.

A run counts as an example of another if nothing differs that could change its size: the model, and
every setting that is no fraction (steps, batch size, lengths, rank, task, ...), the seed left out.
A learning rate makes no run longer. Where no run is alike, one that differs in the number of its
steps alone is taken, in proportion. Where there is none either, nothing is said of that run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sweeper.model.plan import Plan, Recipe
from sweeper.model.states import State
from sweeper.model.usage import NO_USAGE, Counts, Usage, beyond, total
from sweeper.prices import Amount, Prices, amount, money
from sweeper.results.runs import Sweep, SweepRun

__all__ = [
    "Example",
    "Forecast",
    "Going",
    "Guess",
    "Guesses",
    "Settings",
    "brief",
    "forecast",
    "forecast_of",
    "going",
    "not_known_yet",
    "sentence",
    "settings_of",
]

_STEPS = ("max_steps", "n_steps", "num_steps", "max_train_steps", "n_batches")
"""What recipes call the number of their steps."""
_CHECKPOINT = "tinker://"
_REFERENCE = "${"


class Settings(NamedTuple):
    """What of a run may change how much it uses: its recipe, and of its configuration all but
    fractions, the seed, and which checkpoint it goes on from."""

    recipe: str
    values: Mapping[str, Any]


class Example(NamedTuple):
    """What a run of those settings used, and its hours at work, pauses left out."""

    settings: Settings
    usage: Usage
    hours: float = 0.0


class Guess(NamedTuple):
    """Of one run: the mean usage of its examples, the dollars of each, their mean hours, and which
    of the examples they are."""

    usage: Usage
    dollars: tuple[float, ...]
    hours: float
    examples: frozenset[int]


def settings_of(config: Mapping[str, Any], recipe: Recipe) -> Settings:
    """The settings of a run of the recipe."""
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

    def __init__(self, examples: Sequence[Example], prices: Prices) -> None:
        self._examples, self._prices = examples, prices
        self._made: dict[str, Guess | None] = {}

    def of(self, wanted: Settings) -> Guess | None:
        """What a run of these settings will use; None where no example tells."""
        key = repr((wanted.recipe, sorted(wanted.values.items(), key=lambda item: item[0])))
        if key not in self._made:
            self._made[key] = self._guess(wanted)
        return self._made[key]

    def _guess(self, wanted: Settings) -> Guess | None:
        ratios = ((n, _ratio(wanted, one.settings)) for n, one in enumerate(self._examples))
        fitting = [(n, ratio) for n, ratio in ratios if ratio is not None]
        scaled = [(n, ratio) for n, ratio in fitting if ratio == 1] or fitting
        if not scaled:
            return None
        usages = [_times(self._examples[n].usage, ratio) for n, ratio in scaled]
        return Guess(
            usage=_times(total(usages), 1 / len(usages)),
            dollars=tuple(amount(usage, self._prices).usd for usage in usages),
            hours=sum(self._examples[n].hours * ratio for n, ratio in scaled) / len(scaled),
            examples=frozenset(n for n, _ in scaled),
        )


def _ratio(wanted: Settings, other: Settings) -> float | None:
    """How many times as many steps the wanted have, if the rest is the same; None if it is not. A
    setting that refers to a run before it may be anything."""
    if wanted.recipe != other.recipe:
        return None
    free = {k for k, v in wanted.values.items() if isinstance(v, str) and _REFERENCE in v}
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
    """The settings of each run of the stages that is not known before others have ended."""
    found: list[Settings] = []
    for stage in plan.stages:
        number = plan.unknown.get(stage.name, 0)
        each = [settings_of(run.config, stage.recipe) for run in stage.runs]
        found += [each[n % len(each)] for n in range(number)] if each else []
    return found


class Going(NamedTuple):
    """A run of a sweep: what all its attempts have used, whether it will use more, and whether it
    is an `example` for others: one that has succeeded in one attempt."""

    settings: Settings
    used: Usage = NO_USAGE
    finished: bool = False
    example: bool = False


class Forecast(NamedTuple):
    """What a sweep has `used`, and what is `to_come`: of all runs that are not finished but the
    `untold`, which nobody has gone before. `cost` and `cost_to_come` are their dollars, by
    `prices`."""

    used: Usage
    cost: Amount
    to_come: Usage
    cost_to_come: Amount
    untold: int
    prices: str

    def document(self) -> dict[str, Any]:
        """As `status --json` has it; `usd` is None where a model has no price."""
        return {
            "used": _document(self.used, self.cost),
            "to_come": _document(self.to_come, self.cost_to_come),
            "untold": self.untold,
            "prices": self.prices,
        }


def forecast(runs: Iterable[Going], prices: Prices) -> Forecast | None:
    """What a sweep has used and has yet to use; None where nothing was counted."""
    runs = list(runs)
    used = total(run.used for run in runs)
    if not used.models:
        return None
    examples = [Example(one.settings, one.used) for one in runs if one.example and one.used.models]
    guesses = Guesses(examples, prices)
    found = [(run, guesses.of(run.settings)) for run in runs if not run.finished]
    to_come = total(beyond(one.usage, run.used) for run, one in found if one is not None)
    untold = sum(one is None for _, one in found)
    cost, cost_to_come = amount(used, prices), amount(to_come, prices)
    return Forecast(used, cost, to_come, cost_to_come, untold, prices.told)


def forecast_of(sweep: Sweep, prices: Prices) -> Forecast | None:
    """What a recorded sweep has used and has yet to use; None where nothing was counted, or the
    sweep lies elsewhere: to ask for how each of its runs ended would take too long."""
    if sweep.store.is_remote:
        return None
    runs = going(sweep.runs, sweep.plan)
    return forecast((*runs, *map(Going, not_known_yet(sweep.plan))), prices)


def going(runs: Sequence[SweepRun], plan: Plan) -> list[Going]:
    """Recorded runs of a plan."""
    recipes = {stage.name: stage.recipe for stage in plan.stages}
    return [_going(run, recipes.get(run.stage or "", plan.recipe)) for run in runs]


def _going(run: SweepRun, recipe: Recipe) -> Going:
    used = total(run.used(attempt).usage for attempt in range(1, run.attempts + 1))
    finished = run.is_finished or run.retired
    succeeded = run.state is State.SUCCEEDED and run.attempts == 1
    return Going(settings_of(run.config, recipe), used, finished, succeeded)


def sentence(found: Forecast) -> str:
    """`used 1,240,000 tokens, 3.10 dollars by prices of 2026-10; about 2,000,000 tokens, 4.90
    dollars to come`. No dollars where a
    model has no price."""
    unpriced = sorted({*found.cost.unpriced, *found.cost_to_come.unpriced})
    priced = not unpriced
    said = f"used {found.used.counts.tokens:,} tokens"
    if priced:
        said += f", {money(found.cost.usd)} dollars by {found.prices}"
    else:
        said += f" (no price is known of {', '.join(unpriced)})"
    if found.to_come.models:
        said += f"; about {found.to_come.counts.tokens:,} tokens"
        said += f", {money(found.cost_to_come.usd)} dollars to come" if priced else " to come"
    if found.untold:
        runs = "1 run" if found.untold == 1 else f"{found.untold} runs"
        said += f"; nothing is known yet of {runs}"
    return said


def brief(found: Forecast) -> str:
    """`3.10 dollars, 4.90 to come`; in tokens where a model has no price. `more` where nobody knows
    how much."""
    if found.cost.unpriced or found.cost_to_come.unpriced:
        used, to_come = _rounded(found.used.counts.tokens), _rounded(found.to_come.counts.tokens)
        unit = "tokens"
    else:
        used, to_come, unit = money(found.cost.usd), money(found.cost_to_come.usd), "dollars"
    if not found.to_come.models:
        return f"{used} {unit}" + (" so far" if found.untold else "")
    more = " and more" if found.untold else ""
    return f"{used} {unit}, {to_come}{more} to come"


def _rounded(count: int) -> str:
    """`1.96 M`, `320 k`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def _document(usage: Usage, cost: Amount) -> dict[str, Any]:
    usd = None if cost.unpriced else cost.usd
    return {"tokens": usage.counts.tokens, "usd": usd, "unpriced": list(cost.unpriced)}
