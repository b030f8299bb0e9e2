"""A real engine, killed in the middle of a sweep that trains on it with the unmodified SDK, and
started again: on its port, on another one, and only after a while."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.real import HERE, NAME, Sweeps, until

from sweeper.engine import lifecycle
from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.observation import Kind
from sweeper.sweep.states import Event, State

STEPS = 6


class Served:
    """A sweep of three trainers, two at once, and its engine."""

    def __init__(self, make_sweep: Sweeps, home: Path, **launch: Any) -> None:
        self.home = str(home)
        trainer = [sys.executable, "-P", str(HERE / "trainer.py"), "{ledger}", str(STEPS), "2"]
        self.sweep = make_sweep(
            runs=3,
            steps=STEPS,
            command=[*trainer, "{log_path}"],
            launch={"max_parallel": 2, "grace": "2s", **launch},
            spec={"engine_patience": 3.0},
        )
        self.sweep.spec["grid"]["service"] = "local"
        self.sweep.spec["grid"]["launch"]["env"] = {"PYTHONPATH": str(HERE)}
        # Not below the sweep's folder, whose processes belong to the sweep.
        self.sweep.environment["SWEEPER_HOME"] = self.home
        # While this file exists no run ends, however slow the test is.
        self.hold = Path(f"{self.sweep.ledger}.hold")
        self.start()

    def kill(self) -> None:
        """Send SIGKILL, at any moment."""
        self.engine.kill()
        self.engine.wait()
        assert lifecycle.find(self.home) is None

    def start(self) -> None:
        null = subprocess.DEVNULL
        self.engine = subprocess.Popen(lifecycle.command(self.home), stdin=null, stderr=null)
        self.info = lifecycle.wait(self.home, timeout=60)

    def at_work(self, rows: int) -> None:
        until(lambda: len(self.sweep.rows()) >= rows, 120, "nothing trains")

    def judge(self) -> None:
        """Check that everything ended, and that nothing was lost, done twice, or counted against a
        run."""
        sweep = self.sweep
        assert sweep.settled()
        verdict = sweep.verdict(resumes=True)
        assert verdict.good, verdict
        for run, events in SweepFolder(sweep.store, NAME).read_events().items():
            failed = {attempt for attempt, event in events if event is Event.FAILED}
            for attempt in failed:
                why = read_json(sweep.store, sweep.sweep_folder.event(run, attempt, Event.FAILED))
                assert why["reason"] == "service", why
            assert failed <= {attempt for attempt, event in events if event is Event.RETRY}
            steps = [step for identity, _, step in sweep.rows() if identity == run]
            # resumed, not restarted: a step is repeated only if its save was lost
            assert len(steps) <= STEPS + len({attempt for attempt, _ in events}) - 1, steps


@pytest.fixture
def serve(make_sweep: Sweeps, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(**launch: Any) -> Served:
        made.append(Served(make_sweep, tmp_path / f"engine{len(made)}", **launch))
        return made[-1]

    yield make
    for served in made:
        served.sweep.clean()
        served.engine.terminate()
        served.engine.wait()


def test_killed_and_started_again_on_its_port_twice(serve: Callable[..., Served]) -> None:
    """Without retries: an engine's crash uses up none."""
    served = serve(retries=0)
    launching = served.sweep.start()
    url = served.info.url
    for rows in (3, 10):
        served.at_work(rows)
        served.kill()
        served.start()
        assert served.info.url == url
    assert launching.wait(300) == 0
    served.judge()


def test_its_port_is_taken_when_it_comes_back(serve: Callable[..., Served]) -> None:
    """The launcher finds the new port, and ends runs that would retry the old address for ever."""
    served = serve(retries=0)
    served.hold.touch()
    launching = served.sweep.start()
    served.at_work(3)
    served.kill()
    served.hold.unlink()
    host, port = served.info.url.removeprefix("http://").split(":")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()  # and never answer
        served.start()
        assert not served.info.url.endswith(f":{port}")
        assert launching.wait(300) == 0
    served.judge()
    assert (
        read_json(served.sweep.store, served.sweep.sweep_folder.service)["engine"]
        == served.info.url
    )


def test_while_there_is_none_nothing_is_started_and_that_is_told(
    serve: Callable[..., Served],
) -> None:
    """A launcher that was killed and started again starts nothing either. A user who stops an
    engine that a sweep uses is warned."""
    served = serve(retries=0)
    served.hold.touch()
    first = served.sweep.start()
    served.at_work(2)
    stop = [str(Path(sys.executable).with_name("sweeper")), "engine", "stop"]
    refused = subprocess.run(
        stop, env=served.sweep.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 6 and f"{served.sweep.root}/{NAME}" in refused.stderr
    served.kill()
    first.kill()
    for process in served.sweep.workers():  # as when the machine goes down
        with suppress(psutil.NoSuchProcess):  # its guard has ended it before
            process.kill()
    served.sweep.rest()
    served.hold.unlink()
    done = len(served.sweep.rows())
    second = served.sweep.start("drive")
    message = f"no engine answers at {served.info.url}"
    until(
        lambda: (
            message in str(SweepFolder(served.sweep.store, NAME).read_observations().unreachable)
        ),
        120,
    )
    until(lambda: set(served.sweep.states().values()) == {State.LOST, State.PLANNED}, 120)
    observed = SweepFolder(served.sweep.store, NAME).read_observations().observed
    assert {seen.kind for seen in observed.values()} == {Kind.ENGINE}
    assert len(served.sweep.rows()) == done and second.poll() is None
    served.start()
    assert second.wait(300) == 0
    served.judge()
