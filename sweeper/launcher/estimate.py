"""What a launch will use and cost, by what earlier runs of the same recipe used.

A run counts as an example of another if nothing differs that could change its size: the model, and
every setting that is no fraction (steps, batch size, lengths, rank, task, ...), the seed left out.
A learning rate makes no run longer. Where no run is alike, one that differs in the number of its
steps alone is taken, in proportion. Where there is none either, nothing is said of that run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.launcher.metric_check import newest_sweeps
from sweeper.model.plan import Plan, Run
from sweeper.model.states import State, fold
from sweeper.model.usage import NO_USAGE, Counts, Usage, total
from sweeper.storage.files import Store
from sweeper.storage.sweeps import read_events, read_outcome, read_plan
from sweeper.terminal import duration

if TYPE_CHECKING:
    from sweeper.prices import Amount, Prices

__all__ = ["Estimate", "estimate", "sentence"]

_MOST = 200
"""Outcomes that are read, at most."""
_STEPS = ("max_steps", "n_steps", "num_steps", "max_train_steps", "n_batches")
"""What recipes call the number of their steps."""


class Example(NamedTuple):
    """What a run of those settings used, and its hours at work, pauses left out."""

    settings: Mapping[str, Any]
    usage: Usage
    hours: float


class Estimate(NamedTuple):
    """For `runs` of the `wanted` that are to start, of the others nothing is known. `least` and
    `most`: of the dollars, if each run were like the cheapest or dearest of its examples; None
    where there is one example each. `hours` by the clock, at `abreast` runs at once. `prices` says
    which those are, for people."""

    runs: int
    wanted: int
    examples: int
    tokens: int
    amount: "Amount"
    least: float | None
    most: float | None
    hours: float
    abreast: int
    prices: str

    def document(self) -> dict[str, Any]:
        """As `plan --json` has it; `usd` is None where a model has no price."""
        usd = None if self.amount.unpriced else self.amount.usd
        known = {
            key: value for key, value in self._asdict().items() if key not in ("amount", "prices")
        }
        return {**known, "usd": usd, "unpriced": list(self.amount.unpriced)}


def sentence(found: Estimate) -> str:
    """`about 12.40 dollars (9.80 to 15.60), 3,100,000 tokens, 2h05m at 8 at once`, and by what that
    is known."""
    from sweeper.prices import money

    parts = [
        f"{found.tokens:,} tokens",
        f"{duration(found.hours * 3600)} at {found.abreast} at once",
    ]
    if not found.amount.unpriced:
        spread = ""
        if found.least is not None and found.most is not None:
            spread = f" ({money(found.least)} to {money(found.most)})"
        parts.insert(0, f"{money(found.amount.usd)} dollars{spread} by {found.prices}")
    some = "" if found.runs == found.wanted else f" for {found.runs} of the {found.wanted}"
    known = "1 earlier run" if found.examples == 1 else f"{found.examples} earlier runs"
    return f"about {', '.join(parts)}{some}, as {known} went"


class _Guess(NamedTuple):
    """Of one run: its mean usage, the dollars of each of its examples, its hours, and which
    examples they are."""

    usage: Usage
    dollars: tuple[float, ...]
    hours: float
    examples: frozenset[int]


def estimate(plan: Plan, wanted: Sequence[Run], store: Store) -> Estimate | None:
    """What the runs `wanted` of the plan will use; None where no earlier run tells. On a store that
    is elsewhere nothing is looked for: it would take too long."""
    if store.is_remote or not wanted:
        return None
    examples = list(_examples(plan, store))
    if not examples:
        return None
    from sweeper.prices import amount, load

    prices = load()
    known: dict[str, _Guess | None] = {}
    guesses: list[_Guess] = []
    for run in wanted:
        settings = _settings(plan, run.config)
        key = repr(sorted(settings.items(), key=lambda item: item[0]))
        if key not in known:
            known[key] = _guess(settings, examples, prices)
        if (guess := known[key]) is not None:
            guesses.append(guess)
    if not guesses:
        return None
    usage = total(guess.usage for guess in guesses)
    cost = amount(usage, prices)
    spread = not cost.unpriced and any(len(guess.dollars) > 1 for guess in guesses)
    abreast = min(plan.launch.max_parallel, len(guesses))
    return Estimate(
        runs=len(guesses),
        wanted=len(wanted),
        examples=len(frozenset[int]().union(*(guess.examples for guess in guesses))),
        tokens=usage.counts.tokens,
        amount=cost,
        least=sum(min(guess.dollars) for guess in guesses) if spread else None,
        most=sum(max(guess.dollars) for guess in guesses) if spread else None,
        hours=_schedule([guess.hours for guess in guesses], abreast),
        abreast=abreast,
        prices=prices.told,
    )


def _schedule(hours: Sequence[float], abreast: int) -> float:
    """How long runs of so many hours take, each started when another has ended."""
    import heapq

    slots = [0.0] * abreast
    for each in hours:
        heapq.heapreplace(slots, slots[0] + each)
    return max(slots)


def _examples(plan: Plan, store: Store) -> Iterator[Example]:
    """Succeeded runs of the recipe in the sweeps that were launched last, done in one attempt."""
    found = 0
    for sweep in newest_sweeps(store):
        try:
            old = read_plan(store, sweep)
            events = read_events(store, sweep) if _same(old, plan) else {}
        except (NotFound, StoreError):
            continue  # other verbs tell of it
        for run in old.runs:
            if found >= _MOST:
                return
            state = fold(events.get(run.id, set()))
            if state.state is not State.SUCCEEDED or state.attempt != 1:
                continue
            found += 1
            try:
                outcome = read_outcome(store, sweep, run.id, state)
            except (NotFound, StoreError):
                continue
            if outcome.usage == NO_USAGE or outcome.wall_s is None:
                continue
            hours = max(0.0, outcome.wall_s - (outcome.paused_s or 0.0)) / 3600
            yield Example(_settings(old, run.config), outcome.usage, hours)


def _same(old: Plan, plan: Plan) -> bool:
    return (old.recipe.reference, old.service) == (plan.recipe.reference, plan.service)


def _settings(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration may change how much a run uses."""
    return {
        key: value
        for key, value in config.items()
        if not isinstance(value, float) and key != plan.recipe.seed_field
    }


def _guess(
    settings: Mapping[str, Any], examples: Sequence[Example], prices: "Prices"
) -> _Guess | None:
    alike = [example for example in examples if example.settings == settings]
    scaled = [(example, 1.0) for example in alike] or [
        (example, ratio)
        for example in examples
        if (ratio := _ratio(settings, example.settings)) is not None
    ]
    which = {id(example) for example, _ in scaled}
    if not scaled:
        return None
    from sweeper.prices import amount

    usages = [_times(example.usage, ratio) for example, ratio in scaled]
    return _Guess(
        usage=_times(total(usages), 1 / len(usages)),
        dollars=tuple(amount(usage, prices).usd for usage in usages),
        hours=sum(example.hours * ratio for example, ratio in scaled) / len(scaled),
        examples=frozenset(n for n, example in enumerate(examples) if id(example) in which),
    )


def _ratio(settings: Mapping[str, Any], others: Mapping[str, Any]) -> float | None:
    """How many times as many steps the settings have, if the rest is the same."""
    for key in _STEPS:
        here, there = settings.get(key), others.get(key)
        if not (isinstance(here, int) and isinstance(there, int) and here > 0 < there):
            continue
        if {**settings, key: there} == others:
            return here / there
    return None


def _times(usage: Usage, ratio: float) -> Usage:
    models = {
        model: Counts(*(round(count * ratio) for count in counts))
        for model, counts in usage.models.items()
    }
    return Usage(models, usage.unknown)
