"""The history of one attempt, which the rules judge. The memory that a history takes does not grow
with the length of training. Rows are added one by one, so results do not depend on how many rows a
check reads. Does no I/O."""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import NamedTuple

from sweeper.common.alarm_thresholds import WINDOW
from sweeper.common.json_values import is_number
from sweeper.metrics.rows import as_float, as_number

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
        # The separate rewards of a pair's two answers (as in DPO) are excluded, since both may fall
        # while a model learns.
        r"(?:^|[/_])(?<!chosen_)(?<!rejected_)(?:total_|mean_)?rewards?(?:/mean)?$",
    ),
    "entropy": (("optim/entropy", "entropy"), r"(?:^|[/_])entropy(?:[/_]mean)?$"),
    "kl": (
        ("optim/kl_sample_train_v2", "optim/kl_sample_train_v1", "kl_policy_base", "kl"),
        r"(?:^|[/_])kl(?:$|[/_])",
    ),
    "gradient": (
        ("optim/grad_norm", "train/grad_norm", "grad_norm"),
        r"(?:^|[/_])(?:unclipped_)?grad(?:ient)?s?_?(?:l2|norm)(?:$|[/_:])",
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
        ("env/all/frac_reward_failed", "env/all/frac_verifier_failed", "test/frac_grader_failed"),
        r"(?:^|/)frac_(?:reward|verifier|grader)_failed$",
    ),
    "truncated": ((), r"truncat\w*[/_](?:ratio|rate|frac\w*|share)$|(?:length|s)/clip\w*_ratio$"),
}
"""The usual keys of each role, the likeliest first, and a pattern for other keys. Some roles are
fractions of groups: those with different rewards (`mixed`), with equal rewards (`same`), with
only right answers (`good`), with only wrong answers (`bad`). Others are fractions of answers:
those that were cut off (`truncated`), and those that could not be judged (`failed`)."""

_NOT_TRAINING = re.compile(r"(?:^|[/_])(?:test|eval|val|valid|validation|dev)(?:[/_]|$)")
_NEGATED = re.compile(r"(?:^|[/_])(?:anti|minus|neg|negated|negative|non|not)[/_]")
_SETTING = re.compile(
    r"(?:^|[/_])(?:coef\w*|targets?|ctl|beta|weights?|penalty|penalties)(?:[/_]|$)"
)
_WORDS = {role: re.compile(words) for role, (_, words) in ROLES.items()}


def role_of(role: str, keys: Iterable[str]) -> str | None:
    """Return the key with a role in `ROLES`, such as `reward`; None if no key has the role. The
    role's usual keys take precedence over the shortest key that matches the role's pattern. Keys of
    evaluations, settings (`kl_coef`) and negated values (`neg_reward`) do not match the pattern."""
    present = list(keys)
    for key in ROLES[role][0]:
        if key in present:
            return key
    words = _WORDS[role]
    roles = [
        key
        for key in present
        if words.search(key)
        and not any(pattern.search(key) for pattern in (_NOT_TRAINING, _SETTING, _NEGATED))
    ]
    return min(roles, key=lambda key: (len(key), key), default=None)


OF_SAMPLER = "sample_train"
"""Part of the keys with which tinker-cookbook compares the sampler with the trainer."""

_SMOOTH = 5
_TEN = 10
_FIRST = 3
_MOST_KEYS = 10_000


class Evidence(NamedTuple):
    """The evidence of a rule: `key` had the value `value` at `step`, and the threshold is `bound`.
    A field is None if it does not apply. `message` describes the problem."""

    key: str | None
    step: float | None
    value: float | None
    bound: float | None
    message: str


class Failed(NamedTuple):
    """The cause of an attempt's failure. `reason` is the reason in the attempt's outcome. `line` is
    the detail in the outcome, or else the last line that the attempt printed."""

    reason: str | None
    line: str


class Vitals(NamedTuple):
    """The state of an attempt at one check. Times are in seconds, and None means unknown.

    `quiet`: the time since the last step or pause, reduced by the time that late metrics and final
    evaluations may take. `longest`: the duration of the longest recent step. `to_first_step`: the
    time that this attempt needed for its first step; before this step, the longest such time of any
    attempt. `is_command`: all recipes are commands, and this attempt has recorded no step.
    `lacks_folder`: all recipes are commands without `{log_path}`. `paused`: why and since when the
    service has paused the attempt. `paused_s`: the duration of this pause. `beat_quiet`: the time
    since the last heartbeat. `lease`: the time without a heartbeat after which a worker counts as
    lost. `disk_free`, `memory_free` and `memory_total`: bytes on the worker's machine, `host`.
    `failed`: the cause of a failure, set only after a failure. `metric`: the grid's metric, set
    only after a success.
    """

    quiet: float = 0.0
    longest: float | None = None
    to_first_step: float | None = None
    paused: str | None = None
    paused_s: float = 0.0
    beat_quiet: float = 0.0
    lease: float = 0.0
    is_command: bool = False
    lacks_folder: bool = False
    host: str | None = None
    disk_free: float | None = None
    memory_free: float | None = None
    memory_total: float | None = None
    failed: Failed | None = None
    metric: str | None = None


class Series:
    """The finite values of one key: the last values, and summaries of the earlier values."""

    def __init__(self, key: str, *, rises: bool = False) -> None:
        self.key = key
        self.count = 0
        self.first: list[float] = []
        self.values: deque[float] = deque(maxlen=WINDOW)
        self.step: float | None = None
        # `after`: the number of rows since the last number. `named`: whether one of these rows has
        # the key, for example with null; `other` is then the value there. `gap`: the largest number
        # of rows between two numbers.
        self.after = 0
        self.named = False
        self.other: object = None
        self.gap = 0
        self.recorded = False
        # The lowest median of five consecutive values.
        self.low = math.inf
        # The highest mean over more values, and the spread at that time, for `collapse`.
        self.best_mean = -math.inf
        self.best_spread = 0.0
        self.least = math.inf
        # The best mean of ten consecutive values, and the number of values since, for `plateau`.
        self._sign = 1.0 if rises else -1.0
        self.best_ten = -self._sign * math.inf
        self.since_best = 0

    def add(self, step: float | None, value: float) -> None:
        """Add a value."""
        self.record()
        self.count += 1
        self.step = step
        self.values.append(value)
        self.least = min(self.least, value)
        if len(self.first) < _FIRST:
            self.first.append(value)
        if len(self.values) >= _SMOOTH:
            self.low = min(self.low, median(self.last(_SMOOTH)))
        self.since_best += 1
        if len(self.values) >= _TEN:
            mean = sum(self.last(_TEN)) / _TEN
            if self._sign * (mean - self.best_ten) > 0:
                self.best_ten, self.since_best = mean, 0

    def record(self) -> None:
        """Count the new row as one in which the key has a number, NaN or infinity."""
        self.gap = max(self.gap, self.after)
        self.after, self.named, self.recorded = 0, False, True

    def miss(self, row: Mapping[str, object]) -> None:
        """Count the new row as one in which the key is missing or is not a number."""
        self.after += 1
        if self.key in row:
            self.named, self.other = True, row[self.key]

    @property
    def start(self) -> float:
        """Return the median of the first `_FIRST` values; NaN if there are no values."""
        return median(self.first)

    def last(self, count: int) -> list[float]:
        """Return the last values, at most `count` of them."""
        size = len(self.values)
        return list(islice(self.values, max(0, size - count), size))

    def over(self, steps: float) -> list[float] | None:
        """Return the last `steps` values; None if there are fewer."""
        count = int(steps)
        return self.last(count) if len(self.values) >= count else None


class History:
    """The values that one attempt has recorded. `series` maps roles in `ROLES`, such as `reward`,
    to the values of each role. `metric` has the values of the metric by which runs are compared.

    `malformed` counts the lines of metrics that are not JSON objects, and `unlike` describes the
    first such line. `usual_mismatch` is the median `first_mismatch` of the sweep's other runs of
    the same model (None: no such runs). `drifts`: a step updates the policy several times.
    """

    def __init__(self, metric: str | None = None) -> None:
        self.series: dict[str, Series] = {}
        self.metric = None if metric is None else Series(metric)
        self.malformed = 0
        self.unlike = ""
        self.row: dict[str, object] = {}
        self.fresh: frozenset[str] = frozenset()
        self.vitals = Vitals()
        self.usual_mismatch: float | None = None
        self.drifts = False
        self._seen: set[str] = set()

    def add(self, row: Mapping[str, object], extra: Mapping[str, float] | None = None) -> None:
        """Add a row of metrics. `extra` is a dict from role, such as `length`, to a value that was
        computed from the rollouts of the same step."""
        self.row = dict(row)
        unseen = [key for key in row if key not in self._seen]
        if unseen and len(self._seen) < _MOST_KEYS:
            self._seen.update(unseen)
            self._recognise(unseen)
        step = as_float(row.get("step"))
        fresh: set[str] = set()
        for role, series in self.series.items():
            if _added(series, step, row):
                fresh.add(role)
        if self.metric is not None:
            _added(self.metric, step, row)
        for role, value in (extra or {}).items():
            if role not in fresh and math.isfinite(value):
                rises = role == "reward"
                series = self.series.setdefault(role, Series(_FROM_ROLLOUTS[role], rises=rises))
                series.add(step, value)
                fresh.add(role)
        self.fresh = frozenset(fresh)

    @property
    def watched(self) -> list[Series]:
        """Return the series of all roles and, if there is a metric, the series of the metric."""
        return [*self.series.values(), *([] if self.metric is None else [self.metric])]

    @property
    def keys(self) -> Set[str]:
        """Return the keys that the attempt has recorded."""
        return self._seen

    @property
    def step(self) -> float | None:
        """Return the step of the last row; None if the row has no step."""
        step = self.row.get("step")
        return step if is_number(step) else None

    def _recognise(self, unseen: list[str]) -> None:
        for role in ROLES:
            if role not in self.series:
                key = role_of(role, unseen)
                if key is not None:
                    self.series[role] = Series(key, rises=role == "reward")

    @property
    def first_mismatch(self) -> float | None:
        """Return the first recorded mismatch of sampler and trainer; None if none was recorded."""
        kl = self.series.get("kl")
        return kl.first[0] if kl is not None and kl.first and OF_SAMPLER in kl.key else None

    @property
    def solved(self) -> bool:
        """Return whether little is left to learn: in at least half of the groups all answers are
        right, or the reward is close to 1, its maximum. The reward does not count if it was below 0
        or above 1, because its maximum is then unknown."""
        good = self.series.get("good")
        if good is not None and (rewards := good.over(_SMOOTH)) and sum(rewards) / _SMOOTH >= 0.5:
            return True
        reward = self.series.get("reward")
        if reward is None or reward.least < 0 or max(reward.values, default=2.0) > 1:
            return False  # the maximum is unknown
        return median(reward.last(_SMOOTH)) >= 0.9


def _added(series: Series, step: float | None, row: Mapping[str, object]) -> bool:
    """Add a row to a series. Return whether the row has a finite value for the series."""
    value = as_number(row.get(series.key))
    if value is None:
        series.miss(row)
    elif math.isfinite(value):
        series.add(step, value)
        return True
    else:
        series.record()
    return False


_FROM_ROLLOUTS = {
    "mixed": "groups of rollouts",
    "good": "groups of rollouts",
    "bad": "groups of rollouts",
    "truncated": "rollouts",
    "length": "rollouts",
    "reward": "rollouts",
}


def median(values: Iterable[float]) -> float:
    """Return the median; NaN if there are no values."""
    ordered = sorted(values)
    size = len(ordered)
    if not size:
        return math.nan
    middle = size // 2
    return ordered[middle] if size % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def deviation(values: Iterable[float]) -> float:
    """Return an estimate of the standard deviation that is robust to outliers: 1.4826 times the
    median distance from the median (Rousseeuw and Croux 1993)."""
    window = list(values)
    middle = median(window)
    return 1.4826 * median(abs(value - middle) for value in window)
