"""Fixtures of the chaos tests. The tests are the quick part; `run.py` kills far more processes with
the same harness."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.real import Sweep

# Forked launchers inherit these imports.
import sweeper.backends.local.backend
import sweeper.launcher.launching
import sweeper.planner.plan
import sweeper.scheduler.progress
import sweeper.testing  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "chaos" in Path(str(item.path)).parts:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder, in memory if possible, for thousands of files that need not be durable."""
    place = Path("/dev/shm")  # noqa: S108 - a folder is made in it that nobody can guess
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def make_sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Yield a function that makes sweeps of toys, each in a new folder; end their processes."""
    made: list[Sweep] = []

    def make(**options: Any) -> Sweep:
        folder = tmp_path / f"sweep{len(made)}"
        folder.mkdir()
        made.append(Sweep(folder, **options))
        return made[-1]

    yield make
    for sweep in made:
        sweep.clean()
