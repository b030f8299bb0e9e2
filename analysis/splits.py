"""Which recorded keys are of what a run was trained on, and which of what was held out. By name."""

import re
from collections.abc import Collection

__all__ = ["counterparts", "is_held_out", "is_training", "same_quantity"]

_HELD = frozenset(
    (
        *("test", "eval", "evals", "evaluation", "val", "valid", "validation", "dev"),
        *("heldout", "holdout", "held"),
    )
)
_TRAINED = frozenset(("train", "training", "env"))
_PREFIXES = ("test", "eval", "heldout", "held_out", "validation", "valid", "val", "dev")
_ALIKE = {
    "total": "reward", "rewards": "reward", "mean_reward": "reward", "acc": "accuracy",
    "correct": "accuracy", "mean_nll": "nll", "mean_loss": "loss",
}  # fmt: skip


def _words(key: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", key.lower()))


def is_held_out(key: str) -> bool:
    """Whether a key's name says that it is of what no run is trained on."""
    return bool(_words(key) & _HELD)


def is_training(key: str) -> bool:
    """Whether a key's name says that it is of what the run is trained on: `train/nll`, and
    tinker-cookbook's `env/...`, which is of the prompts of a training step."""
    return not is_held_out(key) and bool(_words(key) & _TRAINED)


def same_quantity(key: str, other: str) -> bool:
    """Whether two keys measure the same, of different questions: `env/all/reward/total` and
    `test/reward`."""
    return _quantity(key) == _quantity(other)


def _quantity(key: str) -> str:
    leaf = key.rpartition("/")[2].lower()
    for prefix in ("train_", *(f"{held}_" for held in _PREFIXES)):
        leaf = leaf.removeprefix(prefix)
    return _ALIKE.get(leaf, leaf)


def counterparts(metric: str, keys: Collection[str]) -> list[str]:
    """The held-out keys that tell how a run did by a metric of training, the nearest first: the
    same under `test/`, the same quantity, and then an accuracy or a reward. Empty for a metric that
    is held out itself."""
    if is_held_out(metric):
        return []
    bare = metric.removeprefix("train/").removeprefix("train_")
    exact = [f"{prefix}/{name}" for prefix in _PREFIXES for name in (metric, bare)]
    held = sorted((key for key in keys if is_held_out(key)), key=lambda key: (len(key), key))
    alike = [key for key in held if same_quantity(key, metric)]
    right = [key for key in held if _quantity(key) in ("accuracy", "reward", "score")]
    return [key for key in dict.fromkeys((*exact, *alike, *right)) if key in keys]
