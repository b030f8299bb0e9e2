"""The metric by which a sweep is judged: the grid's metric, or another metric that the user
names. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from sweeper.analysis.reading.keys import goal_of
from sweeper.errors import UsageError
from sweeper.metrics.objective import sign_of
from sweeper.sweep.metric import is_at, value_text


@dataclass(frozen=True)
class Metric:
    """The metric by which cells are compared. `at` says which recorded value a run is judged by.
    `noise`, `failed`, `by` and `relevant` are settings of the grid (see `sweeper.sweep.metric`).
    `guessed` is set if the goal was derived from the name."""

    name: str
    goal: str  # "minimize" or "maximize"
    at: str = "last"  # or "best", "mean_of_last=5", or "auto" until that is settled
    guessed: bool = field(default=False, compare=False)
    noise: str = field(default="auto", compare=False)
    failed: str = field(default="bound", compare=False)
    by: str | None = field(default=None, compare=False)
    relevant: float | None = field(default=None, compare=False)

    @property
    def sign(self) -> float:
        """The factor that makes smaller values better: 1 or -1."""
        return sign_of(self.goal)


def find_metric(
    planned: Mapping[str, str] | None, name: str | None, goal: str | None, at: str | None = None
) -> Metric | None:
    """Return the metric `name`, or the sweep's own metric if `name` is None. Return None if `name`
    is None and the sweep has no metric. Raises `UsageError` for an invalid `goal` or `at`, and if
    `goal` is None and the name implies no goal."""
    if at is not None and not is_at(at):
        raise UsageError(f"at={at!r} is not one of auto, last, best, mean_of_last=5")
    if goal not in (None, "minimize", "maximize"):
        raise UsageError(f"goal={goal!r} is not minimize or maximize")
    if name is None or (planned is not None and planned["name"] == name):
        if planned is None:
            return None
        usual = planned.get("goal", "minimize"), planned.get("at", "last")
        rules = planned.get("noise", "auto"), planned.get("failed", "bound")
        metric = Metric(planned["name"], goal or usual[0], at or usual[1])
        metric = replace(metric, noise=rules[0], failed=rules[1], by=planned.get("by"))
        return replace(metric, relevant=cast("float | None", planned.get("relevant")))
    metric = goal or goal_of(name)
    if metric is None:
        raise UsageError(
            f"the name of metric {name!r} implies no goal: choose --goal minimize or "
            "--goal maximize"
        )
    return Metric(name, metric, at or "auto", guessed=goal is None)


def differently(metrics: Sequence[Metric | None]) -> str | None:
    """Return None if all metrics are equal in name, goal and `at`. Otherwise return a message that
    lists the differences and the options of `sweeper analyze` that remove them."""
    if all(metric == metrics[0] for metric in metrics):
        return None
    texts = dict.fromkeys(
        f"{value_text(metric.at)} of {metric.name}, {metric.goal}" if metric else "no metric"
        for metric in metrics
    )
    given = [metric for metric in metrics if metric is not None]
    ways = {
        "--metric": {metric.name for metric in given},
        "--goal": {metric.goal for metric in given},
        "--at": {metric.at for metric in given},
    }
    flags = [flag for flag, values in ways.items() if len(values) > 1]
    if len(given) < len(metrics):
        flags = ["--metric", *(flag for flag in flags if flag != "--metric")]
    return f"not judged in the same way ({'; '.join(texts)}): choose {' and '.join(flags)}"
