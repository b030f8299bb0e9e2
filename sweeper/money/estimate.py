"""Estimates the tokens, dollars and hours of a launch from earlier runs of the same recipe, or from
the recipe's own estimate. Warns about a metric that the earlier runs did not record."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.files import MetricsFile, metrics_path
from sweeper.money.forecast import Example, Guess, Guesses, Settings, not_known_yet, settings_of
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder, find_sweeps
from sweeper.sweep.labels import first_of, plural
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import State, fold
from sweeper.sweep.usage import NO_USAGE, total
from sweeper.terminal import duration

if TYPE_CHECKING:
    from sweeper.money.prices import Amount


_SWEEPS = 5
_BYTES = 65_536
_SHOWN = 6


def unrecorded_metric(planned: Plan, store: Store) -> str | None:
    """Return a warning if a recent succeeded run of the same recipe in this store did not
    record the plan's metric. Return None if the run recorded the metric, if no such run exists,
    or if the plan has no metric. Return None also for a remote store, since the search would
    take too long."""
    if planned.stages:
        messages = (unrecorded_metric(part, store) for part in planned.parts)
        return next(filter(None, messages), None)
    if planned.metric is None or store.is_remote:
        return None
    wanted = planned.metric.name
    for folder in newest_sweeps(store):
        try:
            recorded = _recorded(folder, planned.recipe.reference)
        except (NotFound, StoreError):
            continue  # Other commands report the error.
        if recorded is None:
            continue
        if wanted in recorded:
            return None
        from difflib import get_close_matches

        similar = get_close_matches(wanted, recorded, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        keys = sorted(recorded - {"step"})
        listed = first_of(keys, _SHOWN) if keys else "nothing"
        return (
            f"metric: runs of {folder.name} did not record {wanted!r}; they recorded {listed}{hint}"
        )
    return None


def newest_sweeps(store: Store) -> Iterator[SweepFolder]:
    """Yield at most `_SWEEPS` sweeps, the most recently launched first."""

    def launched(folder: SweepFolder) -> float:
        path = store.local_path(folder.plan)
        try:
            return os.stat(path or "").st_mtime
        except OSError:
            return 0.0

    folders = [SweepFolder(store, name) for name in find_sweeps(store)]
    yield from sorted(folders, key=launched, reverse=True)[:_SWEEPS]


def _recorded(folder: SweepFolder, recipe: str) -> set[str] | None:
    """Return the keys that a succeeded run of the sweep recorded; empty if the run's metrics cannot
    be read. Return None if no run has succeeded, or if the sweep has another recipe or stages. Of a
    long file, read only the start and the end."""
    plan = folder.read_plan()
    if plan.stages or plan.recipe.reference != recipe:
        return None
    for run, events in folder.read_events().items():
        state = fold(events)
        if state.state is not State.SUCCEEDED:
            continue
        path = metrics_path(folder.store, folder.recorded(run, state.attempt))
        try:
            head = folder.store.read_range(path, 0, _BYTES)
            size = os.stat(folder.store.local_path(path) or "").st_size
            tail = folder.store.read_range(path, size - _BYTES, size) if size > _BYTES else b""
        except (NotFound, OSError):
            return set()
        file = MetricsFile(path)  # The tail may start in the middle of a line.
        parsed = (file.parse(head), file.parse(tail, max(size - _BYTES, 1)))
        return {key for part in parsed for row in part.rows for key in row}
    return None


_MOST = 200
"""Maximum number of outcomes to read."""


class Estimate(NamedTuple):
    """The estimated usage of a launch. `wanted` is the number of runs that would start, and `runs`
    the number of these with an estimate. `by_recipe` estimates are the recipe's own, and the other
    estimates are computed from `examples` earlier runs.

    `least` and `most` are the dollars if each run costs as much as its cheapest or most expensive
    example (None if every run has only one example, or a model has no price). `hours` is the
    wall-clock time with `abreast` runs at a time (None if a recipe's own estimate is used).
    `prices` has the dates of the prices, for display.
    """

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
        """Return the estimate as in `plan --json`; `usd` is None if a model has no price."""
        usd = None if self.amount.unpriced else self.amount.usd
        fields = {
            key: value for key, value in self._asdict().items() if key not in ("amount", "prices")
        }
        return {**fields, "usd": usd, "unpriced": list(self.amount.unpriced)}


def sentence(estimate: Estimate | None, service: str) -> str | None:
    """Return the estimate as a sentence, such as `about 12.40 dollars (9.80 to 15.60), 3,100,000
    tokens, 2h05m with 8 runs at a time`, followed by the source of the estimate. Without an
    estimate, return a sentence that says that the usage is unknown, or None if the runs use no
    service."""
    if estimate is None:
        unknown = "tokens and dollars: unknown (no runs to estimate from)"
        return None if service == "none" else unknown
    from sweeper.money.prices import money

    parts = [f"{estimate.tokens:,} tokens"]
    if estimate.hours is not None:
        runs = plural(estimate.abreast, "run")
        parts.append(f"{duration(estimate.hours * 3600)} with {runs} at a time")
    if not estimate.amount.unpriced:
        spread = ""
        if estimate.least is not None and estimate.most is not None:
            spread = f" ({money(estimate.least)} to {money(estimate.most)})"
        parts.insert(0, f"{money(estimate.amount.usd)} dollars{spread} at {estimate.prices}")
    elif service == "tinker":
        parts.append(
            f"dollars unknown (no price known for {first_of(estimate.amount.unpriced, 2)})"
        )
    unknown = estimate.wanted - estimate.runs
    part = f" for {estimate.runs} of the {plural(estimate.wanted, 'run')}" if unknown else ""
    others = "; usage of the others is unknown" if unknown else ""
    return f"about {', '.join(parts)}{part} ({_source(estimate)}){others}"


def _source(estimate: Estimate) -> str:
    if estimate.by_recipe == estimate.runs:
        return "the recipe's estimate"
    runs = f"; the recipe's estimate for {plural(estimate.by_recipe, 'run')}" * bool(
        estimate.by_recipe
    )
    return f"from {plural(estimate.examples, 'earlier run')}{runs}"


def estimate(plan: Plan, wanted: Sequence[Run], store: Store) -> Estimate | None:
    """Estimate the usage of the runs `wanted` of the plan, and of the later runs whose settings
    `not_known_yet` returns. Return None if `wanted` is empty, or if neither earlier runs nor the
    recipe allow an estimate. No earlier runs are searched on a remote store, as that is slow."""
    if not wanted:
        return None
    examples = [] if store.is_remote else list(_examples(plan, store))
    if not (examples or plan.expected):
        return None
    from sweeper.money.prices import amount, load

    prices = load()
    settings = [settings_of(run.config, plan.recipe_of(run.stage)) for run in wanted]
    settings += not_known_yet(plan)
    from_runs = [guess for guess in map(Guesses(examples).of, settings) if guess is not None]
    reckoned = _reckoned(plan, Guesses(examples), settings)
    guesses = [*from_runs, *reckoned]
    if not guesses:
        return None
    usage = total(guess.usage for guess in guesses)
    cost = amount(usage, prices)
    spread = not cost.unpriced and any(len(guess.each) > 1 for guess in guesses)
    dollars = [[amount(usage, prices).usd for usage in guess.each] for guess in guesses]
    abreast = min(plan.launch.max_parallel, len(guesses))
    return Estimate(
        runs=len(guesses),
        wanted=len(settings),
        by_recipe=len(reckoned),
        examples=len(frozenset[int]().union(*(guess.examples for guess in from_runs))),
        tokens=usage.counts.tokens,
        amount=cost,
        least=sum(map(min, dollars)) if spread else None,
        most=sum(map(max, dollars)) if spread else None,
        hours=None if reckoned else _schedule([each.hours for each in from_runs], abreast),
        abreast=abreast,
        prices=cost.basis,
    )


def _reckoned(plan: Plan, earlier: Guesses, settings: Sequence[Settings]) -> list[Guess]:
    """Return the recipes' own estimates for those `settings` that `earlier` cannot forecast."""
    estimates = [
        Example(settings_of(run.config, plan.recipe_of(run.stage)), run.usage)
        for run in plan.expected
    ]
    guesses_of_recipe = Guesses(estimates)
    guesses = (guesses_of_recipe.of(item) for item in settings if earlier.of(item) is None)
    return [guess for guess in guesses if guess is not None]


def _schedule(hours: Sequence[float], abreast: int) -> float:
    """Return the hours until all runs have ended. `hours` has the duration of each run. The runs
    start in this order, `abreast` at a time."""
    import heapq

    slots = [0.0] * abreast
    for run_hours in hours:
        heapq.heapreplace(slots, slots[0] + run_hours)
    return max(slots)


def _examples(plan: Plan, store: Store) -> Iterator[Example]:
    """Yield runs of the newest sweeps that share a recipe with the plan and use the same service.
    Yield only runs that succeeded in their first attempt, and whose usage was counted."""
    examples = 0
    for folder in newest_sweeps(store):
        try:
            old = folder.read_plan()
            events = folder.read_events() if _same(old, plan) else {}
        except (NotFound, StoreError):
            continue  # Other commands report the error.
        for run in old.runs:
            if examples >= _MOST:
                return
            state = fold(events.get(run.id, set()))
            if state.state is not State.SUCCEEDED or state.attempt != 1:
                continue
            examples += 1
            try:
                outcome = folder.read_outcome(run.id, state)
            except (NotFound, StoreError):
                continue
            if outcome.usage == NO_USAGE or outcome.wall_s is None:
                continue
            hours = max(0.0, outcome.wall_s - (outcome.paused_s or 0.0)) / 3600
            settings = settings_of(run.config, old.recipe_of(run.stage))
            yield Example(settings, outcome.usage, hours)


def _same(old: Plan, plan: Plan) -> bool:
    """Return whether the plans share a recipe and use the same service."""
    recipes, old_recipes = ({part.recipe.reference for part in each.parts} for each in (plan, old))
    return not recipes.isdisjoint(old_recipes) and old.service == plan.service
