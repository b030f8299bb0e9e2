"""Tells from the names of recorded keys whether they are about training data or held-out data."""

import functools

from sweeper.analysis.reading.keys import words_of

FEWEST, MOST = 3, 60
"""The smallest number of tasks that form a family, and the largest number that is examined."""

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


def is_held_out(key: str) -> bool:
    """Return whether a key's name says that it is about held-out data."""
    return bool(words_of(key) & _HELD)


def is_training(key: str) -> bool:
    """Return whether a key's name says that it is about training data: `train/nll`, or
    tinker-cookbook's `env/...`, which is about the prompts of a training step."""
    return not is_held_out(key) and bool(words_of(key) & _TRAINED)


def same_quantity(first: str, second: str) -> bool:
    """Return whether two keys measure the same quantity on different questions, as
    `env/all/reward/total` and `test/reward` do."""
    return _quantity(first) == _quantity(second)


def _quantity(key: str) -> str:
    leaf = key.rpartition("/")[2].lower()
    for prefix in ("train_", *(f"{held}_" for held in _PREFIXES)):
        leaf = leaf.removeprefix(prefix)
    return _ALIKE.get(leaf, leaf)


@functools.lru_cache(maxsize=64)
def counterparts(metric: str, keys: frozenset[str]) -> tuple[str, ...]:
    """Return the held-out keys that correspond to a training metric, the best match first: keys
    with the metric's own name under `test/` or a similar prefix, then keys of the same quantity,
    then accuracies, rewards and scores. Return no keys for a held-out metric."""
    if is_held_out(metric):
        return ()
    bare = metric.removeprefix("train/").removeprefix("train_")
    exact = [f"{prefix}/{name}" for prefix in _PREFIXES for name in (metric, bare)]
    held = sorted((key for key in keys if is_held_out(key)), key=lambda key: (len(key), key))
    alike = [key for key in held if same_quantity(key, metric)]
    right = [key for key in held if _quantity(key) in ("accuracy", "reward", "score")]
    return tuple(key for key in dict.fromkeys((*exact, *alike, *right)) if key in keys)


@functools.lru_cache(maxsize=64)
def family(keys: frozenset[str], metric: str | None) -> tuple[str, ...]:
    """Return a family: at least `FEWEST` keys that differ only in their task, such as
    `eval/gsm8k/score` and `eval/ifeval/score`. If the metric belongs to a family, return the first
    `MOST` keys of this family. Otherwise return the first `MOST` keys of the largest family of
    scores or accuracies; no keys if there is none."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key in sorted(keys):
        above, _, leaf = key.rpartition("/")
        top, _, task = above.rpartition("/")
        if top and task:
            groups.setdefault((top, leaf), []).append(key)
    wide = [group for group in groups.values() if len(group) >= FEWEST]
    named = [group for group in wide if metric in group]
    scored = [
        group for group in wide if group[0].rpartition("/")[2] in ("score", "accuracy", "correct")
    ]
    chosen = named or sorted(scored, key=lambda group: (-len(group), group))
    return tuple(chosen[0][:MOST]) if chosen else ()
