"""Reads the terminal tasks of a run, for training and for evaluation."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sweeper.sandbox.tasks import Choice, Task, choice_of, read_all

from .service import RecipeError


class Tasks(NamedTuple):
    """The tasks for training, and the tasks for evaluation."""

    train: list[Task]
    test: list[Task]


def sources(values: Mapping[str, Any]) -> dict[str, tuple[str, Choice]]:
    """Return a dict whose keys are "train" and, if the run has test tasks, "test". Each value is a
    folder and the choice of its tasks. The dict is empty if `tasks` is not set."""
    if not values.get("tasks"):
        return {}
    choice, ids = choice_of(values), values.get("test_task_ids")
    splits = {"train": (str(values["tasks"]), choice)}
    if values.get("test_tasks"):
        splits["test"] = str(values["test_tasks"]), Choice(ids)
    elif ids is not None:
        splits["test"] = str(values["tasks"]), choice._replace(task_ids=ids)
    return splits


@cache
def _read(folder: str, choice: Choice) -> tuple[list[Task], tuple[str, ...]]:
    return read_all(folder, choice)


def mistakes(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in a run's tasks."""
    lines = [line for source in sources(values).values() for line in _read(*source)[1]]
    return list(dict.fromkeys(lines))


def older(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each task in the older format, `task.yaml`, which harbor cannot read."""
    tasks = [task for source in sources(values).values() for task in _read(*source)[0]]
    return [
        f"{task.folder}: harbor does not read task.yaml; `harbor task migrate` converts it"
        for task in tasks
        if task.schema_version == "task.yaml"
    ]


def read(values: Mapping[str, Any]) -> Tasks:
    """Return the tasks of a run. Raises RecipeError if a task has a mistake."""
    if lines := mistakes(values):
        more = f" (and {len(lines) - 1} more: sweeper doctor tasks {values['tasks']})"
        raise RecipeError(lines[0] + (more if len(lines) > 1 else ""))
    tasks = {split: _read(*source)[0] for split, source in sources(values).items()}
    return Tasks(tasks["train"], tasks.get("test", []))
