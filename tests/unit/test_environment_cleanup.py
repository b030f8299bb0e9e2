"""Secrets stay on a machine only until its jobs have read them."""

import os
from pathlib import Path
from typing import Any

import pytest

from sweeper.launcher import environment_cleanup
from sweeper.launcher.environment_cleanup import remove_unneeded_environment
from sweeper.store.documents import encode
from sweeper.sweep import environment_file, process
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.process import Who
from sweeper.sweep.states import Event
from sweeper.testing import FakeClock


class Left:
    """A sweep with two runs started by a launcher here, and its environment file `path`."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.clock = scene, FakeClock()
        self.path = environment_file.write(f"{scene.store.root}/s", {"SECRET": "value"})
        self.mark = environment_file.mark_of(self.path)
        scene.step()
        self.at_work = scene.ids[:2]

    def remove_unneeded_environment(self, *after_a_second: Any) -> float:
        """Remove it, call `after_a_second` meanwhile, and return the seconds it took."""
        happens = list(after_a_second)

        def sleep(seconds: float) -> None:
            self.clock.sleep(seconds)
            if happens:
                happens.pop(0)()

        remove_unneeded_environment(
            SweepFolder(self.scene.store, "s"), [self.scene.backend], self.mark, clock=self.clock,
            sleep=sleep,
        )  # fmt: skip
        return self.clock.now

    def begins(self, run: str) -> None:
        self.scene.worker(run, 1, Event.CLAIMED)
        self.scene.beat(run)


@pytest.fixture
def left(scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    scene.store.create("s/launcher/1", encode(Who("elsewhere", 1, None)._asdict()))
    return Left(scene)


def test_the_environment_is_removed_once_each_job_has_begun_or_ended(left):
    first, second = left.at_work

    def ends() -> None:
        left.scene.backend.end(token(second, 1), code=1)

    assert left.remove_unneeded_environment(lambda: left.begins(first), ends) == 2.0
    assert not os.path.exists(left.path)


def test_jobs_of_another_machine_do_not_keep_the_environment(left):
    for run in left.at_work:
        left.scene.backend.lose(token(run, 1))
    assert left.remove_unneeded_environment() == 0.0 and not os.path.exists(left.path)


@pytest.mark.parametrize("why", ["a job waits", "unreachable", "another launch", "launcher here"])
def test_the_environment_stays_while_it_may_be_needed(left, why):
    for run in left.at_work[: 1 if why == "a job waits" else 2]:
        left.begins(run)
    if why == "unreachable":
        left.scene.backend.reachable = False
    elif why == "another launch":
        environment_file.write(f"{left.scene.store.root}/s", {})
    elif why == "launcher here":
        left.scene.store.create("s/launcher/2", encode(process.this_process()._asdict()))
    assert (left.remove_unneeded_environment() > 0.0) >= (why == "a job waits")
    assert os.path.exists(left.path)


def test_lock_files_are_not_taken_for_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    path = Path(environment_file.write("/nowhere/s", {}))
    lock = path.with_name("0123.lock")
    lock.touch()
    for each in (path, lock):
        os.utime(each, (0, 0))
    path.write_text("{}")
    os.utime(path, (0, 0))
    assert list(environment_cleanup.unused_files("/s")) == [str(path)]
