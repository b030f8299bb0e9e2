"""What is told of runs and sweeps, as `--json`, the registry and agents' tools have it."""

from typing import NotRequired, TypedDict

__all__ = ["AnswerRow", "ItemRow", "RunRecord", "SweepRecord", "Times"]


class Times(TypedDict):
    """When a run `started` and `ended` (UTC, ISO 8601), and the seconds that its attempts with an
    outcome took together; None where unknown."""

    started: str | None
    ended: str | None
    wall_s: float | None


class RunRecord(Times):
    """A run as plain values. `stage` and `parents` are of sweeps with stages, `backend` of those
    with several places. `metric` is the name of the metric, `value` what the run is judged by; both
    are left out where metrics were not to be read."""

    id: str
    sweep: str
    name: str
    cell: str
    seed: int | None
    state: str
    attempts: int
    reason: str | None
    retired: bool
    root: str
    stage: NotRequired[str]
    parents: NotRequired[list[str]]
    backend: NotRequired[str]
    metric: str | None
    value: float | None
    config: dict[str, object]


class SweepRecord(TypedDict):
    """A sweep as plain values. `states` counts the runs in each state that occurs."""

    sweep: str
    root: str
    created: str | None
    recipe: str
    runs: int
    states: dict[str, int]
    tags: list[str]
    starred: bool
    archived: bool


class AnswerRow(TypedDict):
    """An answer to an item of an evaluation. The score is None where nothing has judged, the step
    where the file has none."""

    task: str
    item: str
    sample: int
    score: float | None
    text: str
    prompt: str
    answer: str
    step: float | None
    cluster: str
    error: bool


class ItemRow(AnswerRow):
    """An answer, and whose it is."""

    run: str
    sweep: str
