"""Checks a folder of tasks: reads each task, and then tries it. The reference solution must earn
the full reward, and doing nothing must earn less."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sweeper.fields.nodes import Problems
from sweeper.sandbox import Died, Environment, open_environment
from sweeper.sandbox.tasks.choosing import ALL, Choice
from sweeper.sandbox.tasks.documents import Task
from sweeper.sandbox.tasks.reading import read_tasks
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

_SOLVED = 1.0


class Tried(NamedTuple):
    """A trial of a task: the reward of its solution, and the reward of doing nothing. A reward is
    None if the trial failed, or if the verifier gave none."""

    task: Task
    solved: float | None
    empty: float | None


class Checked(NamedTuple):
    """The result of a check: the tasks without mistakes, a line for each mistake, and the
    trials."""

    tasks: tuple[Task, ...]
    mistakes: tuple[str, ...]
    tried: tuple[Tried, ...] = ()


def check_tasks(
    path: str,
    kind: str | None,
    *,
    unsafe: bool = False,
    at_once: int = 4,
    choice: Choice = ALL,
) -> Checked:
    """Check the chosen tasks at a path. With a `kind` of environment, also run the tasks that have
    no mistakes (`try_task`). Raises `UsageError` if there is no task, and `NotThere` if this
    machine does not support environments of this kind."""
    problems = Problems()
    tasks = read_tasks(path, problems, choice)
    mistakes = problems.error().problems if problems else ()
    if kind is None:
        return Checked(tuple(tasks), mistakes)
    chosen = kind

    def open_one(task: Task) -> Environment:
        return open_environment(chosen, made_of(task), unsafe=unsafe)

    def tried(task: Task) -> tuple[Tried, list[str]]:
        return try_task(task, open_one)

    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(tried, tasks))
    lines_of_tasks = [line for _, lines in results for line in lines]
    trials = tuple(trial for trial, _ in results)
    return Checked(tuple(tasks), (*mistakes, *lines_of_tasks), trials)


def try_task(task: Task, open_one: Callable[[Task], Environment]) -> tuple[Tried, list[str]]:
    """Run a task twice: with its reference solution, and without any work. Return both rewards, and
    a line for each error. Raises `NotThere` if this machine cannot make the environment."""
    lines: list[str] = []
    rewards: list[float | None] = []
    for done in (True, False):
        try:
            rewards.append(_attempt(task, open_one, lines, done=done))
        except (TaskFailed, OSError) as error:
            text = str(error)
            lines.append(text if text.startswith(task.folder) else f"{task.folder}: {text}")
        except Died as error:
            lines.append(f"{task.folder}: the environment ended by itself: {error}")
        if len(rewards) <= int(not done):
            break
    rewards += [None] * (2 - len(rewards))
    solved, empty = rewards
    if solved is not None and solved < _SOLVED and not lines:
        where = ", ".join(step.solve_script for step in task.steps)
        lines.append(f"{where}: the reference solution earns {solved:g}, not 1")
    if empty is not None and empty >= _SOLVED:
        where = task.steps[-1].verifier.script
        lines.append(f"{where}: doing nothing earns {empty:g}, not less than 1")
    return Tried(task, solved, empty), lines


def _attempt(
    task: Task, open_one: Callable[[Task], Environment], lines: list[str], *, done: bool
) -> float | None:
    """Run a task, and return its reward. The reference solution is executed only if `done` is set.
    If the verifier gives no reward, add a line with the reason to `lines` and return None."""
    place = open_one(task)
    judged: list[Judged] = []
    try:
        place.start()
        set_up(place, task)
        for step in task.steps:
            begin_step(place, task, step)
            if done:
                result = solve(place, task, step)
                if result.code != 0:
                    last = result.last_line[:200]
                    why = result.ended or f"exit code {result.code}"
                    lines.append(f"{step.solve_script}: the solution fails ({why}): {last}")
            judgement = verify(place, task, step)
            if judgement.wrong:
                line = f"{step.verifier.script}: {judgement.wrong}"
                if line not in lines:
                    lines.append(line)
                return None
            judged.append(judgement)
            if not judgement.meets(step.min_reward):
                break
    finally:
        place.stop()
    return total(task, judged)


def notes_of(task: Task, kind: str) -> list[str]:
    """Return a note for each feature of a task that this kind of environment does not support."""
    place, notes = task.environment, list[str]()
    built_in = kind in ("bubblewrap", "process")
    if kind != "process" and not kind.startswith("harbor") and place.network_mode != "no-network":
        notes.append(
            f"{task.folder}: the task needs a network ({place.network_mode}), which is "
            f"not available"
        )
    if place.gpus:
        notes.append(f"{task.folder}: the task needs {place.gpus} GPUs, which are not available")
    if place.docker_image and place.rootfs is None and built_in:
        notes.append(f"{task.folder}: the image {place.docker_image} is not used: the task gets "
            f"the programs of this machine")  # fmt: skip
    if place.mcp_servers:
        notes.append(f"{task.folder}: the task's MCP servers are not started")
    users = {step.user for step in task.steps} | {step.verifier.user for step in task.steps}
    if users - {None, "root", 0}:
        notes.append(
            f"{task.folder}: everything runs as root, not as the users that the task names"
        )
    return notes
