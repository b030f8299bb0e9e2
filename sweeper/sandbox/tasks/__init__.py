"""Tasks for a model that works in a shell, in Harbor's format: one folder per task, with the
instruction, the environment and the verifier."""

from sweeper.sandbox.tasks.choosing import Choice, choice_of
from sweeper.sandbox.tasks.documents import Step, Task
from sweeper.sandbox.tasks.reading import read_all, read_tasks
from sweeper.sandbox.tasks.running import (
    Judged,
    TaskFailed,
    begin_step,
    made_of,
    set_up,
    solve,
    total,
    verify,
)

__all__ = [
    "Choice",
    "Judged",
    "Step",
    "Task",
    "TaskFailed",
    "begin_step",
    "choice_of",
    "made_of",
    "read_all",
    "read_tasks",
    "set_up",
    "solve",
    "total",
    "verify",
]
