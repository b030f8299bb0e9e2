"""What a launch will use and cost, by what earlier runs of the same recipe used (see
`sweeper.results.forecast`); of runs that are like none of them, by what the recipe itself says."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.labels import plural
from sweeper.launcher.metric_check import newest_sweeps
from sweeper.model.plan import Plan, Run
from sweeper.model.states import State, fold
from sweeper.model.usage import NO_USAGE, total
from sweeper.results.forecast import Example, Guess, Guesses, Settings, not_known_yet, settings_of
from sweeper.storage.base import Store
from sweeper.storage.sweeps import read_events, read_outcome, read_plan
from sweeper.terminal import duration

if TYPE_CHECKING:
    from sweeper.prices import Amount

__all__ = ["Estimate", "estimate", "sentence"]

_MOST = 200
"""Outcomes that are read, at most."""


class Estimate(NamedTuple):
    """For `runs` of the `wanted` that are to start, of the others nothing is known. `by_recipe` of
    them are told by the recipe itself, the others by `examples`. `least` and `most`: of the
    dollars, if each run were like the cheapest or dearest of its examples; None where there is one
    example each. `hours` by the clock, at `abreast` runs at once; None where no example tells of
    some. `prices` says which those are, for people."""

    runs: int
    wanted: int
    by_recipe: int
    examples: int
    tokens: int
    amount: "Amount"
    least: float | None
    most: float | None
    hours: float | None
    abreast: int
    prices: str

    def document(self) -> dict[str, object]:
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

    parts = [f"{found.tokens:,} tokens"]
    if found.hours is not None:
        parts.append(f"{duration(found.hours * 3600)} at {found.abreast} at once")
    if not found.amount.unpriced:
        spread = ""
        if found.least is not None and found.most is not None:
            spread = f" ({money(found.least)} to {money(found.most)})"
        parts.insert(0, f"{money(found.amount.usd)} dollars{spread} by {found.prices}")
    some = "" if found.runs == found.wanted else f" for {found.runs} of the {found.wanted}"
    return f"about {', '.join(parts)}{some}, {_known(found)}"


def _known(found: Estimate) -> str:
    """By what it is known."""
    if found.by_recipe == found.runs:
        return "as the recipe reckons"
    runs = f"; {plural(found.by_recipe, 'run')} as the recipe reckons" if found.by_recipe else ""
    return f"as {plural(found.examples, 'earlier run')} went{runs}"


def estimate(plan: Plan, wanted: Sequence[Run], store: Store) -> Estimate | None:
    """What the runs `wanted` of the plan will use; None where neither earlier runs nor the recipe
    tell. In a store that is elsewhere no earlier runs are looked for: it would take too long."""
    if not wanted:
        return None
    examples = [] if store.is_remote else list(_examples(plan, store))
    if not (examples or plan.expected):
        return None
    from sweeper.prices import amount, load

    prices = load()
    asked = [settings_of(run.config, plan.recipe_of(run.stage)) for run in wanted]
    asked += not_known_yet(plan)
    known = [one for one in map(Guesses(examples).of, asked) if one is not None]
    reckoned = _reckoned(plan, Guesses(examples), asked)
    guesses = [*known, *reckoned]
    if not guesses:
        return None
    usage = total(one.usage for one in guesses)
    cost = amount(usage, prices)
    spread = not cost.unpriced and any(len(one.each) > 1 for one in guesses)
    dollars = [[amount(usage, prices).usd for usage in one.each] for one in guesses]
    abreast = min(plan.launch.max_parallel, len(guesses))
    return Estimate(
        runs=len(guesses),
        wanted=len(asked),
        by_recipe=len(reckoned),
        examples=len(frozenset[int]().union(*(one.examples for one in known))),
        tokens=usage.counts.tokens,
        amount=cost,
        least=sum(map(min, dollars)) if spread else None,
        most=sum(map(max, dollars)) if spread else None,
        hours=None if reckoned else _schedule([one.hours for one in known], abreast),
        abreast=abreast,
        prices=prices.told,
    )


def _reckoned(plan: Plan, known: Guesses, asked: Sequence[Settings]) -> list[Guess]:
    """What the recipes themselves say of the runs that no earlier one tells of."""
    said = [
        Example(settings_of(one.config, plan.recipe_of(one.stage)), one.usage)
        for one in plan.expected
    ]
    own = Guesses(said)
    found = (own.of(one) for one in asked if known.of(one) is None)
    return [one for one in found if one is not None]


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
            settings = settings_of(run.config, old.recipe_of(run.stage))
            yield Example(settings, outcome.usage, hours)


def _same(old: Plan, plan: Plan) -> bool:
    """Whether they have a recipe in common, and run it against the same service."""
    ours, theirs = ({part.recipe.reference for part in one.parts} for one in (plan, old))
    return not ours.isdisjoint(theirs) and old.service == plan.service
