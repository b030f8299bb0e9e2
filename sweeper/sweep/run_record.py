"""Records of runs and sweeps, as returned by `--json`, the registry and the tools of agents."""

from typing import NotRequired, TypedDict

RUN_KEY = ("run", "sweep", "root")
"""The columns that identify a run in every table. The id is not enough, since a configuration
has the same id in each sweep that contains it."""


class Times(TypedDict):
    """The times of a run. `started` is when a worker claimed the run's first attempt, and `ended`
    is when the latest attempt ended (both UTC, ISO 8601). `wall_s` is the sum of the durations of
    all attempts with an outcome, in seconds. Unknown values are None."""

    started: str | None
    ended: str | None
    wall_s: float | None


class RunRecord(Times):
    """A run as plain values. `stage` and `parents` exist only in sweeps with stages, `backend` only
    in sweeps with several backends. `metric` is the metric's name, and `value` is the run's value
    of the metric; both are None if metrics were not read. `code` is a short name of the code that
    the run executed. `commit` and `launched` are the git commit and the time of the launch that
    provided this code."""

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
    code: str | None
    commit: str | None
    launched: str | None
    stage: NotRequired[str]
    parents: NotRequired[list[str]]
    backend: NotRequired[str]
    metric: str | None
    value: float | None
    config: dict[str, object]


class SweepRecord(TypedDict):
    """A sweep as plain values. `states` maps the name of a state to the number of runs in it."""

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
    """An answer to an item of an evaluation. `score` is None if the answer was not judged. `step`
    is None if the recorded answers have no steps."""

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
    """An answer, and the columns that identify the answer's run (`RUN_KEY`)."""

    run: str
    sweep: str
    root: str
