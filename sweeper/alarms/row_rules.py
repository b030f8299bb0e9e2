"""The rules over what a run records: each is a pure function of the history so far.

A rule is asked after every row that holds a value of what it watches, and returns the evidence it
has found, or None. How the defaults were chosen, and how well they do, is in docs/alarms.md.
"""

import math
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

from sweeper.alarms.history import Evidence, History, deviation, median
from sweeper.metrics.rows import as_number

Thresholds = Mapping[str, float]

JUDGE_FAILED = "judge_failed"
"""The rule whose message gets the error of the function that failed."""

_FEW = 3
"""After so many values null is taken for NaN; before, it may be that a value is rare."""
_NEAR_ZERO = 0.1
"""A loss below this share of its start has come near zero."""


class RowRule(NamedTuple):
    """A rule, and the roles of the keys it watches (none: every key)."""

    name: str
    watches: tuple[str, ...]
    find: Callable[[History, Thresholds], Evidence | None]


def judge(
    history: History, limits: Mapping[str, Thresholds], failed: Callable[[str, Exception], object]
) -> dict[str, Evidence]:
    """Ask the rules that are on about the row just added. Returns rule -> evidence. A rule that
    raises is passed to `failed`, and the others are asked all the same."""
    by_rule: dict[str, Evidence] = {}
    for rule in ROW_RULES:
        thresholds = limits.get(rule.name)
        if thresholds is None or (rule.watches and not history.fresh.intersection(rule.watches)):
            continue
        try:
            evidence = rule.find(history, thresholds)
        except Exception as error:  # noqa: BLE001 - one rule must not silence the others
            failed(rule.name, error)
            continue
        if evidence is not None:
            by_rule[rule.name] = evidence
    return by_rule


def _nan(history: History, _: Thresholds) -> Evidence | None:
    numeric = {series.key for series in history.watched}
    for key, recorded in history.row.items():
        # Texts of other keys may be about anything.
        is_text = isinstance(recorded, str) and key in numeric
        value = as_number(recorded) if is_text or isinstance(recorded, float) else None
        if value is not None and not math.isfinite(value):
            word = "NaN" if math.isnan(value) else "infinite"
            text = f"{key} is {word}{_at(history.step)}"
            return Evidence(key, history.step, value, None, text)
    for series in history.watched:
        is_null = series.after > 0 and history.row.get(series.key, 0) is None
        if is_null and series.count >= _FEW and series.after > series.gap:
            text = (
                f"{series.key} is null{_at(history.step)}, and was {series.values[-1]:.4g} before: "
                "some programs write null for NaN"
            )
            return Evidence(series.key, history.step, None, None, text)
    return None


def _divergence(history: History, thresholds: Thresholds) -> Evidence | None:
    loss = history.series["loss"]
    values = loss.over(thresholds["steps"])
    if values is None or loss.count <= thresholds["steps"]:
        return None
    now, start = median(values), loss.start
    recent = loss.last(20)
    rough = 3 * deviation(after - before for before, after in pairwise(recent))
    # Of a loss that comes near zero, or has been as high, its ratio to the start says little: it
    # has to be above by more than it leaps from step to step.
    earlier = list(loss.values)[: -len(values)]
    is_new = now > max(earlier, default=now) and loss.least >= _NEAR_ZERO * start
    bound = thresholds["above"] * start
    if start > 0 and now > bound and (is_new or now - start > rough):
        text = f"{loss.key} is {now:.4g}{_at(loss.step)}, and was {start:.4g} at the start"
        return Evidence(loss.key, loss.step, now, bound, text)
    lost = thresholds["lost"] * (start - loss.low)
    # What has hardly fallen has hardly anything to give back but noise.
    noise = max(3 * deviation(recent), rough) + 0.25 * abs(loss.low)
    bound = loss.low + max(lost, noise)
    if math.isfinite(bound) and start > loss.low and now > bound:
        text = (
            f"{loss.key} is {now:.4g}{_at(loss.step)}, and had fallen from {start:.4g} to "
            f"{loss.low:.4g}"
        )
        return Evidence(loss.key, loss.step, now, bound, text)
    return None


def _spike(history: History, thresholds: Thresholds) -> Evidence | None:
    loss = history.series["loss"]
    values = loss.last(21)
    if len(values) < 11:
        return None
    before, now = values[:-1], values[-1]
    middle = median(before[-5:])
    # From step to step, since a loss that falls is spread wide without any noise.
    noise = deviation(after - value for value, after in pairwise(before))
    leap = max(thresholds["above"] * noise, thresholds["lost"] * abs(loss.start))
    bound = middle + leap
    # A loss far below where it began has room for noise that looks large beside it.
    if now <= bound or now <= 2 * abs(middle):
        return None
    text = f"{loss.key} is {now:.4g}{_at(loss.step)}; its median before was {middle:.4g}"
    return Evidence(loss.key, loss.step, now, bound, text)


def _collapse(history: History, thresholds: Thresholds) -> Evidence | None:
    reward = history.series["reward"]
    values = reward.over(thresholds["steps"])
    if values is None or reward.count <= thresholds["steps"]:
        return None
    floor = min(reward.start, reward.least) if reward.least < 0 else 0.0
    # Means, and no medians: of a sparse reward those are 0 or 1 whatever the model does.
    long = reward.last(2 * int(thresholds["steps"]))
    plain = _plain_deviation(reward.values)
    if (mean := sum(long) / len(long)) > reward.best_mean:
        reward.best_mean, reward.best_spread = mean, plain
    best = reward.best_mean
    now = sum(values) / len(values)
    bound = floor + (1 - thresholds["lost"]) * (best - floor)
    # The robust deviation is 0 where most rewards are the same, the plain one where all are.
    spread = max(deviation(reward.values), plain, 0.6 * reward.best_spread)
    noise = 4 * spread * math.sqrt(1 / len(values) + 1 / len(long))
    if best <= floor or now > bound or best - now <= noise:
        return None
    text = f"{reward.key} is {now:.4g} on average{_at(reward.step)}, and has been {best:.4g}"
    return Evidence(reward.key, reward.step, now, bound, text)


def _entropy(history: History, thresholds: Thresholds) -> Evidence | None:
    entropy = history.series["entropy"]
    values = entropy.over(thresholds["steps"])
    if values is None or (now := median(values)) >= thresholds["below"] or history.solved:
        return None
    text = f"{entropy.key} is {now:.2g} nats{_at(entropy.step)}; it began at {entropy.start:.2g}"
    return Evidence(entropy.key, entropy.step, now, thresholds["below"], text)


def _kl(history: History, thresholds: Thresholds) -> Evidence | None:
    kl = history.series["kl"]
    values = kl.over(thresholds["steps"])
    if values is None or (now := median(values)) <= thresholds["above"]:
        return None
    text = f"{kl.key} is {now:.3g} nats{_at(kl.step)}: more than {thresholds['above']:g}"
    return Evidence(kl.key, kl.step, now, thresholds["above"], text)


def _no_signal(history: History, thresholds: Thresholds) -> Evidence | None:
    mixed, same = history.series.get("mixed"), history.series.get("same")
    series = mixed or same
    if series is None or (values := series.over(thresholds["steps"])) is None or history.solved:
        return None
    share = sum(values) / len(values)
    now = share if mixed is not None else 1 - share
    if now > thresholds["below"]:
        return None
    steps = int(thresholds["steps"])
    text = (
        f"{now:.1%} of the groups of the last {steps} steps had answers that earned differently"
        f"{_all_alike(history, thresholds['steps'])}{_at(series.step)}"
    )
    return Evidence(series.key, series.step, now, thresholds["below"], text)


def _all_alike(history: History, steps: float) -> str:
    """How many groups were all wrong or all right: the first teach nothing, the others no more."""
    answers: list[str] = []
    for role, what in (("bad", "all wrong"), ("good", "all right")):
        series = history.series.get(role)
        values = None if series is None else series.over(steps)
        if values:
            answers.append(f"{sum(values) / len(values):.0%} were {what}")
    return f" ({', '.join(answers)})" if answers else ""


def _judge_failed(history: History, thresholds: Thresholds) -> Evidence | None:
    failed = history.series["failed"]
    now = failed.values[-1]
    if now <= thresholds["above"]:
        return None
    text = f"{now:.0%} of the answers could not be judged{_at(failed.step)}, and counted as wrong"
    return Evidence(failed.key, failed.step, now, thresholds["above"], text)


def _length(history: History, thresholds: Thresholds) -> Evidence | None:
    length, reward = history.series["length"], history.series.get("reward")
    steps = int(thresholds["steps"])
    values = list(length.values)
    if len(values) < 2 * steps:
        return None
    medians = [median(values[at : at + steps]) for at in range(len(values) - steps + 1)]
    now, shortest = medians[-1], min(medians)
    bound = thresholds["above"] * shortest
    if now <= bound or shortest <= 0:
        return None
    if reward is not None and len(reward.values) == len(values):
        at = medians.index(shortest)
        then = list(reward.values)[at : at + steps]
        if median(reward.last(steps)) > median(then) + deviation(then):
            return None  # longer, and better for it
    text = (
        f"{length.key} is {now:.4g} tokens{_at(length.step)}, and was {shortest:.4g} less than "
        f"{len(values)} steps before; the reward is no better"
    )
    return Evidence(length.key, length.step, now, bound, text)


def _truncation(history: History, thresholds: Thresholds) -> Evidence | None:
    cut = history.series["truncated"]
    values = cut.over(thresholds["steps"])
    if values is None or (now := sum(values) / len(values)) <= thresholds["above"]:
        return None
    text = f"{now:.0%} of the answers were cut off in the last {len(values)} steps{_at(cut.step)}"
    return Evidence(cut.key, cut.step, now, thresholds["above"], text)


def _plain_deviation(values: Collection[float]) -> float:
    # As `statistics.pstdev`, which takes a hundred times as long, and that for each row.
    mean = sum(values) / len(values)
    return math.dist(tuple(values), (mean,) * len(values)) / math.sqrt(len(values))


def _at(step: float | None) -> str:
    return "" if step is None else f" at step {step:g}"


ROW_RULES = (
    RowRule("nan", (), _nan),
    RowRule("divergence", ("loss",), _divergence),
    RowRule("spike", ("loss",), _spike),
    RowRule("collapse", ("reward",), _collapse),
    RowRule("entropy", ("entropy",), _entropy),
    RowRule("kl", ("kl",), _kl),
    RowRule("no_signal", ("mixed", "same"), _no_signal),
    RowRule(JUDGE_FAILED, ("failed",), _judge_failed),
    RowRule("length", ("length",), _length),
    RowRule("truncation", ("truncated",), _truncation),
)
