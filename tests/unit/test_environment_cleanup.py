"""Secrets do not stay on a machine whose launcher another's has taken the sweep over from; and they
stay as long as a job there has not read them."""

import os
from pathlib import Path
from typing import Any

import pytest

from sweeper.launcher import kept_environments
from sweeper.launcher.kept_environments import remove_unneeded_environment
from sweeper.store.documents import encode
from sweeper.sweep import environment_file, process
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.process import Who
from sweeper.sweep.states import Event
from sweeper.testing import FakeClock


class Left:
    """A sweep that a launcher here has started two runs of, and whose file is at `path`."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.clock = scene, FakeClock()
        self.path = environment_file.write(f"{scene.store.root}/s", {"SECRET": "value"})
        self.mark = environment_file.mark_of(self.path)
        scene.step()
        self.at_work = scene.ids[:2]

    def remove_unneeded_environment(self, *after_a_second: Any) -> float:
        """Let go, and see how long it took; `after_a_second` happens meanwhile."""
        happens = list(after_a_second)

        def sleep(seconds: float) -> None:
            self.clock.sleep(seconds)
            if happens:
                happens.pop(0)()

        remove_unneeded_environment(
            SweepFolder(self.scene.store, "s"),
            [self.scene.backend],
            self.mark,
            clock=self.clock,
            sleep=sleep,
        )
        return self.clock.now

    def begins(self, run: str) -> None:
        self.scene.worker(run, 1, Event.CLAIMED)
        self.scene.beat(run)


@pytest.fixture
def left(scene: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    scene.store.create("s/launcher/1", encode(Who("elsewhere", 1, None)._asdict()))
    return Left(scene)


def test_it_goes_when_each_job_has_beaten_or_ended(left: Left) -> None:
    first, second = left.at_work

    def ends() -> None:
        left.scene.backend.end(token(second, 1), code=1)

    assert left.remove_unneeded_environment(lambda: left.begins(first), ends) == 2.0
    assert not os.path.exists(left.path)


def test_jobs_of_the_other_machine_have_their_own(left: Left) -> None:
    for run in left.at_work:
        left.scene.backend.lose(token(run, 1))
    assert left.remove_unneeded_environment() == 0.0
    assert not os.path.exists(left.path)


def test_it_stays_for_a_job_that_does_not_begin(left: Left) -> None:
    left.begins(left.at_work[0])
    assert left.remove_unneeded_environment() > 0.0
    assert os.path.exists(left.path)


def test_it_stays_where_nobody_knows(left: Left) -> None:
    left.scene.backend.reachable = False
    left.remove_unneeded_environment()
    assert os.path.exists(left.path)


def test_what_another_launch_has_put_there_stays(left: Left) -> None:
    for run in left.at_work:
        left.begins(run)
    environment_file.write(f"{left.scene.store.root}/s", {})
    left.remove_unneeded_environment()
    assert os.path.exists(left.path)


def test_a_launcher_on_this_machine_may_use_it(left: Left) -> None:
    for run in left.at_work:
        left.begins(run)
    left.scene.store.create("s/launcher/2", encode(process.this_process()._asdict()))
    left.remove_unneeded_environment()
    assert os.path.exists(left.path)


def test_only_files_of_launches_are_taken_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    path = Path(environment_file.write("/nowhere/s", {}))
    lock = path.with_name("0123.lock")
    lock.touch()
    for each in (path, lock):
        os.utime(each, (0, 0))
    path.write_text("{}")
    os.utime(path, (0, 0))
    assert list(kept_environments.unused_files("/s")) == [str(path)]
