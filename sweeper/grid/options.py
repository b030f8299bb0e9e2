"""The sections of a grid that say how to run and judge it: launch, seeds, metric, secrets.

`Section` is how every section is read: unknown keys get the nearest right one, and what is wrong
is noted with its place while the rest is read on.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.model.plan import Launch, Metric

__all__ = [
    "FIELD",
    "Launch",
    "Metric",
    "Section",
    "Seeds",
    "hint",
    "is_name",
    "nearest",
    "read_launch",
    "read_metric",
    "read_secrets",
    "read_seeds",
]

MAX_SEEDS = 10_000
NO_FIELD = "none"
"""What `seeds.field` is where no seed is set."""

MAX_HINTS = 10
MIN_LEASE_SECONDS = 15.0
"""Three beats of a worker: with less, a worker that lives would be declared lost."""

MIN_SYNC_SECONDS = 1.0

FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\Z")
"""What a key of a configuration may look like; nothing that chz reads as more than a name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BACKEND = re.compile(r"[a-z][a-z0-9-]*\Z")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?\Z")
_METRICS_DIR = re.compile(r"\{log_path\}(/(?!\.\.?(/|\Z))[A-Za-z0-9._+=,~-]{1,100}){1,8}\Z")


class Seeds(NamedTuple):
    """The replicates of every cell: the field that takes the seed, and its values. Without a field
    no seed is set: the runs differ by themselves, and the values only number them."""

    field: str | None
    values: tuple[int, ...]
    place: Place


def is_name(text: str) -> bool:
    """Whether a sweep may be called that: safe as a folder and as a tmux session."""
    return _NAME.match(text) is not None


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is close."""
    import difflib
    import itertools

    # Comparing takes the product of two lengths: what is too long for a slip is passed over.
    candidates = itertools.islice((other for other in known if len(other) <= 60), 200)
    found = difflib.get_close_matches(word[:60], list(candidates), n=1)
    return f" (did you mean '{found[0]}'?)" if found else ""


def hint(word: str, known: Iterable[str], problems: Problems) -> str:
    """The same; nothing where so much is wrong that looking for it would take long."""
    return nearest(word, known) if len(problems) < MAX_HINTS else ""


class Section:
    """One mapping of a grid, read key by key. A getter returns None for what is missing, null or
    wrong; wrong is also noted."""

    def __init__(self, node: Node, name: str, known: Collection[str], problems: Problems) -> None:
        self.name, self.problems, self.place = name, problems, node.place
        self.entries: dict[str, tuple[Place, Node]] = {}
        if node.entries is None:
            if node.value is not None:
                problems.add(node.place, f"{name} is {kind(node)}; it takes a mapping")
            return
        for key, (place, item) in node.entries.items():
            if key in known:
                self.entries[key] = (place, item)
            else:
                inside = "" if name == "the grid" else f" in {name}"
                problems.add(
                    place, f"unknown key {key[:100]!r}{inside}{hint(key, known, problems)}"
                )

    def node(self, key: str) -> Node | None:
        """The node under `key`; None when missing or null."""
        entry = self.entries.get(key)
        return None if entry is None or entry[1].value is None else entry[1]

    def wrong(self, node: Node, key: str, expected: str) -> None:
        """Note that `key` is not what it takes."""
        self.problems.add(node.place, f"{self._path(key)} is {kind(node)}; it takes {expected}")

    def _path(self, key: str) -> str:
        return key if self.name == "the grid" else f"{self.name}.{key}"

    def string(self, key: str, *, choices: Collection[str] = ()) -> str | None:
        """A string that is not empty, one of `choices` when there are any."""
        node = self.node(key)
        if node is None:
            return None
        if node.value == "":
            self.problems.add(node.place, f"{self._path(key)} is empty")
            return None
        if not isinstance(node.value, str):
            self.wrong(node, key, "a string" if not choices else " or ".join(choices))
            return None
        if choices and node.value not in choices:
            self.problems.add(
                node.place,
                f"{self._path(key)}: {node.value[:60]!r} is not one of {', '.join(choices)}"
                f"{nearest(node.value, choices)}",
            )
            return None
        return node.value

    def integer(self, key: str, minimum: int) -> int | None:
        """An integer of at least `minimum` and at most a million."""
        node = self.node(key)
        if node is None:
            return None
        if type(node.value) is not int:
            self.wrong(node, key, "an integer")
            return None
        if not minimum <= node.value <= 1_000_000:
            self.problems.add(
                node.place, f"{self._path(key)} is {minimum} to 1000000, not {node.value}"
            )
            return None
        return node.value

    def duration(self, key: str, least: float = 0.0) -> float | None:
        """Seconds, at least `least`: from a number, or a string such as 90s, 30m, 2h, 1h30m, 1d."""
        node = self.node(key)
        if node is None:
            return None
        seconds: float | None = None
        if type(node.value) in (int, float):
            seconds = float(node.value) if abs(node.value) < 1e9 else None
        elif isinstance(node.value, str) and node.value and len(node.value) < 30:
            match = _DURATION.match(node.value)
            if match:
                parts = [float(part or 0) for part in match.groups()]
                seconds = sum(n * u for n, u in zip(parts, (86400, 3600, 60, 1), strict=True))
        if seconds is None or not 0 < seconds < 1e9:
            self.problems.add(
                node.place, f"{self._path(key)} takes a duration such as 90s, 30m, 2h or 1h30m"
            )
            return None
        if seconds < least:
            self.problems.add(node.place, f"{self._path(key)} is at least {least:g}s")
            return None
        return seconds


def read_launch(node: Node, problems: Problems) -> Launch:
    """The `launch` section."""
    from sweeper.grid.aws_batch import read_aws_batch
    from sweeper.grid.slurm import read_slurm

    keys = [name.removesuffix("_s") for name in Launch._fields]
    section = Section(node, "launch", keys, problems)
    given: dict[str, Any] = {
        "backend": section.string("backend"),
        "max_parallel": section.integer("max_parallel", 1),
        "retries": section.integer("retries", 0),
        "timeout_s": section.duration("timeout"),
        "python": section.string("python"),
        "cwd": section.string("cwd"),
        "env": _read_env(section),
        "resume": section.string("resume", choices=("auto", "always", "never")),
        "lease_s": section.duration("lease", MIN_LEASE_SECONDS),
        "grace_s": section.duration("grace"),
        "log_path_field": section.string("log_path_field"),
        "metrics_dir": section.string("metrics_dir"),
        "window": section.string("window"),
        "sync_s": section.duration("sync", MIN_SYNC_SECONDS),
        "slurm": read_slurm(section.node("slurm"), problems),
    }
    on_batch = given["backend"] == "aws-batch"
    given["aws_batch"] = read_aws_batch(section.node("aws_batch"), problems, used=on_batch)
    if given["backend"] and not _BACKEND.match(given["backend"]):
        problems.add(section.entries["backend"][1].place, "launch.backend: not a backend's name")
        given["backend"] = None
    field = given["log_path_field"]
    if field and not FIELD.match(field):
        problems.add(
            section.entries["log_path_field"][1].place, "launch.log_path_field: not a field's name"
        )
    folder = given["metrics_dir"]
    if folder and not _METRICS_DIR.match(folder):
        problems.add(
            section.entries["metrics_dir"][1].place,
            "launch.metrics_dir: write a folder in the run's own, like '{log_path}/run'",
        )
    return Launch(**{key: value for key, value in given.items() if value is not None})


def _read_env(section: Section) -> dict[str, str]:
    node = section.node("env")
    if node is None:
        return {}
    if node.entries is None:
        section.wrong(node, "env", "a mapping of names to strings")
        return {}
    env: dict[str, str] = {}
    for name, (place, item) in node.entries.items():
        if not _ENV.match(name):
            section.problems.add(place, f"launch.env: {name[:60]!r} cannot name a variable")
        elif name.startswith("SWEEPER_"):
            section.problems.add(place, f"launch.env: {name[:60]} is set by sweeper")
        elif type(item.value) in (str, int):
            env[name] = str(item.value)
        else:
            section.problems.add(
                item.place, f"launch.env.{name[:60]} is {kind(item)}; quote it to make it a string"
            )
    return env


def read_metric(node: Node, problems: Problems) -> Metric | None:
    """The `metric` section: name and goal are needed, `at` is `last` unless given."""
    section = Section(node, "metric", ("name", "goal", "at"), problems)
    name = section.string("name")
    goal = section.string("goal", choices=("minimize", "maximize"))
    at = section.string("at", choices=("last", "best"))
    for key in ("name", "goal"):
        if node.entries is not None and section.node(key) is None:
            problems.add(node.place, f"metric needs a {key}")
    if name is None or goal is None:
        return None
    return Metric(
        name, "minimize" if goal == "minimize" else "maximize", "best" if at == "best" else "last"
    )


def read_secrets(node: Node, problems: Problems) -> tuple[str, ...]:
    """The names of environment variables that hold secrets."""
    if node.items is None:
        problems.add(node.place, f"secrets is {kind(node)}; it takes a list of variable names")
        return ()
    names: dict[str, None] = {}
    for item in node.items:
        if isinstance(item.value, str) and _ENV.match(item.value):
            names[item.value] = None
        elif isinstance(item.value, str) and "=" in item.value:
            # The text may hold the secret itself: it must not be repeated on a terminal.
            problems.add(item.place, "secrets takes names only; values come from the environment")
        else:
            problems.add(item.place, "secrets takes the names of environment variables")
    return tuple(names)


def read_seeds(node: Node, problems: Problems) -> Seeds | None:
    """`3` (that is 0, 1, 2), `[11, 12]`, or `{field: shuffle_seed, values: 3}`; with `field: none`
    no seed is set."""
    field: str | None = "seed"
    values: Node | None = node
    if node.entries is not None:
        section = Section(node, "seeds", ("field", "values"), problems)
        field = section.string("field") or field
        if not FIELD.match(field):
            problems.add(section.entries["field"][1].place, "seeds.field: not a field's name")
        values = section.node("values")
        if values is None:
            problems.add(node.place, "seeds needs values: how many, or a list")
            return None
    found = _seed_values(values, problems)
    return Seeds(None if field == NO_FIELD else field, found, node.place) if found else None


def _seed_values(node: Node, problems: Problems) -> tuple[int, ...]:
    if type(node.value) is int:
        if 1 <= node.value <= MAX_SEEDS:
            return tuple(range(node.value))
        problems.add(node.place, f"seeds is 1 to {MAX_SEEDS}, not {node.value}")
        return ()
    if node.items is None:
        problems.add(node.place, f"seeds is {kind(node)}; it takes a count or a list of integers")
        return ()
    if not node.items:
        problems.add(node.place, "seeds is an empty list")
    values: dict[int, None] = {}
    for item in node.items[:MAX_SEEDS]:
        if type(item.value) is not int:
            problems.add(item.place, f"a seed is an integer, not {kind(item)}")
        elif item.value in values:
            problems.add(item.place, f"seed {item.value} given twice")
        else:
            values[item.value] = None
    if len(node.items) > MAX_SEEDS:
        problems.add(node.place, f"{len(node.items)} seeds; at most {MAX_SEEDS} are allowed")
    return tuple(values)
