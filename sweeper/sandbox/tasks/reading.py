"""Reads tasks from folders, and records each mistake with its place. Executes nothing."""

import os
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

from sweeper.errors import UsageError
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Reading
from sweeper.sandbox.tasks.choosing import ALL, Choice, folders_of
from sweeper.sandbox.tasks.dockerfile import read_dockerfile
from sweeper.sandbox.tasks.documents import (
    TASK,
    VARIABLE,
    AgentTable,
    Dockerfile,
    Healthcheck,
    HealthcheckTable,
    Step,
    StepTable,
    Task,
    TaskEnvironment,
    TaskTable,
    Verifier,
    VerifierTable,
)
from sweeper.sandbox.tasks.older import is_older, read_older

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_TOML_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_PART = re.compile(_TOML_NAME)
_KEY = re.compile(rf"\s*({_TOML_NAME}(?:\s*\.\s*{_TOML_NAME})*)\s*=")
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)\Z")

Path = tuple[str | int, ...]


def read_toml(text: str, source: str, problems: Problems) -> Node | None:
    """Parse a TOML document. Return None, and record why, if it is invalid."""
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        match = _AT.match(str(error))
        line, column = (match[2], match[3]) if match else (None, None)
        place = Place(source, int(line or text.count("\n") + 1), int(column or 1))
        problems.add(place, f"not TOML: {match[1] if match else error}")
        return None
    return _Nodes(source, _lines(text)).node(value, (), 1)


class _Nodes:
    """A converter of TOML values to nodes with line numbers. A value whose line is unknown gets the
    line of its table or list."""

    def __init__(self, source: str, lines: dict[Path, int]) -> None:
        self._source, self._lines = source, lines

    def node(self, value: object, path: Path, above: int) -> Node:
        line = self._lines.get(path, above)
        place = Place(self._source, line, 1)
        if isinstance(value, dict):
            entries: dict[str, tuple[Place, Node]] = {}
            for key, item in cast("dict[str, object]", value).items():
                below = self.node(item, (*path, key), line)
                entries[key] = (below.place, below)
            return Node(entries, place)
        if isinstance(value, list):
            items = cast("list[object]", value)
            return Node([self.node(item, (*path, n), line) for n, item in enumerate(items)], place)
        return Node(value, place)


def _lines(text: str) -> dict[Path, int]:
    line_of: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if inside:
            inside = "" if line.count(inside) % 2 else inside
            continue
        if header := _HEADER.match(line):
            table = _resolved(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                line_of.setdefault(table, number)
                table = (*table, counts[table])
            line_of.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = (*path, part)
                line_of.setdefault(path, number)
            inside = next((q for q in ('"""', "'''") if line.count(q) % 2), "")
    return line_of


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


def _resolved(parts: list[str], counts: dict[Path, int]) -> Path:
    """Return the path of a table from the parts of its header. A header below a list of tables
    refers to the last table in the list."""
    path: Path = ()
    for number, part in enumerate(parts):
        path = (*path, part)
        if path in counts and number < len(parts) - 1:
            path = (*path, counts[path])
    return path


_LARGEST = 1 << 20
_MOST = 100_000
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_ODD_STEP = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')


def read_all(path: str, choice: Choice = ALL) -> tuple[list[Task], tuple[str, ...]]:
    """Return the chosen tasks at a path, and a line for each mistake."""
    problems = Problems()
    try:
        tasks = read_tasks(path, problems, choice)
    except UsageError as error:
        return [], (str(error),)
    return tasks, problems.error().problems if problems else ()


def read_tasks(path: str, problems: Problems, choice: Choice = ALL) -> list[Task]:
    """Return the chosen tasks at a path. Leave out tasks with mistakes, and record the mistakes."""
    tasks: list[Task] = []
    for folder in folders_of(path, choice):
        task = read_task(folder, problems)
        if task is None:
            continue
        if any(task.name == other.name for other in tasks):
            place = Place(os.path.join(folder, "task.toml"), 1, 1)
            problems.add(place, f"another task is also named {task.name!r}")
        tasks.append(task)
    return tasks


def read_task(folder: str, problems: Problems) -> Task | None:
    """Read a task. Return None, and record why, if the task has mistakes."""
    if is_older(folder):
        _check_links(folder, problems)
        return read_older(folder, problems)
    before = len(problems)
    path = os.path.join(folder, "task.toml")
    text = _text(path, problems)
    node = read_toml(text, path, problems) if text is not None else None
    if node is None:
        return None
    reading = TASK.read(node, "", problems)
    values = cast(TaskTable, reading.values)
    _check_links(folder, problems)
    environment = _environment(folder, values, reading)
    steps = _steps(folder, values, reading)
    about = values.get("task") or {}
    name = str(about.get("name") or "") or os.path.basename(os.path.normpath(folder))
    if about.get("name") and not _NAME.fullmatch(name):
        reading.problem("task", f"task.name: {name!r} is not org/name, of letters, digits, . _ -")
    if len(problems) > before:
        return None
    return Task(
        folder=folder,
        name=name,
        steps=steps,
        environment=environment,
        schema_version=values.get("schema_version", "1.4"),
        description=about.get("description", ""),
        metadata=values.get("metadata", {}),
        solution_env=_solution_variables(values),
        reward_strategy=values.get("multi_step_reward_strategy", "mean"),
    )


def _text(path: str, problems: Problems, noun: str = "") -> str | None:
    """Read a text file. Return None, and record why, if that fails."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            problems.add(Place(path), f"has more than {_LARGEST >> 20} MB")
            return None
        return data.decode()
    except FileNotFoundError:
        problems.add(Place(path), f"no such file{noun}")
    except OSError as error:
        problems.add(Place(path), f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.add(Place(path, line, 1), "is not UTF-8 text")
    return None


def _check_links(folder: str, problems: Problems) -> None:
    """Record a mistake for each link that leads out of a task's folder. A copy of the folder would
    follow such links."""
    real, seen = os.path.realpath(folder), 0
    for at, folders, files in os.walk(folder):
        if (
            os.path.basename(at) == "rootfs"
            and os.path.basename(os.path.dirname(at)) == "environment"
        ):
            folders.clear()
            continue
        for name in (*folders, *files):
            path = os.path.join(at, name)
            seen += 1
            if os.path.islink(path) and not os.path.realpath(path).startswith(real + os.sep):
                problems.add(Place(path), "is a link to a path outside the task's folder")
        if seen > _MOST:
            problems.add(Place(folder), f"has more than {_MOST} files")
            return


def _solution_variables(values: TaskTable) -> dict[str, str]:
    return dict((values.get("solution") or {}).get("env") or {})


def _environment(folder: str, values: TaskTable, reading: Reading) -> TaskEnvironment:
    table: dict[str, Any] = dict(values.get("environment") or {})
    environment_folder = os.path.join(folder, "environment")
    rootfs = os.path.join(environment_folder, "rootfs")
    prepared = rootfs if os.path.isdir(rootfs) else None
    dockerfile = _dockerfile(
        environment_folder, reading.problems, needed=not (prepared or "docker_image" in table)
    )
    _older(table, reading)
    hosts: list[str] | None = table.get("allowed_hosts")
    if hosts is not None and table.get("network_mode", "public") != "allowlist":
        message = "environment.allowed_hosts is only for network_mode = 'allowlist'"
        reading.problem("environment", message)
    if str(table.get("os", "linux")).lower() != "linux":
        reading.problem("environment", f"environment.os: {table['os']} is not supported")
    for key in ("gpu_types", "tpu", "skills_dir", "os"):
        table.pop(key, None)
    _check_variables(table.get("env") or {}, "environment", reading)
    servers: list[Mapping[str, object]] = table.pop("mcp_servers", [])
    table.pop("allowed_hosts", None)
    return TaskEnvironment(
        folder=environment_folder,
        dockerfile=dockerfile,
        rootfs=prepared,
        healthcheck=_healthcheck(table.pop("healthcheck", None)),
        allowed_hosts=tuple(hosts or ()),
        mcp_servers=tuple(servers),
        **table,
    )


def _dockerfile(environment_folder: str, problems: Problems, *, needed: bool) -> Dockerfile | None:
    path, compose = (
        os.path.join(environment_folder, "Dockerfile"),
        os.path.join(environment_folder, "docker-compose.yaml"),
    )
    if os.path.exists(compose):
        problems.add(Place(compose), "needs Docker Compose, which is not supported")
    elif os.path.exists(path):
        text = _text(path, problems)
        return read_dockerfile(path, text, problems) if text is not None else None
    elif needed:
        message = "no such file, no docker_image, and no prepared root (environment/rootfs)"
        problems.add(Place(path), message)
    return None


def _older(table: dict[str, object], reading: Reading) -> None:
    """Replace the outdated keys of the table `environment` by the current keys."""
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
        size = table.pop(old, None)
        if size is not None and table.setdefault(new, size) != size:
            reading.problem(
                "environment", f"environment.{old} and environment.{new} have different values"
            )
    internet = table.pop("allow_internet", None)
    if internet is not None and "network_mode" not in table:
        table["network_mode"] = "public" if internet else "no-network"


def _healthcheck(table: HealthcheckTable | None) -> Healthcheck | None:
    return None if table is None or "command" not in table else Healthcheck(**table)


def _check_variables(variables: Mapping[str, str], key: str, reading: Reading) -> None:
    """Record a mistake for each environment variable that one of the `variables` refers to without
    a default and that is not set on this machine."""
    for name, value in variables.items():
        for wanted, default in VARIABLE.findall(value):
            if not default and wanted not in os.environ:
                message = (
                    f"{key}.env.{name}: the variable {wanted} is not set here, and has no default"
                )
                reading.problem(key, message)


def _steps(folder: str, values: TaskTable, reading: Reading) -> tuple[Step, ...]:
    tables = values.get("steps") or []
    _check_variables(_solution_variables(values), "solution", reading)
    if not tables:
        return _step(folder, "", values, {}, reading)
    steps: list[Step] = []
    names: set[str] = set()
    for number, table in enumerate(tables):
        name = str(table.get("name", ""))
        items = reading.entries["steps"][1].items
        place = items[number].place if items else reading.place
        folded = unicodedata.normalize("NFC", name).casefold()
        if not name.strip() or _ODD_STEP.search(name) or name.endswith((".", " ")):
            reading.problems.add(
                place, f"steps[{number}].name: {name!r} is not a valid folder name"
            )
            continue
        if folded in names:
            reading.problems.add(place, f"steps[{number}].name: another step is named {name!r}")
            continue
        names.add(folded)
        steps += _step(folder, name, values, table, reading)
    return tuple(steps)


def _step(
    folder: str, name: str, values: TaskTable, table: StepTable, reading: Reading
) -> tuple[Step, ...]:
    problems = reading.problems
    at = os.path.join(folder, "steps", name) if name else folder
    instruction = _text(os.path.join(at, "instruction.md"), problems)
    if instruction is not None and not instruction.strip():
        problems.add(Place(os.path.join(at, "instruction.md")), "is empty: write the instruction")
    agent: AgentTable = {**(values.get("agent") or {}), **(table.get("agent") or {})}
    solution = os.path.join(at, "solution")
    _script(solution, "solve.sh", problems, ": the task has no reference solution")
    workdir = os.path.join(at, "workdir")
    return (
        Step(
            name=name,
            instruction=(instruction or "").strip(),
            verifier=_verifier(folder, at, values, table, reading),
            solution=solution,
            timeout_sec=agent.get("timeout_sec"),
            user=agent.get("user"),
            min_reward=table.get("min_reward"),
            workdir=workdir if name and os.path.isdir(workdir) else None,
            healthcheck=_healthcheck(table.get("healthcheck")),
        ),
    )


def _verifier(
    folder: str, at: str, values: TaskTable, table: StepTable, reading: Reading
) -> Verifier:
    """Return the verifier of a step. Its files are those in the `tests` folders of the task and of
    the step. A file of the step replaces a file of the task that has the same name."""
    shared = os.path.join(folder, "tests")
    folders = dict.fromkeys((shared, os.path.join(at, "tests")))
    existing = [tests for tests in folders if os.path.isdir(tests)]
    with_script = [tests for tests in existing if os.path.exists(os.path.join(tests, "test.sh"))]
    _script(with_script[-1] if with_script else os.path.join(at, "tests"), "test.sh",
            reading.problems, ": the task cannot be judged")  # fmt: skip
    verifier: VerifierTable = {**(values.get("verifier") or {}), **(table.get("verifier") or {})}
    collect = verifier.get("collect") or []
    mode = verifier.get("environment_mode") or (
        "separate" if verifier.get("environment") else "shared"
    )
    if mode == "separate":
        message = "verifier.environment_mode: only `shared` is supported here"
        reading.problem("verifier" if "verifier" in reading.entries else "steps", message)
    if "verifier" in reading.entries:
        _check_variables(verifier.get("env") or {}, "verifier", reading)
    return Verifier(
        folders=tuple(existing),
        timeout_sec=verifier.get("timeout_sec", 600.0),
        env=verifier.get("env", {}),
        user=verifier.get("user"),
        collect=tuple(each["command"] for each in collect if "command" in each),
    )


def _script(folder: str, name: str, problems: Problems, noun: str) -> None:
    """Record a mistake if a script is missing, or if it cannot be executed."""
    path = os.path.join(folder, name)
    text = _text(path, problems, noun)
    if text is None:
        return
    first = text.partition("\n")[0]
    if not text.strip():
        problems.add(Place(path), "is empty")
    elif not first.startswith("#!"):
        problems.add(Place(path, 1, 1), "must begin with #!, such as #!/bin/bash")
    elif first.endswith("\r"):
        problems.add(Place(path, 1, 1), "has Windows line endings, which shells cannot execute")
