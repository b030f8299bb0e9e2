"""Which of the recorded keys is what: the training curve, the reward, the entropy. Pure.

By name, as tinker-cookbook and the recipes here name them; a sweep that names nothing so simply
has no such figure.
"""

import functools
import re
from collections.abc import Collection, Mapping

__all__ = ["ROLES", "candidates", "choose", "train_candidates"]

ROLES = ("reward", "accuracy", "kl", "entropy", "length", "gradient")
"""What is drawn beside the metric and the training curve, where it was recorded."""

_TRAIN = ("train/loss", "train_loss", "train_mean_nll", "train/nll", "loss", "train/reward")
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
    "reward": re.compile(r"(?:^|[/_])(?:total_)?reward$"),
    "accuracy": re.compile(r"(?:^|[/_])(?:accuracy|acc)$"),
    "kl": re.compile(r"(?:^|[/_])kl(?:$|[/_])"),
    "entropy": re.compile(r"(?:^|[/_])entropy$"),
    "length": re.compile(r"(?:response|completion)s?[/_]?(?:mean_)?length"),
    "gradient": re.compile(r"grad(?:ient)?_norm$"),
}


@functools.lru_cache(maxsize=64)
def train_candidates(metric: str | None) -> tuple[str, ...]:
    """Keys that may show the training itself, the likeliest first: the training counterpart of the
    metric (`test/nll`: `train/nll`, `train_mean_nll`), else the loss, else the reward."""
    leaf = metric.rpartition("/")[2] if metric is not None else ""
    own = (f"train/{leaf}", f"train_{leaf}", f"train_mean_{leaf}", f"train/mean_{leaf}")
    found = (*(own if leaf else ()), *_TRAIN, *_REWARDS)
    return tuple(key for key in dict.fromkeys(found) if key != metric)


@functools.lru_cache(maxsize=64)
def candidates(keys: frozenset[str], metric: str | None) -> tuple[str, ...]:
    """Of the `keys` of one run those that may have a role. Most runs have the same."""
    found = [key for role in ROLES for key in _ranked(role, keys)[:2]]
    return tuple(key for key in dict.fromkeys(found) if key != metric)


def choose(keys: Mapping[str, int], metric: str | None) -> dict[str, str]:
    """Role -> key, for the roles that some run recorded: "train" and `ROLES`. A key has one role,
    and the metric none of them, unless it is the only one of its kind."""
    chosen: dict[str, str] = {}
    taken = {metric}
    train = next((key for key in train_candidates(metric) if key in keys), None)
    if train is not None:
        chosen["train"] = train
        taken.add(train)
    for role in ROLES:
        found = next((key for key in _ranked(role, set(keys)) if key not in taken), None)
        if found is not None:
            chosen[role] = found
            taken.add(found)
    return chosen


def _ranked(role: str, keys: Collection[str]) -> list[str]:
    exact = [key for key in _EXACT[role] if key in keys]
    worded = sorted((k for k in keys if _WORDS[role].search(k)), key=lambda k: (len(k), k))
    return list(dict.fromkeys((*exact, *worded)))
