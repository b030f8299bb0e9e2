"""The alarm rules: meaning, thresholds and advice of each. Grids, the code of the rules and the
documentation use this module. Does no I/O and imports nothing of sweeper."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

WINDOW = 60
"""The number of values that are kept for each key. A rule that compares two periods uses at most
half of them for each period."""

Limits = dict[str, dict[str, float]]
"""{rule: {threshold: value}} for the rules that are on. Durations are in seconds."""


class Threshold(NamedTuple):
    """A number that grids may change in an alarm rule: its default, bounds, meaning and kind. For
    the kind `duration`, grids contain a text such as `1h30m`, and `sweep.json` has the seconds."""

    default: float
    least: float
    most: float
    meaning: str
    kind: Literal["number", "count", "duration"] = "number"


class Rule(NamedTuple):
    """An alarm rule: the fault that it detects, its thresholds and its advice. If `missing_steps`
    is set, the fault is that a run makes no training steps. Such a rule is off in interactive
    sessions, whose runs make no steps between requests."""

    meaning: str
    thresholds: Mapping[str, Threshold]
    advice: str
    missing_steps: bool = False


def _steps(default: int, most: int = 50) -> Threshold:
    return Threshold(default, 1, most, "steps that are compared", "count")


def _after(default: float, least: float, meaning: str) -> Threshold:
    return Threshold(default, least, 1e9, meaning, "duration")


RULES: dict[str, Rule] = {
    "nan": Rule(
        "a metric is NaN or infinite",
        {},
        "inspect the step before with `sweeper show`; lower the learning rate or clip "
        "gradients, then `sweeper retry` from an earlier checkpoint",
    ),
    "divergence": Rule(
        "the loss rises and stays high",
        {
            "above": Threshold(2.0, 1.0, 1e6, "times the loss at the start"),
            "lost": Threshold(
                0.5, 0.01, 1.0, "share of its earlier decrease by which the loss rises"
            ),
            "steps": _steps(5),
        },
        "stop the run (`sweeper cancel`), and launch with a learning rate three to ten "
        "times lower, or a longer warm-up",
    ),
    "spike": Rule(
        "the loss jumps in one step",
        {
            "above": Threshold(
                10.0, 1.0, 1e6, "standard deviations of its change over the last 20 steps"
            ),
            "lost": Threshold(0.5, 0.0, 1e6, "share of the loss at the start by which it jumps"),
        },
        "inspect the batch of that step; if the loss does not recover, lower the "
        "learning rate or clip gradients",
    ),
    "collapse": Rule(
        "the reward falls and stays low",
        {
            "lost": Threshold(0.7, 0.01, 1.0, "share of the best reward that is lost"),
            "steps": _steps(10, WINDOW // 2),
        },
        "stop the run, and continue from an earlier checkpoint with a lower learning "
        "rate; read the answers with `sweeper rollouts`",
    ),
    "entropy": Rule(
        "the model always gives the same answers, but does not solve its tasks",
        {"below": Threshold(0.02, 0.0, 100.0, "nats per token"), "steps": _steps(8)},
        "raise entropy_coef or the temperature, lower the learning rate, or start from "
        "a model that sometimes solves the tasks",
    ),
    "kl": Rule(
        "the trained model is far from the model that samples, or from its base model",
        {"above": Threshold(0.5, 0.0, 1e6, "nats per token"), "steps": _steps(3)},
        "lower the learning rate, take fewer substeps, or check that sampler and "
        "trainer have the same model and settings",
    ),
    "mismatch": Rule(
        "the sampler and the trainer disagree from the first steps on, before the policy can drift",
        {
            "above": Threshold(0.02, 0.0, 1e6, "nats per token, in one of the first steps"),
            "times": Threshold(10.0, 1.0, 1e6, "times its first value, or that of other runs"),
            "steps": Threshold(3, 1, 10, "steps that count as the first", "count"),
        },
        "check that sampler and trainer have the same model, weights, chat template, "
        "temperature and precision; healthy runs have 0.0002 (dense models) to 0.002 "
        "(mixtures of experts)",
    ),
    "gradient": Rule(
        "the norm of the gradient grows and stays large",
        {
            "above": Threshold(10.0, 1.0, 1e6, "times its earlier median"),
            "steps": _steps(3, WINDOW // 2),
        },
        "lower the learning rate, clip gradients or warm up longer; inspect the batches "
        "of those steps",
    ),
    "no_signal": Rule(
        "all answers of a group get the same reward, so there is nothing to learn",
        {
            "below": Threshold(0.01, 0.0, 1.0, "share of groups whose rewards differ, on average"),
            "steps": _steps(8),
        },
        "read `sweeper rollouts`: the task may be too hard, the reward broken, or "
        "max_tokens too short for any answer; warm up with SFT, or make the reward "
        "denser",
    ),
    "judge_failed": Rule(
        "a reward function, verifier or grader fails on answers",
        {
            "above": Threshold(0.1, 0.0, 1.0, "share of a step's answers"),
            "raises": Threshold(
                0.0, 0.0, 1.0, "the same share, for answers on which the function raises an error"
            ),
        },
        "fix the reward function, verifier or grader and `sweeper retry`; all errors "
        "are in `iteration_*/reward_failures.jsonl` of the run",
    ),
    "length": Rule(
        "answers grow longer but not better",
        {
            "above": Threshold(3.0, 1.0, 1e6, f"times the shortest of the last {WINDOW} steps"),
            "steps": _steps(5, WINDOW // 2),
        },
        "read `sweeper rollouts`; lower max_tokens or the temperature, or include the "
        "length in the reward",
    ),
    "truncation": Rule(
        "answers are cut off at max_tokens",
        {"above": Threshold(0.6, 0.0, 1.0, "share of answers, on average"), "steps": _steps(8)},
        ("raise max_tokens, or ask for shorter answers: answers that are cut off get no reward"),
    ),
    "plateau": Rule(
        "the reward, or a loss that has hardly fallen, has not improved for a long time",
        {"steps": Threshold(60, 10, 100_000, "steps without a new best mean of ten", "count")},
        "compare the run with the sweep's other runs (`sweeper compare`), and stop it "
        "if they are ahead; try another learning rate, a larger batch or easier problems",
    ),
    "stalled": Rule(
        "no step for a long time, although the worker sends heartbeats and nothing delays the run",
        {
            "after": _after(30.0, 1.0, "at least this long"),
            "factor": Threshold(10.0, 1.0, 1e6, "times the longest of the last 50 steps"),
            "first": _after(
                1800.0,
                1.0,
                "this long without a first step (only recipes, since commands may record none)",
            ),
        },
        "read `sweeper logs`, and see where its threads are with `sweeper logs RUN "
        "--stacks`: does the service answer, does the recipe wait for a lock? `sweeper "
        "cancel` and `sweeper retry` restart the run",
        missing_steps=True,
    ),
    "paused": Rule(
        "the service has delayed the run for a long time",
        {"after": _after(3600.0, 1.0, "for this long")},
        ("wait, lower launch.max_parallel, or request more quota; nothing is lost meanwhile"),
    ),
    "heartbeat": Rule(
        "the worker sends no heartbeats, but the backend reports a running job",
        {"after": _after(180.0, 15.0, "for this long, but no less than launch.lease")},
        "check whether the run's machine is alive and can reach the store; the run counts "
        "as lost once the backend no longer has its job",
    ),
    "metric": Rule(
        "the run has succeeded without recording the grid's metric",
        {},
        "name a recorded key in `metric`, or let the program write the metric to its "
        "metrics file: without a metric there is no report and no best run",
    ),
    "service": Rule(
        "the run failed because the service did not answer",
        {},
        "restart the service (`sweeper engine start`), or check that the run's machine can "
        "reach it; runs on the engine then continue from their last checkpoints; start "
        "other runs again with `sweeper retry`",
    ),
    "disk": Rule(
        "the disk that the run writes to is nearly full",
        {"below": Threshold(1.0, 0.0, 1e6, "GB free")},
        ("free space on that machine: `sweeper store gc`, older runs, checkpoints"),
    ),
    "memory": Rule(
        "the run's machine, or its container, is nearly out of memory",
        {"below": Threshold(0.03, 0.0, 1.0, "share of all memory that is free")},
        ("run fewer jobs there (launch.max_parallel), or request more memory from the backend"),
    ),
}
"""The rules by name, in the order in which they are shown."""


def resolve(given: Mapping[str, Mapping[str, float] | None] | None = None) -> Limits:
    """Return the thresholds to use: the defaults, overridden by `given`, a dict from the names of
    rules to the thresholds in a grid (None turns a rule off). Unknown rules and thresholds, which a
    newer version wrote, are ignored. Values above the maximum, which an older version may have
    allowed, are lowered to the maximum."""
    limits: Limits = {}
    for name, rule in RULES.items():
        changed = (given or {}).get(name, {})
        if changed is not None:
            limits[name] = {
                key: min(threshold.most, float(changed.get(key, threshold.default)))
                for key, threshold in rule.thresholds.items()
            }
    return limits
