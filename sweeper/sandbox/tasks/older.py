"""Reads tasks in the older format of Terminal-Bench: `task.yaml`, a Dockerfile next to it,
`run-tests.sh` with the folder `tests`, and `solution.sh`. As in Harbor's migration, the reward is 1
if `run-tests.sh` has exit code 0, else 0."""

import os
from typing import cast

from sweeper.fields.nodes import Node, Place, Problems, plain, read_yaml
from sweeper.sandbox.tasks.dockerfile import read_dockerfile
from sweeper.sandbox.tasks.documents import Dockerfile, Step, Task, TaskEnvironment, Verifier

FILE = "task.yaml"
SCHEMA = "task.yaml"
"""The `schema_version` of a task in the older format."""
_AGENT_SECONDS, _TEST_SECONDS = 360.0, 60.0
_LARGEST = 1 << 20


def is_older(folder: str) -> bool:
    """Return whether a folder has a task in the older format, and none in the current format."""
    older, current = (os.path.isfile(os.path.join(folder, name)) for name in (FILE, "task.toml"))
    return older and not current


def read_older(folder: str, problems: Problems) -> Task | None:
    """Read a task in the older format. Return None, and record why, if the task has mistakes."""
    before, path = len(problems), os.path.join(folder, FILE)
    node = _yaml(path, problems)
    values = plain(node) if node is not None else None
    if not isinstance(values, dict):
        if len(problems) == before:
            problems.add(Place(path, 1, 1), "is not a mapping with an instruction")
        return None
    fields = cast("dict[str, object]", values)
    instruction = fields.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        problems.add(Place(path, 1, 1), "needs an instruction")
    seconds = [
        _seconds(fields, key, default, path, problems)
        for key, default in (
            ("max_agent_timeout_sec", _AGENT_SECONDS),
            ("max_test_timeout_sec", _TEST_SECONDS),
        )
    ]
    script, solution = (os.path.join(folder, name) for name in ("run-tests.sh", "solution.sh"))
    for file, effect in ((script, "the task cannot be judged"), (solution, "the task has no "
        "reference solution (solution.yaml is not supported)")):  # fmt: skip
        if not os.path.isfile(file):
            problems.add(Place(file), f"no such file: {effect}")
    context = _context(folder, problems)
    dockerfile = _dockerfile(context, problems)
    if len(problems) > before:
        return None
    tests = os.path.join(folder, "tests")
    verifier = Verifier(
        folders=(tests,) if os.path.isdir(tests) else (), timeout_sec=seconds[1], older=script
    )
    step = Step("", str(instruction).strip(), verifier, solution, seconds[0])
    return Task(
        folder=folder,
        name=os.path.basename(os.path.normpath(folder)),
        steps=(step,),
        environment=TaskEnvironment(context, dockerfile),
        schema_version=SCHEMA,
        metadata={key: value for key, value in fields.items() if key != "instruction"},
    )


def _yaml(path: str, problems: Problems) -> Node | None:
    try:
        with open(path, encoding="utf-8") as file:
            return read_yaml(file.read(_LARGEST), path, problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.add(Place(path), f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None


def _seconds(
    fields: dict[str, object], key: str, default: float, path: str, problems: Problems
) -> float:
    value = fields.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e7:
        return float(value)
    problems.add(Place(path, 1, 1), f"{key} is not a number of seconds")
    return default


def _context(folder: str, problems: Problems) -> str:
    """Return the folder of the Dockerfile: the build context in `docker-compose.yaml`, else the
    task's folder. Record mistakes in `docker-compose.yaml`, for example several services."""
    path = os.path.join(folder, "docker-compose.yaml")
    if not os.path.isfile(path):
        return folder
    node = _yaml(path, problems)
    services = node.entries.get("services") if node is not None and node.entries else None
    named = list((services[1].entries or {}).values()) if services else []
    if len(named) > 1:
        problems.add(Place(path), "has several services, which is not supported")
    build = (named[0][1].entries or {}).get("build") if named else None
    value = plain(build[1]) if build else "."
    at = cast("dict[str, object]", value).get("context", ".") if isinstance(value, dict) else value
    context = os.path.normpath(os.path.join(folder, str(at)))
    if os.path.commonpath([os.path.abspath(folder), os.path.abspath(context)]) != os.path.abspath(
        folder
    ):
        problems.add(Place(path), f"the build context {at} is outside the task's folder")
    return context


def _dockerfile(context: str, problems: Problems) -> Dockerfile | None:
    path = os.path.join(context, "Dockerfile")
    try:
        with open(path, encoding="utf-8") as file:
            return read_dockerfile(path, file.read(_LARGEST), problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.add(Place(path), f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
