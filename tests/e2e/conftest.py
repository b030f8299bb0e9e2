"""Fixtures of the tests that drive whole programs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper.engine import lifecycle

_LONGEST = (
    "test_readme.py",
    "test_grpo_grid.py",
    "test_slurm.py",
    "test_remote.py",
    "test_alarms.py",
    "test_aws_batch.py",
    "test_recipe_sft.py",
    "test_recipe_rl.py",
    "test_watch.py",
)
"""Files that take longest: begun last, they would run alone while the other processors wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first, the others as they were."""
    order = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


class Recipes:
    """Recipes as programs of their own, with no other service than the tests' engine."""

    def __init__(self, url: str, key: str, tokenizers: Mapping[str, str]) -> None:
        self.url = url
        self.key = key
        self.tokenizers = tokenizers

    def run(
        self, recipe: str, log_path: Path, env: Mapping[str, str] | None = None, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Execute a recipe to its end: `.returncode`, `.stdout`, `.stderr`."""
        return subprocess.run(
            self._command(recipe, log_path, settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment(env),
            check=False,
        )

    def disturbed(
        self,
        recipe: str,
        log_path: Path,
        step: int,
        action: Callable[[subprocess.Popen[str]], object],
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> tuple[int, str]:
        """Execute a recipe, and once it has reported `step` do something to its process.

        Returns its exit code and stderr.
        """
        with subprocess.Popen(
            self._command(recipe, log_path, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment(env),
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(f"step {step}/"):
                    action(process)
                    break
            _, errors = process.communicate()
        return process.returncode, errors

    def stopped_after(
        self,
        recipe: str,
        log_path: Path,
        step: int,
        signum: int,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> tuple[int, str]:
        """`disturbed` by a signal."""
        return self.disturbed(
            recipe, log_path, step, lambda process: process.send_signal(signum), env, **settings
        )

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """The records of a file of JSON lines."""
        return [json.loads(line) for line in path.read_text().splitlines()]

    def measured(self, log_path: Path) -> list[dict[str, Any]]:
        """A run's metrics, without what a clock gave."""
        lines = self.read(log_path / "metrics.jsonl")
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    def _command(self, recipe: str, log_path: Path, settings: Mapping[str, Any]) -> list[str]:
        settings = {"base_url": self.url} | dict(settings)
        arguments = [f"{key}={value}" for key, value in settings.items()]
        return [
            sys.executable,
            "-m",
            f"sweeper.recipes.{recipe}",
            f"log_path={log_path}",
            *arguments,
        ]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "WANDB_"))}
        ours |= {"PYTHONUNBUFFERED": "1", "TINKER_API_KEY": self.key}  # as a worker does
        ours |= self.tokenizers
        return ours | dict(more or {})


@pytest.fixture(scope="session")
def recipes(engine: lifecycle.EngineInfo) -> Recipes:
    """Runs recipes, and reads what they leave behind."""
    home = engine.home
    return Recipes(engine.url, lifecycle.client_key(home), lifecycle.hub_environment(home))


@pytest.fixture(scope="session")
def shells(load_support: Callable[[str], ModuleType]) -> ModuleType:
    """`tests/support/shell.py`: `Shell(folder, backend)`, the command line with a toy recipe."""
    return load_support("shell")


@pytest.fixture
def bench(load_support: Callable[[str], ModuleType], tmp_path: Path) -> Iterator[Any]:
    """`tests/support/worker_bench.py`: a sweep with one run, and its workers."""
    module = load_support("worker_bench")
    (tmp_path / "root").mkdir()
    made = module.Bench(tmp_path / "root")
    yield made
    made.close()


@pytest.fixture
def wandb_records() -> Callable[[Path], list[dict[str, Any]]]:
    """All that W&B has recorded in a directory of its own, by its own program."""

    def records(folder: Path) -> list[dict[str, Any]]:
        done = subprocess.run(
            [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", folder],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"TERM": "dumb"},
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return records
