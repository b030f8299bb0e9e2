"""Runs a task: prepares its environment, and runs the reference solution and the verifier."""

import json
import math
import os
import re
import shlex
import time
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import NamedTuple, cast

from sweeper.sandbox import Environment, Limits, Made, Result
from sweeper.sandbox.tasks.dockerfile import command_of, pairs_of, sources_of
from sweeper.sandbox.tasks.documents import (
    VARIABLE,
    Dockerfile,
    Healthcheck,
    Instruction,
    Step,
    Task,
    TaskEnvironment,
)

_LARGEST = 256 << 20
_MAX_OUTPUT = 16_384
_WORKDIR = "/app"
_SOLVE_SECONDS = 600.0


_OLDER = """#!/bin/bash
export TEST_DIR="${SWEEPER_TASK_ROOT:-}/tests"
bash "$TEST_DIR/run-tests.sh"
code=$?
[ $code = 0 ] && earned=1 || earned=0
echo $earned >"${SWEEPER_TASK_ROOT:-}/logs/verifier/reward.txt"
exit $code
"""
"""The verifier's script for a task in the older format."""


class TaskFailed(Exception):
    """A task has an error that the agent has not caused. The message says where the error is."""


class Judged(NamedTuple):
    """A verifier's result: the rewards by name, and the verifier's output. If there are no rewards,
    `wrong` gives the reason."""

    rewards: Mapping[str, float]
    output: str
    wrong: str = ""

    @property
    def reward(self) -> float:
        """The reward as one number: the reward called `reward`, else the mean of all rewards; 0 if
        there are no rewards."""
        if not self.rewards or "reward" in self.rewards:
            return self.rewards.get("reward", 0.0)
        return sum(self.rewards.values()) / len(self.rewards)

    def meets(self, minimum: float | Mapping[str, float] | None) -> bool:
        """Return whether the rewards reach the `minimum` of a step (None: always)."""
        if minimum is None:
            return True
        wanted = minimum if isinstance(minimum, Mapping) else {"reward": minimum}
        if not isinstance(minimum, Mapping) and "reward" not in self.rewards:
            return bool(self.rewards) and self.reward >= wanted["reward"]
        return all(self.rewards.get(key, -math.inf) >= value for key, value in wanted.items())


def total(task: Task, judged: list[Judged]) -> float:
    """Return the reward of a whole task from the results of its steps. A step that was not reached
    counts as 0."""
    if task.reward_strategy == "final" and len(judged) == len(task.steps):
        return judged[-1].reward
    if task.reward_strategy == "final":
        return 0.0
    return sum(result.reward for result in judged) / len(task.steps)


def made_of(task: Task, limits: Limits | None = None) -> Made:
    """Return the description of a task's environment. `limits` has defaults for limits that the
    task does not set."""
    limits, place = limits or Limits(), task.environment
    variables, workdir = dict[str, str](), _WORKDIR
    for instruction in place.dockerfile.instructions if place.dockerfile else ():
        if instruction.name in ("ENV", "ARG"):
            variables |= {k: _expanded(v, variables) for k, v in pairs_of(instruction).items()}
        elif instruction.name == "WORKDIR":
            workdir = os.path.normpath(
                os.path.join(workdir, _expanded(instruction.text, variables))
            )
    variables |= resolved(place.env)
    return Made(
        root=place.rootfs,
        workdir=place.workdir or workdir,
        env=variables,
        limits=Limits(
            memory_mb=place.memory_mb or limits.memory_mb,
            storage_mb=place.storage_mb or limits.storage_mb,
            processes=limits.processes,
            files=limits.files,
            cpus=place.cpus or limits.cpus,
        ),
        folder=task.folder,
        context=place.folder,
        image=place.docker_image,
        build_seconds=place.build_timeout_sec,
    )


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace each `$NAME` in a text by its value in `variables`, and remove enclosing quotes. PATH
    is Docker's default if it is not in `variables`; other missing variables are empty."""
    values = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    return re.sub(
        r"\$(?:\{(\w+)\}|(\w+))", lambda match: values.get(match[1] or match[2], ""), text
    ).strip("\"'")


def resolved(variables: Mapping[str, str]) -> dict[str, str]:
    """Replace `${NAME}` and `${NAME:-default}` in values by variables of this machine."""

    def value(match: re.Match[str]) -> str:
        return os.environ.get(match[1], (match[2] or "").removeprefix(":-"))

    return {name: VARIABLE.sub(value, text) for name, text in variables.items()}


def set_up(environment: Environment, task: Task) -> None:
    """Prepare a started environment: execute the Dockerfile, and wait for the health check. The
    Dockerfile is skipped if there is a prepared root, or if starting the environment has already
    executed it. Raises `TaskFailed` if a command fails, `Died` if the environment ends."""
    place = task.environment
    if place.dockerfile is not None and place.rootfs is None and not environment.built:
        _execute(environment, place, place.dockerfile)
    workdir = _q(environment, made_of(task).workdir)
    _must(environment, f"mkdir -p {workdir} && cd {workdir}", 30, task.folder)
    if place.healthcheck is not None:
        _wait_healthy(environment, place.healthcheck, task.folder)


def _execute(environment: Environment, place: TaskEnvironment, dockerfile: Dockerfile) -> None:
    deadline, at = time.monotonic() + place.build_timeout_sec, _WORKDIR
    for instruction in dockerfile.instructions:
        where = f"{dockerfile.path}:{instruction.line}"
        if instruction.name == "WORKDIR":
            at = os.path.normpath(os.path.join(at, instruction.text.strip()))
            folder = _q(environment, at)
            _must(environment, f"mkdir -p {folder}; cd {folder}", 30, where)
        elif instruction.name in ("COPY", "ADD"):
            _copy(environment, place.folder, instruction, at, where)
        elif instruction.name == "RUN":
            remaining = max(deadline - time.monotonic(), 0.1)
            _must(environment, f"( {command_of(instruction)}\n)", remaining, where)


def begin_step(environment: Environment, task: Task, step: Step) -> None:
    """Prepare a step: copy its files into the working folder, run its setup script, and wait for
    its health check."""
    if step.workdir is not None:
        workdir = made_of(task).workdir
        environment.put(files_of(step.workdir, workdir, step.workdir))
        setup = os.path.join(workdir, "setup.sh")
        if os.path.exists(os.path.join(step.workdir, "setup.sh")):
            _must(environment, f"bash {_q(environment, setup)}", 600, step.workdir)
    if step.healthcheck is not None:
        _wait_healthy(environment, step.healthcheck, task.folder)


def solve(environment: Environment, task: Task, step: Step) -> Result:
    """Execute the reference solution."""
    if step.solution is None:
        raise TaskFailed(f"{task.folder} has no solution")
    if os.path.isfile(step.solution):
        environment.put({"/solution/solve.sh": _read(step.solution, task.folder)})
    else:
        environment.put(files_of(step.solution, "/solution", step.solution))
    command = _script_command(environment, "/solution/solve.sh", task, resolved(task.solution_env))
    return environment.exec(command, step.timeout_sec or _SOLVE_SECONDS, _MAX_OUTPUT)


def verify(environment: Environment, task: Task, step: Step) -> Judged:
    """End all processes in the environment, empty the verifier's folders, run the verifier, and
    return its result. Raises `TaskFailed` if the verifier's files cannot be read, `Died` if the
    environment ends."""
    environment.reset()
    verifier = step.verifier
    places = " ".join(_q(environment, path) for path in ("/tests", "/logs/verifier"))
    environment.exec(f"rm -rf {places}; mkdir -p {places}", 60)
    files: dict[str, bytes] = {}
    for folder in verifier.folders:
        files |= files_of(folder, "/tests", folder)
    if verifier.older is not None:
        files["/tests/run-tests.sh"] = _read(verifier.older, task.folder)
        files["/tests/test.sh"] = _OLDER.encode()
    try:
        environment.put(files)
    except OSError as error:
        return Judged({}, "", str(error))
    for command in verifier.collect:
        environment.exec(command, 60)
    command = _script_command(environment, "/tests/test.sh", task, resolved(verifier.env))
    result = environment.exec(command, verifier.timeout_sec, _MAX_OUTPUT)
    if result.ended:
        why = {"timeout": f"the verifier took longer than {verifier.timeout_sec:g} s"}
        return Judged(
            {}, result.text, why.get(result.ended, f"the verifier was ended: {result.ended}")
        )
    return _rewards(environment, result.text)


def _rewards(environment: Environment, output: str) -> Judged:
    """Read the rewards from the verifier's `reward.json`, or else from its `reward.txt`."""
    try:
        data = environment.get("/logs/verifier/reward.json")
        if data is not None:
            return Judged(_named(data), output)
        data = environment.get("/logs/verifier/reward.txt")
        if data is not None:
            return Judged({"reward": _finite("reward.txt", data.decode().strip())}, output)
    except ValueError as error:
        return Judged({}, output, " ".join(str(error).split()))
    return Judged({}, output, "the verifier wrote no /logs/verifier/reward.txt or reward.json")


def _named(data: bytes) -> dict[str, float]:
    """Parse the content of `reward.json`. Raises ValueError."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("reward.json is not JSON") from None
    named = cast("dict[str, object]", value) if isinstance(value, dict) else {"reward": value}
    if not named:
        raise ValueError("reward.json is empty")
    return {
        key: _finite(f"reward.json: {key[:40]}", None if isinstance(value, str) else value)
        for key, value in named.items()
    }


def _finite(noun: str, value: object) -> float:
    try:
        if not isinstance(value, str | int | float):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{noun} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{noun} is not a finite number")
    return number


def _script_command(
    environment: Environment, path: str, task: Task, variables: Mapping[str, str]
) -> str:
    """Return a command that executes a script in the working folder."""
    assignments = " ".join(shlex.quote(f"{key}={value}") for key, value in variables.items())
    script, at = _q(environment, path), _q(environment, made_of(task).workdir)
    return f"cd {at}; chmod +x {script}; env {assignments} {script}"


def _q(environment: Environment, path: str) -> str:
    return shlex.quote(environment.root + path)


def _must(environment: Environment, command: str, seconds: float, where: str) -> None:
    result = environment.exec(command, seconds, _MAX_OUTPUT)
    if result.code != 0:
        last = result.last_line[:200]
        fault = {"timeout": f"takes longer than {seconds:.0f} s"}.get(
            result.ended, f"fails ({result.ended or f'exit code {result.code}'})"
        )
        raise TaskFailed(f"{where}: {fault}{': ' if last else ''}{last}")


def _wait_healthy(environment: Environment, check: Healthcheck, where: str) -> None:
    begun, failed = time.monotonic(), 0
    while True:
        result = environment.exec(f"( {check.command}\n)", check.timeout_sec)
        if result.code == 0:
            return
        starting = time.monotonic() - begun < check.start_period_sec
        failed += not starting
        if failed >= check.retries:
            raise TaskFailed(f"{where}: the health check fails: {check.command[:100]}")
        time.sleep(check.start_interval_sec if starting else check.interval_sec)


def _copy(
    environment: Environment, folder: str, instruction: Instruction, at: str, where: str
) -> None:
    """Execute a COPY or ADD. If a source is a folder, its contents are copied."""
    sources, target, local = sources_of(instruction)
    if not local:
        raise TaskFailed(
            f"{where}: without Docker, {instruction.name} can copy only files of the task"
        )
    into = os.path.normpath(os.path.join(at, target))
    below = target.endswith("/") or len(sources) > 1
    files: dict[str, bytes] = {}
    for source in sources:
        for path in _matching(folder, source.lstrip("/")):
            if os.path.isdir(path):
                files |= files_of(path, into, where)
            else:
                place = os.path.join(into, os.path.basename(path)) if below else into
                files[place] = _read(path, where)
    environment.put(files)


def _matching(folder: str, pattern: str) -> list[str]:
    path = os.path.normpath(os.path.join(folder, pattern))
    if os.path.lexists(path):
        return [path]
    above, last = os.path.split(path)
    names = sorted(os.listdir(above)) if os.path.isdir(above) else []
    return [os.path.join(above, name) for name in names if fnmatch(name, last)]


def files_of(folder: str, target: str, where: str) -> dict[str, bytes]:
    """Return the contents of a folder's files by their paths below `target`, a folder in an
    environment. Raises `TaskFailed` if a file cannot be read, or if the files are too large.
    `where` is the beginning of the error's message."""
    files: dict[str, bytes] = {}
    size = 0
    for at, _, names in os.walk(folder):
        below = os.path.relpath(at, folder)
        for name in names:
            path = os.path.join(at, name)
            data = _read(path, where)
            size += len(data)
            if size > _LARGEST:
                raise TaskFailed(f"{where}: more than {_LARGEST >> 20} MB to copy")
            files[os.path.normpath(os.path.join(target, below, name))] = data
    return files


def _read(path: str, where: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TaskFailed(f"{where}: {path} cannot be read: {error.strerror}") from None
