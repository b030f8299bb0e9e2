"""The rules that detect problems of a run, from its rows, from the clock and from the state of its
machine. A rule depends only on the history and its thresholds, and returns evidence or None.
docs/alarms.md says how often each rule is right."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import NamedTuple

from sweeper.alarms.history import OF_SAMPLER, Evidence, History, deviation, median
from sweeper.metrics.rows import are_missing, as_number, describe
from sweeper.sweep.labels import first_of, plural

Thresholds = Mapping[str, float]

JUDGE_FAILED = "judge_failed"
"""The rule whose message also contains the error of the function that failed."""

_REAL_MISMATCH = 0.001
"""Mismatches of sampler and trainer below this many nats per token are only rounding, as in healthy
dense models."""
_GRADIENTS = 10
"""A gradient norm is compared with at least this many earlier norms."""
_OF_FUNCTION = "reward_failed"
"""Part of the key that says for which fraction of the answers a reward function raised an error."""
_FALLEN = 0.1
"""A loss must have fallen by this fraction of its start to count as learning."""
_FEW = 3
"""After fewer values than this, null is not taken for NaN, because the key may only be recorded
rarely."""
_NEAR_ZERO = 0.1
"""A loss below this fraction of its start counts as near zero."""


class RowRule(NamedTuple):
    """A rule that judges rows of metrics. `watches` has roles, such as `reward`. The rule judges
    the rows with a finite value for one of these roles, or every row if `watches` is empty."""

    name: str
    watches: tuple[str, ...]
    find: Callable[[History, Thresholds], Evidence | None]


def judge(
    history: History, limits: Mapping[str, Thresholds], failed: Callable[[str, Exception], object]
) -> dict[str, Evidence]:
    """Apply the rules in `limits` to the newest row of `history`. Return a dict from rule to
    evidence, for the rules that found a problem. If a rule raises an error, call `failed` with the
    rule and the error, and continue with the next rule."""
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
        # Strings under other keys have no known meaning.
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
                f"{series.key} is null{_at(history.step)}; it was {series.values[-1]:.4g} before "
                "(some programs write null for NaN)"
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
    # If a loss is near zero, or has been as high before, its ratio to the start means little. The
    # loss must then also rise by more than it varies from step to step.
    earlier = list(loss.values)[: -len(values)]
    is_new = now > max(earlier, default=now) and loss.least >= _NEAR_ZERO * start
    bound = thresholds["above"] * start
    if start > 0 and now > bound and (is_new or now - start > rough):
        text = f"{loss.key} is {now:.4g}{_at(loss.step)}; it was {start:.4g} at the start"
        return Evidence(loss.key, loss.step, now, bound, text)
    lost = thresholds["lost"] * (start - loss.low)
    # If a loss has hardly fallen, a rise to its start is only noise.
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
    # The noise is measured from step to step, since a falling loss has a wide spread without noise.
    noise = deviation(after - value for value, after in pairwise(before))
    leap = max(thresholds["above"] * noise, thresholds["lost"] * abs(loss.start))
    bound = middle + leap
    # The loss must also double, since even noise is large in comparison with a small loss.
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
    # Use means: medians of a sparse reward are 0 or 1 whatever the model does.
    long = reward.last(2 * int(thresholds["steps"]))
    plain = _plain_deviation(reward.values)
    if (mean := sum(long) / len(long)) > reward.best_mean:
        reward.best_mean, reward.best_spread = mean, plain
    best = reward.best_mean
    now = sum(values) / len(values)
    bound = floor + (1 - thresholds["lost"]) * (best - floor)
    # The robust deviation is 0 if most rewards are equal, the plain deviation only if all are.
    spread = max(deviation(reward.values), plain, 0.6 * reward.best_spread)
    noise = 4 * spread * math.sqrt(1 / len(values) + 1 / len(long))
    if best <= floor or now > bound or best - now <= noise:
        return None
    text = f"{reward.key} is {now:.4g} on average{_at(reward.step)}; it was {best:.4g} before"
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
    if OF_SAMPLER not in kl.key or history.drifts:
        return None  # the KL is against a base model, or the policy drifted within the step
    steps = int(thresholds["steps"])
    if kl.count <= steps and kl.values[-1] > thresholds["above"]:
        bound, now = thresholds["above"], kl.values[-1]
        text = f"{kl.key} is {now:.3g} nats{_at(kl.step)}, early in training: more than {bound:g}"
        return Evidence(kl.key, kl.step, now, bound, text)
    # Other runs may start later, so the first values are compared with theirs at any step. In later
    # steps, the policy may have drifted.
    early = kl.first[:steps]
    references = (
        (early[0], early[1:], "its first value"),
        (history.usual_mismatch, early, "the usual value of the sweep's other runs"),
    )
    for reference, values, phrase in references:
        now = max(values, default=0.0)
        if reference is None:
            continue
        bound = max(thresholds["times"] * reference, _REAL_MISMATCH)
        if now <= bound:
            continue
        usual = f"{thresholds['times']:g} times {phrase}, {reference:.2g}"
        text = f"{kl.key} is {now:.3g} nats in one of the first {len(early)} steps: more than " + (
            f"{bound:g}; {phrase} is {reference:.2g}" if bound == _REAL_MISMATCH else usual
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
    # A rise over many steps does not count: the norm of a model that learns may grow slowly.
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
    answers: list[str] = []
    for role, text in (("bad", "all wrong"), ("good", "all right")):
        series = history.series.get(role)
        values = None if series is None else series.over(steps)
        if values:
            answers.append(f"{sum(values) / len(values):.0%} were {text}")
    return f" ({', '.join(answers)})" if answers else ""


def _judge_failed(history: History, thresholds: Thresholds) -> Evidence | None:
    failed = history.series["failed"]
    now = failed.values[-1]
    # A function that raises reports its own error; verifiers and graders also time out.
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
    # Most training ends with a level loss, after it has fallen.
    if role == "loss" and best < start - _FALLEN * abs(start):
        return None
    text = (
        f"{series.key} has not improved for {series.since_best} steps{_at(series.step)}: its best "
        f"mean of ten steps is {best:.4g}, and it began at {start:.4g}"
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
    rewarded = ""
    if reward is not None and len(reward.values) == len(values):
        rewarded = ", and the reward is no better"
        at = medians.index(shortest)
        then = list(reward.values)[at : at + steps]
        if median(reward.last(steps)) > median(then) + deviation(then):
            return None  # answers are longer, but rewards are better
    text = (
        f"{length.key} is {now:.4g} tokens{_at(length.step)}; it was {shortest:.4g} within the "
        f"last {len(values)} steps{rewarded}"
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


_GB = 1e9
_KEYS = 6
_NO_ANSWER = re.compile(
    r"service at \S+ (?:is gone|no longer answers)"
    r"|connection (?:error|refused|reset|aborted|timed out)"
    r"|connect(?:ion)?error|connecttimeout|name or service not known|name resolution"
    r"|no route to host|server disconnected|apitimeouterror|error code: 50[234]\b"
    r"|\b50[234] (?:bad gateway|service (?:temporarily )?unavailable|gateway time-?out)",
    re.IGNORECASE,
)


def judge_clock(
    history: History,
    limits: Mapping[str, Mapping[str, float]],
    failed: Callable[[str, Exception], object],
) -> dict[str, Evidence]:
    """Apply the rules in `limits` that judge `history.vitals`, the state of an attempt. Arguments
    and result are those of `judge`."""
    by_rule: dict[str, Evidence] = {}
    for name, find in CLOCK_RULES.items():
        thresholds = limits.get(name)
        try:
            evidence = None if thresholds is None else find(history, thresholds)
        except Exception as error:  # noqa: BLE001 - one rule must not silence the others
            failed(name, error)
            continue
        if evidence is not None:
            by_rule[name] = evidence
    return by_rule


def _stalled(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    """Return evidence if an attempt makes no progress. Other rules detect pauses and missing
    heartbeats. A command may record no steps, so its attempts are judged only after one attempt of
    the sweep has made a step."""
    vitals = history.vitals
    if vitals.paused is not None or vitals.beat_quiet > max(vitals.lease, 30.0):
        return None
    pace = vitals.longest if vitals.longest is not None else vitals.to_first_step
    if pace is None and vitals.is_command:
        return None  # a command may record no step at all
    pace_text, bound = "", thresholds["first"]
    if pace is not None:
        pace_text = f"; the longest step took {_words(pace)}"
        bound = max(thresholds["after"], thresholds["factor"] * pace)
    if vitals.quiet <= bound:
        return None
    text = f"no step for {_words(vitals.quiet)}{pace_text}"
    return Evidence(None, history.step, vitals.quiet, bound, text)


def _paused(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    vitals = history.vitals
    if vitals.paused is None or vitals.paused_s <= thresholds["after"]:
        return None
    text = f"the service has delayed the run for {_words(vitals.paused_s)}: {vitals.paused}"
    return Evidence(None, history.step, vitals.paused_s, thresholds["after"], text)


def _heartbeat(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    vitals = history.vitals
    bound = max(thresholds["after"], vitals.lease)
    if vitals.beat_quiet <= bound:
        return None
    text = f"no heartbeat for {_words(vitals.beat_quiet)}"
    return Evidence(None, history.step, vitals.beat_quiet, bound, text)


def _service(history: History, _: Mapping[str, float]) -> Evidence | None:
    """Return evidence if the reason or the last line of a failed attempt says that a service did
    not answer."""
    failed = history.vitals.failed
    if failed is None or (failed.reason != "service" and not _NO_ANSWER.search(failed.line)):
        return None
    return Evidence(None, history.step, None, None, f"the run has failed: {failed.line}")


def _metric(history: History, _: Mapping[str, float]) -> Evidence | None:
    """Return evidence if a successful run did not record its metric, recorded no numbers for it, or
    did not record it in its last rows."""
    wanted, series = history.vitals.metric, history.metric
    if wanted is None:
        return None
    if wanted not in history.keys:
        return Evidence(wanted, history.step, None, None, _not_recorded(wanted, history))
    if series is None or series.key != wanted:
        return None
    if not series.recorded:
        text = f"{wanted} is never a number: it was recorded as {describe(series.other)}"
        return Evidence(wanted, history.step, None, None, text)
    if are_missing(series.after, series.gap, named=series.named):
        rows = f"last {series.after} rows have" if series.after > 1 else "last row has"
        text = (
            f"the {rows} no {wanted}: the value may have become NaN, which some programs do "
            "not write"
        )
        return Evidence(wanted, history.step, None, None, text)
    return None


def _not_recorded(wanted: str, history: History) -> str:
    recorded = sorted(history.keys - {"step"})
    lines = plural(history.malformed, "line of its metrics file", "lines of its metrics file")
    unlike = f"; {lines} cannot be read: {history.unlike}" if history.malformed else ""
    if not recorded:
        if history.vitals.lacks_folder and not history.malformed:
            unlike = "; the command has no {log_path}, so sweeper cannot find its metrics"
        return f"no {wanted!r} was recorded, and no other metric{unlike}"
    similar = get_close_matches(wanted, recorded, n=1)
    ordered = [*similar, *(key for key in recorded if key not in similar)]
    return f"no {wanted!r} was recorded; recorded: {first_of(ordered, _KEYS)}{unlike}"


def _disk(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    free, bound = history.vitals.disk_free, thresholds["below"] * _GB
    if free is None or free >= bound:
        return None
    text = f"{free / _GB:.2g} GB are free on the disk of {history.vitals.host or 'the machine'}"
    return Evidence("disk_free_bytes", history.step, free, bound, text)


def _memory(history: History, thresholds: Mapping[str, float]) -> Evidence | None:
    free, total = history.vitals.memory_free, history.vitals.memory_total
    if free is None or not total or free >= (bound := thresholds["below"] * total):
        return None
    text = (
        f"{free / _GB:.2g} of {total / _GB:.3g} GB of memory are free on "
        f"{history.vitals.host or 'the machine'}"
    )
    return Evidence("memory_free_bytes", history.step, free, bound, text)


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


CLOCK_RULES: dict[str, Callable[[History, Mapping[str, float]], Evidence | None]] = {
    "stalled": _stalled,
    "paused": _paused,
    "heartbeat": _heartbeat,
    "metric": _metric,
    "service": _service,
    "disk": _disk,
    "memory": _memory,
}
