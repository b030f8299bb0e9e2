"""Compares the output of reading verbs with the files. Each verb runs twice: with the cache that
was filled by all earlier calls, and with an empty one."""

import contextlib
import io
import os
import random
import shutil
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.recorded import SWEEPS, Place, World, folder_place, memory_place
from sweeper.analysis.reading.frames import load
from sweeper.cli import main
from sweeper.metrics import sources
from sweeper.metrics.tables import cache
from sweeper.results import metrics_reader
from sweeper.results import runs as runs_module
from sweeper.results.registry import Registry

__all__ = ["Difference", "check"]

_KEYS = (None, ["loss"], ["other", "late"])


class Difference(NamedTuple):
    """Two different answers to one question; `after` is the last change before it."""

    question: str
    cached: str
    empty: str
    after: tuple[str, ...]


def check(folder: Path, seed: int, steps: int = 8, count: int = 4) -> list[Difference]:
    """Run one sequence: after each of `steps` changes, ask some questions. Stops at the first
    question that has two answers, or whose answer is a bug in sweeper."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        places = [memory_place(f"memory://caches-{os.getpid()}-{seed}/{name}") for name in "ab"]
    else:
        places = [folder_place(folder / name / "sweeps") for name in "ab"]
    world, after = World(places, rng), list[str]()
    homes = (folder / "kept", folder / "empty")
    out = folder / "table.csv"
    for _ in range(steps):
        for _ in range(rng.randrange(1, 3)):
            after.append(world.step())
        for place in places:
            place.settle()
        questions = _questions(places, out)
        with _tuned(rng):
            for name in rng.sample(sorted(questions), count):
                answers = [_answer(home, questions[name]) for home in homes]
                shutil.rmtree(homes[1], ignore_errors=True)
                if answers[0] != answers[1] or "bug in sweeper" in answers[0]:
                    return [Difference(name, answers[0], answers[1], tuple(after))]
    return []


@contextlib.contextmanager
def _tuned(rng: random.Random) -> Generator[None]:
    """Lower the readers' thresholds of size, count and age at random, so that few small files reach
    them. (Readers may not trust a file that has just changed.)"""
    tuned = [
        (sources, "MOMENT", rng.choice((0, 0, sources.MOMENT))),
        (runs_module, "_LARGE", rng.choice((0, 100_000))),
        (metrics_reader, "_SMALL", rng.choice((0, 500, 65536))),
        (cache, "_ROOM", rng.choice((1, 100, 1 << 20))),
        (cache, "_SMALL", rng.choice((0, 2, 16))),
        (cache, "_WORTH", rng.choice((1, 1, 1 << 15))),
    ]
    before = [getattr(module, name) for module, name, _ in tuned]
    for module, name, value in tuned:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(tuned, before, strict=True):
            setattr(module, name, value)


def _answer(home: Path, question: Callable[[], str]) -> str:
    before = os.environ.get("SWEEPER_HOME")
    os.environ["SWEEPER_HOME"] = str(home)
    try:
        return question()
    finally:
        cache.wait_for_writers()  # or a thread fills the empty cache after it was removed
        if before is None:
            del os.environ["SWEEPER_HOME"]
        else:
            os.environ["SWEEPER_HOME"] = before


def _questions(places: list[Place], out: Path) -> dict[str, Callable[[], str]]:
    questions: dict[str, Callable[[], str]] = {}

    def verb(*arguments: str) -> None:
        questions[" ".join(arguments)] = lambda: _output(arguments, out)

    for place in places:
        root = ("--root", place.root)
        verb("status", *root, "--json")
        verb("ls", *root, "--json", "--metric", "loss", "--metric", "late")
        verb("ls", *root)
        for table in ("runs", "metrics", "rollouts", "checkpoints"):
            verb("sql", f"from {table}", *root, "--json")
            verb("export", "--format", "csv", "--table", table, "--out", str(out), *root)
        query = 'select run, sweep, count(*), min("loss"), max(step) from metrics group by 1, 2'
        verb("sql", f"{query} order by 1, 2", *root, "--json")
        verb("logs", "*", *root, "--json")
        for sweep in SWEEPS:
            verb("status", sweep, *root, "--json")
            verb("ls", sweep, *root, "--json", "--where", "wall_s > 5 or lr = 1")
            verb("show", f"{sweep}/lr=1", *root, "--json")
            verb("rollouts", f"{sweep}/lr=1", *root, "--json", "-n", "0")
            verb("compare", f"{sweep}/lr=1", f"{sweep}/lr=2", *root, "--json")
            questions[f"report of {sweep} in {place.root}"] = _tried(
                lambda sweep=sweep, root=place.root: load(Registry(root), sweep, None, None)
            )
    roots = [place.root for place in places]
    for keys in _KEYS:
        questions[f"metrics {keys} of both"] = _tried(lambda keys=keys: _metrics(roots, keys))
    questions["the last rollouts of both"] = _tried(lambda: _rollouts(roots, -1))
    questions["rewards of both"] = _tried(lambda: _rollouts(roots, None, ["total_reward", "a"]))
    questions["runs of both"] = _tried(lambda: Registry(*roots).records())
    return questions


def _output(arguments: tuple[str, ...], out: Path) -> str:
    """Return exit code, standard output and written files."""
    out.unlink(missing_ok=True)
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            code: object = main(arguments)
        except SystemExit as stopped:
            code = stopped.code
    written = out.read_text() if out.exists() else ""
    return f"{code}\n{printed.getvalue()}\n{errors.getvalue()}\n{written}"


def _metrics(roots: list[str], keys: list[str] | None) -> Any:
    registry = Registry(*roots)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        frame = registry.metrics(keys=keys)
    return frame, registry.problems, [str(warning.message) for warning in warned]


def _rollouts(roots: list[str], iteration: int | None, keys: list[str] | None = None) -> Any:
    registry = Registry(*roots)
    return registry.rollouts(iteration=iteration, keys=keys), registry.problems


def _tried(call: Callable[[], Any]) -> Callable[[], str]:
    def tried() -> str:
        from sweeper.errors import SweeperError

        try:
            return _plain(call())
        except (SweeperError, UserWarning) as error:
            return f"{type(error).__name__}: {error}"

    return tried


def _plain(value: Any) -> str:
    """Return a value as a text with all its contents."""
    if isinstance(value, np.ndarray):
        return repr(value.tolist())
    if is_dataclass(value):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    if hasattr(value, "to_csv"):
        return f"{list(value.dtypes.items())}\n{value.to_csv()}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_plain(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return repr(value)
