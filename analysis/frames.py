"""What the report needs of a sweep, read through the registry once and then left alone."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.errors import UsageError
from sweeper.metrics import Point, numbers, value_at
from sweeper.registry import RecordedRun, Registry, Sweep

__all__ = ["Metric", "RunData", "SweepData", "find_metric", "load"]

LOG_LINES = 12
"""How much of a failed run's log the report shows."""


@dataclass(frozen=True)
class Metric:
    """What cells are compared by: the last or the best value of `name` in each run."""

    name: str
    goal: str  # "minimize" or "maximize"
    at: str = "last"  # or "best"

    @property
    def sign(self) -> float:
        """Multiplied by it, smaller is better."""
        return -1.0 if self.goal == "maximize" else 1.0


@dataclass(frozen=True)
class RunData:
    """A planned run, whatever became of it.

    `value` and `step` are what it is judged by, None when the metric was never recorded;
    `curves` holds the points of the keys that are drawn.
    """

    id: str
    name: str
    cell: str
    seed: int | None
    config: Mapping[str, Any]
    state: str
    attempts: int
    reason: str | None
    detail: str | None
    wall_s: float | None
    value: float | None
    step: float | None
    diverged: bool
    unreadable: int
    curves: Mapping[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    log: tuple[str, ...] = ()
    checkpoints: tuple[Mapping[str, Any], ...] = ()

    @property
    def counts(self) -> bool:
        """Whether its value takes part in comparisons: it succeeded, with a finite value."""
        return self.state == "succeeded" and self.value is not None and not self.diverged


@dataclass(frozen=True)
class SweepData:
    """A sweep at the moment it was read. `retired` counts the runs that an earlier version of the
    grid had; they are no part of `runs`. `keys` maps each key with numbers to the number of runs
    that recorded it."""

    name: str
    document: Mapping[str, Any]
    metric: Metric | None
    axes: Mapping[str, list[Any]]
    runs: tuple[RunData, ...]
    keys: Mapping[str, int]
    train_key: str | None
    retired: int


def find_metric(sweep: Sweep, name: str | None, goal: str | None) -> Metric | None:
    """The metric asked for, else the sweep's own. Raises `UsageError` when which way is better is
    not known."""
    own = sweep.metric
    if goal not in (None, "minimize", "maximize"):
        raise UsageError(f"goal {goal!r}: say minimize or maximize")
    if name is None or (own is not None and own["name"] == name):
        if own is None:
            return None
        return Metric(own["name"], goal or own.get("goal", "minimize"), own.get("at", "last"))
    if goal is None:
        raise UsageError(f"metric {name!r}: say which way is better, goal minimize or maximize")
    return Metric(name, goal)


def load(registry: Registry, sweep: str, metric: str | None, goal: str | None) -> SweepData:
    """Read a sweep. Raises `NotFound` when there is none, `UsageError` as `find_metric`."""
    found = registry.sweep(sweep)
    chosen = find_metric(found, metric, goal)
    current = [run for run in found.runs if not run.retired]
    keys = _numeric_keys(current)
    train_key = _train_key(keys, chosen)
    return SweepData(
        name=found.name,
        document=found.document,
        metric=chosen,
        axes=found.axes,
        runs=tuple(_read(run, chosen, train_key) for run in current),
        keys=keys,
        train_key=train_key,
        retired=len(found.runs) - len(current),
    )


def _read(run: RecordedRun, metric: Metric | None, train_key: str | None) -> RunData:
    history = run.history
    points: list[Point] = []
    point = None
    curves: dict[str, list[Point]] = {}
    if metric is not None:
        points = numbers(history.rows, metric.name)
        point = value_at(points, metric.goal, metric.at)
        curves[metric.name] = points
    if train_key is not None:
        curves[train_key] = numbers(history.rows, train_key)
    last = value_at(points, "minimize", "last")
    reason = run.outcome.get("reason")
    succeeded = run.state.value == "succeeded"
    return RunData(
        id=run.id,
        name=run.name,
        cell=run.cell,
        seed=run.seed,
        config=run.config,
        state=run.state.value,
        attempts=run.attempts,
        reason=None if reason is None else str(reason),
        detail=_detail(run.outcome),
        wall_s=run.times["wall_s"],
        value=None if point is None else point.value,
        step=None if point is None else point.step,
        diverged=last is not None and not math.isfinite(last.value),
        unreadable=history.malformed,
        curves={key: found for key, found in curves.items() if found},
        log=() if succeeded else tuple(run.log_tail(LOG_LINES)),
        checkpoints=tuple(run.checkpoint_records()) if succeeded else (),
    )


def _detail(outcome: Mapping[str, Any]) -> str | None:
    parts = [str(outcome[key]) for key in ("detail", "signal") if outcome.get(key)]
    if outcome.get("code"):
        parts.append(f"exit code {outcome['code']}")
    return ", ".join(parts) or None


def _numeric_keys(runs: list[RecordedRun]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for run in runs:
        keys: set[str] = set()
        for row in run.history.rows:
            for key in row.keys() - keys:
                value = row[key]
                if isinstance(value, int | float) and not isinstance(value, bool):
                    keys.add(key)
        found.update(keys - {"step"})
    return dict(sorted(found.items()))


def _train_key(keys: Mapping[str, int], metric: Metric | None) -> str | None:
    """The curve that shows the training itself: the training counterpart of the metric
    (`test/nll`: `train/nll`, `train_mean_nll`), else the loss, else the reward."""
    leaf = metric.name.rpartition("/")[2] if metric is not None else ""
    own = metric.name if metric is not None else None
    candidates = (f"train/{leaf}", f"train_{leaf}", f"train_mean_{leaf}", f"train/mean_{leaf}")
    usual = ("train/loss", "train_loss", "train_mean_nll", "train/nll", "loss", "train/reward")
    rewards = ("env/all/reward/total", "reward")
    for key in (*(candidates if leaf else ()), *usual, *rewards):
        if key in keys and key != own:
            return key
    return None
