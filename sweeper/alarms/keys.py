"""Recognises what a key of a run's metrics is: its loss, its reward, its entropy. It goes by names:
those of tinker-cookbook and of the recipes here, and those usual elsewhere. Pure."""

import re
from collections.abc import Iterable

ROLES: dict[str, tuple[tuple[str, ...], str]] = {
    "loss": (
        (
            "train_mean_nll",
            "train/loss",
            "train_loss",
            "train/nll",
            "dpo_loss",
            "reward_loss",
            "loss",
        ),
        r"(?:^|/)(?:train[/_])?(?:mean_|total_)?(?:loss|nll|bpb)(?::mean)?$",
    ),
    "reward": (
        ("env/all/reward/total", "reward", "train/reward"),
        # Not those of the two answers of a pair, which may both fall while a model learns.
        r"(?:^|[/_])(?<!chosen_)(?<!rejected_)(?:total_|mean_)?rewards?(?:/mean)?$",
    ),
    "entropy": (("optim/entropy", "entropy"), r"(?:^|[/_])entropy(?:[/_]mean)?$"),
    "kl": (
        ("optim/kl_sample_train_v2", "optim/kl_sample_train_v1", "kl_policy_base", "kl"),
        r"(?:^|[/_])kl(?:$|[/_])",
    ),
    "mixed": (("env/all/by_group/frac_mixed",), r"(?:^|/)frac_mixed$"),
    "same": ((), r"(?:^|/)frac_reward_zero_std$"),
    "bad": (("env/all/by_group/frac_all_bad",), r"(?:^|/)frac_all_bad$"),
    "good": (("env/all/by_group/frac_all_good",), r"(?:^|/)frac_all_good$"),
    "length": (
        ("env/all/ac_tokens_per_turn", "ac_tokens_per_turn", "response_length"),
        r"(?:response|completion)s?[/_](?:mean_)?length(?:[/_]mean)?$",
    ),
    "failed": (
        (
            "env/all/frac_reward_failed",
            "env/all/frac_verifier_failed",
            "test/frac_grader_failed",
        ),
        r"(?:^|/)frac_(?:reward|verifier|grader)_failed$",
    ),
    "truncated": ((), r"truncat\w*[/_](?:ratio|rate|frac\w*|share)$|(?:length|s)/clip\w*_ratio$"),
}
"""For each role its usual keys, the likeliest first, and a pattern for others. `mixed` is the share
of groups whose rewards differ, `same` the share of the others. `good` and `bad` are the shares of
groups that are all right and all wrong. `truncated` is the share of answers that were cut off,
`failed` of those that could not be judged."""

_NOT_TRAINING = re.compile(r"(?:^|[/_])(?:test|eval|val|valid|validation|dev)(?:[/_]|$)")
_NEGATED = re.compile(r"(?:^|[/_])(?:anti|minus|neg|negated|negative|non|not)[/_]")
_SETTING = re.compile(
    r"(?:^|[/_])(?:coef\w*|targets?|ctl|beta|weights?|penalty|penalties)(?:[/_]|$)"
)
_WORDS = {role: re.compile(words) for role, (_, words) in ROLES.items()}


def role_of(role: str, keys: Iterable[str]) -> str | None:
    """The key that most likely has a role. Keys of an evaluation never do, nor those of a setting
    (`kl_coef`), nor negated ones (`neg_reward`)."""
    present = list(keys)
    for key in ROLES[role][0]:
        if key in present:
            return key
    words = _WORDS[role]
    roles = [
        key
        for key in present
        if words.search(key)
        and not any(others.search(key) for others in (_NOT_TRAINING, _SETTING, _NEGATED))
    ]
    return min(roles, key=lambda key: (len(key), key), default=None)
