"""Assigns roles (the training curve, the reward, the entropy, ...) to recorded keys, by the
names that tinker-cookbook and sweeper's recipes use. Pure."""

import functools
import math
import re
from collections.abc import Collection, Mapping

from sweeper.results.scores import suite_of

ROLES = ("reward", "accuracy", "kl", "entropy", "length", "gradient")
"""The roles that get a figure, in addition to the metric and the training curve."""

_TRAIN = (
    "train/loss",
    "train_loss",
    "train_mean_nll",
    "train/nll",
    "dpo_loss",
    "reward_loss",
    "loss",
    "train/reward",
)
_REWARDS = ("env/all/reward/total", "reward")
_EXACT: Mapping[str, tuple[str, ...]] = {
    "reward": ("test/env/all/reward/total", "env/all/reward/total", "test/reward", "reward"),
    "accuracy": (
        *("test/accuracy", "test/env/all/correct", "accuracy", "env/all/correct", "correct"),
    ),
    "kl": ("kl_policy_base", "optim/kl_sample_train_v1", "optim/kl_sample_train_v2", "kl"),
    "entropy": ("optim/entropy", "entropy"),
    "length": ("env/all/ac_tokens_per_turn", "ac_tokens_per_turn", "response_length"),
    "gradient": ("unclipped_grad_l2:mean", "grad_norm", "gradient_norm"),
}
_WORDS: Mapping[str, re.Pattern[str]] = {
    "reward": re.compile(r"(?:^|[/_])(?<!chosen_)(?<!rejected_)(?:total_)?reward$"),
    "accuracy": re.compile(r"(?:^|[/_])(?:accuracy|acc)$"),
    "kl": re.compile(r"(?:^|[/_])kl(?:$|[/_])"),
    "entropy": re.compile(r"(?:^|[/_])entropy$"),
    "length": re.compile(r"(?:response|completion)s?[/_]?(?:mean_)?length"),
    "gradient": re.compile(r"grad(?:ient)?_norm$"),
}


_MOST_SUITES = 6

_MORE = frozenset(
    (
        *("acc", "accuracy", "auc", "bleu", "correct", "elo", "em", "f1", "mrr", "pass"),
        *("precision", "recall", "return", "returns", "reward", "rewards", "rouge", "score"),
        *("solved", "success", "win", "wins"),
    )
)
_LESS = frozenset(
    (
        *("bpb", "brier", "cer", "cost", "divergence", "err", "error", "errors", "kl", "loss"),
        *("losses", "mae", "mse", "nll", "perplexity", "ppl", "regret", "rmse", "wer"),
    )
)
_SHARES = frozenset(
    (
        *("acc", "accuracy", "auc", "correct", "em", "f1", "frac", "fraction", "pass", "precision"),
        *("recall", "solved", "success"),
    )
)
_NEVER_NEGATIVE = frozenset(
    ("bpb", "brier", "cer", "mae", "mse", "nll", "perplexity", "ppl", "rmse", "wer")
)


_TURNED = frozenset(("anti", "minus", "neg", "negated", "negative", "non", "not"))
"""Words that negate the meaning of other words, or may do so."""


def words_of(key: str) -> frozenset[str]:
    """Return the words in a key."""
    return frozenset(re.split(r"[^a-z0-9]+", key.lower()))


def goal_of(key: str) -> str | None:
    """Return the goal of a metric ("minimize" or "maximize") if its name implies one. A negated
    name (`neg_log_loss`, `not_correct`) implies none."""
    if words_of(key) & _TURNED:
        return None
    more, less = (bool(words & words_of(key)) for words in (_MORE, _LESS))
    return None if more == less else "maximize" if more else "minimize"


def bounds_of(key: str, low: float, high: float) -> tuple[float, float]:
    """Return the bounds of a metric, judged by its name and its recorded range `low` to `high`.
    A fraction or a reward has the bounds 0 and 1 if all its values were between them. An nll, a
    perplexity or a similar error has the lower bound 0 if no value was negative. All other bounds
    are infinite."""
    parts = words_of(key)
    if parts & _TURNED:
        return -math.inf, math.inf
    if parts & _LESS:
        never = bool(parts & _NEVER_NEGATIVE) and low >= 0
        return (0.0 if never else -math.inf), math.inf
    if parts & (_SHARES | {"reward", "rewards"}) and low >= 0 and high <= 1:
        return 0.0, 1.0
    return -math.inf, math.inf


@functools.lru_cache(maxsize=64)
def train_candidates(metric: str | None) -> tuple[str, ...]:
    """Return the keys that may be the training curve, the likeliest first: the counterpart of
    the metric (for `test/nll`: `train/nll`, `train_mean_nll`), then the loss, then the reward."""
    leaf = metric.rpartition("/")[2] if metric is not None else ""
    matching = (f"train/{leaf}", f"train_{leaf}", f"train_mean_{leaf}", f"train/mean_{leaf}")
    words = (*(matching if leaf else ()), *_TRAIN, *_REWARDS)
    return tuple(key for key in dict.fromkeys(words) if key != metric)


@functools.lru_cache(maxsize=64)
def candidates(keys: frozenset[str], metric: str | None) -> tuple[str, ...]:
    """Return those `keys` of one run that are scores of suites or may have a role (see `ROLES`).
    The metric is left out."""
    keys_of_roles = [key for role in ROLES for key in _ranked(role, keys)[:2]]
    wanted = (*keys_of_roles, *suite_scores(keys))
    return tuple(key for key in dict.fromkeys(wanted) if key != metric)


def suite_scores(keys: Collection[str]) -> list[str]:
    """Return the `keys` that are scores of suites, sorted, and at most `_MOST_SUITES` of them."""
    return sorted(key for key in keys if suite_of(key) is not None)[:_MOST_SUITES]


def choose(keys: Mapping[str, int], metric: str | None) -> dict[str, str]:
    """Return a dict from role to recorded key, for the role "train" and the `ROLES`. A role
    without a matching key is left out. No key has two roles, and the metric has none."""
    chosen: dict[str, str] = {}
    taken = {metric}
    train = next((key for key in train_candidates(metric) if key in keys), None)
    if train is not None:
        chosen["train"] = train
        taken.add(train)
    for role in ROLES:
        key = next((key for key in _ranked(role, set(keys)) if key not in taken), None)
        if key is not None:
            chosen[role] = key
            taken.add(key)
    return chosen


def _ranked(role: str, keys: Collection[str]) -> list[str]:
    exact = [key for key in _EXACT[role] if key in keys]
    matches = (k for k in keys if _WORDS[role].search(k) and not words_of(k) & _TURNED)
    worded = sorted(matches, key=lambda k: (len(k), k))
    return list(dict.fromkeys((*exact, *worded)))
