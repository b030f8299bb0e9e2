"""The rules that detect problems of a run, and advice for each. A rule is a pure function of the
history so far, and returns its evidence or None. docs/alarms.md has the measurements."""

import math
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

from sweeper.alarms.history import OF_SAMPLER, Evidence, History, deviation, median
from sweeper.metrics.rows import as_number

ADVICE = {
    "nan": "inspect the step before with `sweeper show`; lower the learning rate, clip "
    "gradients, then `sweeper retry` from a checkpoint before it",
    "divergence": "stop it (`sweeper cancel`), and launch with a learning rate three to ten "
    "times lower, or a longer warm-up",
    "spike": "inspect the batch of that step; if the loss does not recover, lower the "
    "learning rate or clip gradients",
    "collapse": "stop it, and continue from an earlier checkpoint with a lower learning "
    "rate; read its answers with `sweeper rollouts`",
    "entropy": "raise entropy_coef or the temperature, lower the learning rate, or start "
    "from a model that is sometimes right",
    "kl": "lower the learning rate, take fewer substeps, or check that sampler and trainer have "
    "the same model and settings",
    "mismatch": "check that sampler and trainer have the same model, weights, chat template, "
    "temperature and precision; healthy runs have 0.0002 (dense models) to 0.002 "
    "(mixtures of experts)",
    "gradient": "lower the learning rate, clip gradients or warm up longer; inspect the batches of "
    "those steps",
    "plateau": "compare it with the sweep's other runs (`sweeper compare`), and stop it if they "
    "are ahead; try another learning rate, a larger batch or easier problems",
    "no_signal": "read `sweeper rollouts`: the task may be too hard, the reward broken, or "
    "max_tokens too short for any answer; warm up with SFT, or make the reward "
    "denser",
    "judge_failed": "fix the reward function, verifier or grader and `sweeper retry`; all "
    "errors are in `iteration_*/reward_failures.jsonl` of the run",
    "length": "read `sweeper rollouts`; lower max_tokens or the temperature, or include the "
    "length in the reward",
    "truncation": (
        "raise max_tokens, or ask for shorter answers: answers that are cut off get no reward"
    ),
    "stalled": "read `sweeper logs`, and `sweeper logs RUN --stacks` for what its threads do: "
    "does the service answer, does the recipe wait for a lock? `sweeper cancel` and "
    "`sweeper retry` restart it",
    "paused": ("wait, lower launch.max_parallel, or request more quota; nothing is lost meanwhile"),
    "heartbeat": "check whether its machine is alive and can reach the store; the run counts "
    "as lost once the backend no longer knows its job",
    "metric": "name a recorded key in `metric`, or have the program write it to its metrics "
    "file: without it there is no report and no best run",
    "service": "restart it (`sweeper engine start`), or check that the run's machine can "
    "reach it; runs on the engine then continue from their last checkpoints, "
    "others by `sweeper retry`",
    "disk": "free space on that machine: `sweeper store gc`, older runs, checkpoints",
    "memory": (
        "run fewer jobs there (launch.max_parallel), or request more memory from the backend"
    ),
}
"""What to do about an alarm of each rule."""


Thresholds = Mapping[str, float]

JUDGE_FAILED = "judge_failed"
"""The rule whose message gets the error of the function that failed."""

_REAL_MISMATCH = 0.001
"""Nats per token that a healthy dense model does not reach: smaller values are rounding."""
_GRADIENTS = 10
"""How many gradients a norm is compared with, at least."""
_OF_FUNCTION = "reward_failed"
"""A part of the key for the answers on which a reward function raised."""
_FALLEN = 0.1
"""The share of its start by which a loss must have fallen to count as learning."""
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
    """Apply the active rules to the row just added. Return rule -> evidence. A rule that raises is
    passed to `failed`, and the others are applied all the same."""
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
        # Text under other keys may be anything.
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
                f"{series.key} is null{_at(history.step)}, was {series.values[-1]:.4g} before: "
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
    # For a loss that comes near zero, or has been as high before, the ratio to the start says
    # little: it must also rise by more than it varies from step to step.
    earlier = list(loss.values)[: -len(values)]
    is_new = now > max(earlier, default=now) and loss.least >= _NEAR_ZERO * start
    bound = thresholds["above"] * start
    if start > 0 and now > bound and (is_new or now - start > rough):
        text = f"{loss.key} is {now:.4g}{_at(loss.step)}, was {start:.4g} at the start"
        return Evidence(loss.key, loss.step, now, bound, text)
    lost = thresholds["lost"] * (start - loss.low)
    # A loss that has hardly fallen can lose nothing but noise.
    noise = max(3 * deviation(recent), rough) + 0.25 * abs(loss.low)
    bound = loss.low + max(lost, noise)
    if math.isfinite(bound) and start > loss.low and now > bound:
        text = (
            f"{loss.key} is {now:.4g}{_at(loss.step)}, after it had fallen from {start:.4g} "
            f"to {loss.low:.4g}"
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
    # From step to step, since a falling loss has a wide spread without any noise.
    noise = deviation(after - value for value, after in pairwise(before))
    leap = max(thresholds["above"] * noise, thresholds["lost"] * abs(loss.start))
    bound = middle + leap
    # A loss far below its start has noise that looks large in comparison.
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
    # Means, not medians: of a sparse reward those are 0 or 1 whatever the model does.
    long = reward.last(2 * int(thresholds["steps"]))
    plain = _plain_deviation(reward.values)
    if (mean := sum(long) / len(long)) > reward.best_mean:
        reward.best_mean, reward.best_spread = mean, plain
    best = reward.best_mean
    now = sum(values) / len(values)
    bound = floor + (1 - thresholds["lost"]) * (best - floor)
    # The robust deviation is 0 if most rewards are the same, the plain one if all are.
    spread = max(deviation(reward.values), plain, 0.6 * reward.best_spread)
    noise = 4 * spread * math.sqrt(1 / len(values) + 1 / len(long))
    if best <= floor or now > bound or best - now <= noise:
        return None
    text = f"{reward.key} is {now:.4g} on average{_at(reward.step)}, after {best:.4g} before"
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


def _mismatch(history: History, thresholds: Thresholds) -> Evidence | None:
    kl = history.series["kl"]
    if OF_SAMPLER not in kl.key:
        return None  # it is against a base model
    steps = int(thresholds["steps"])
    if kl.count <= steps and kl.values[-1] > thresholds["above"]:
        bound, now = thresholds["above"], kl.values[-1]
        text = f"{kl.key} is {now:.3g} nats{_at(kl.step)}, so early: more than {bound:g}"
        return Evidence(kl.key, kl.step, now, bound, text)
    # Other runs may come later, so the first values are compared with theirs at any step. In later
    # steps it may be drift of the policy.
    early = kl.first[:steps]
    references = (
        (early[0], early[1:], "its first value"),
        (history.usual_mismatch, early, "the usual value of the sweep's other runs"),
    )
    for reference, values, what in references:
        now = max(values, default=0.0)
        if reference is None:
            continue
        bound = max(thresholds["times"] * reference, _REAL_MISMATCH)
        if now <= bound:
            continue
        usual = f"{thresholds['times']:g} times {what}, {reference:.2g}"
        text = f"{kl.key} is {now:.3g} nats in one of the first {len(early)} steps: more than " + (
            f"{bound:g}; {what} is {reference:.2g}" if bound == _REAL_MISMATCH else usual
        )
        return Evidence(kl.key, kl.step, now, bound, text)
    return None


def _gradient(history: History, thresholds: Thresholds) -> Evidence | None:
    norm = history.series["gradient"]
    steps = int(thresholds["steps"])
    before = list(norm.values)[:-steps]
    if len(before) < _GRADIENTS:
        return None
    usual, least = median(before), min(norm.last(steps))
    bound = thresholds["above"] * usual
    # Not after a rise that has been going on: the norm of a model that learns may grow slowly.
    if usual <= 0 or least <= bound or least <= 2 * max(before):
        return None
    text = f"{norm.key} is {norm.values[-1]:.3g}{_at(norm.step)}; its median before was {usual:.3g}"
    return Evidence(norm.key, norm.step, norm.values[-1], bound, text)


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
        f"{now:.1%} of the groups of the last {steps} steps had answers with different "
        f"rewards{_all_alike(history, thresholds['steps'])}{_at(series.step)}"
    )
    return Evidence(series.key, series.step, now, thresholds["below"], text)


def _all_alike(history: History, steps: float) -> str:
    """Return how many groups were all wrong or all right: neither teaches anything."""
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
    # A function that raises has an error of its own; verifiers and graders also time out.
    bound = thresholds["raises" if _OF_FUNCTION in failed.key else "above"]
    if now <= bound:
        return None
    share = f"{now:.0%}" if now >= 0.01 else f"{now:.2%}"
    text = f"{share} of the answers could not be judged{_at(failed.step)}, and counted as wrong"
    return Evidence(failed.key, failed.step, now, bound, text)


def _plateau(history: History, thresholds: Thresholds) -> Evidence | None:
    # The loss of reinforcement learning does not fall when the model learns.
    role = "reward" if "reward" in history.series else "loss"
    series = history.series[role]
    best, start = series.best_ten, series.start
    if series.since_best < thresholds["steps"] or history.solved or not math.isfinite(best):
        return None
    # Most training ends with a loss that has fallen and is level.
    if role == "loss" and best < start - _FALLEN * abs(start):
        return None
    text = (
        f"{series.key} has not improved for {series.since_best} steps{_at(series.step)}: its best "
        f"mean of ten steps is {best:.4g}, it began at {start:.4g}"
    )
    return Evidence(series.key, series.step, best, thresholds["steps"], text)


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
        f"{length.key} is {now:.4g} tokens{_at(length.step)}, was {shortest:.4g} less than "
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
    # Like `statistics.pstdev`, which takes a hundred times as long for each row.
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
    RowRule("mismatch", ("kl",), _mismatch),
    RowRule("gradient", ("gradient",), _gradient),
    RowRule("no_signal", ("mixed", "same"), _no_signal),
    RowRule(JUDGE_FAILED, ("failed",), _judge_failed),
    RowRule("length", ("length",), _length),
    RowRule("truncation", ("truncated",), _truncation),
    RowRule("plateau", ("reward", "loss"), _plateau),
)
