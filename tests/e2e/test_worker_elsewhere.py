"""The worker with a remote store that fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.sweep.folder import token
from sweeper.sweep.states import Event, State

pytestmark = pytest.mark.e2e
Bench = Any  # tests/support/worker_bench.py

WORKER = """
import os, sys
from sweeper.errors import StoreError
from sweeper.store import opening
from sweeper.store.local import LocalStore
from sweeper.worker import main, syncing

class Elsewhere(LocalStore):
    is_remote = True

    def local_path(self, path):
        return None

def refusing(method):
    def refuse(self, path, *more, **options):
        try:
            words = open(os.environ["TROUBLE"]).read().split()
        except FileNotFoundError:
            words = []
        if any(word in path for word in words):
            raise StoreError(f"{path}: not allowed")
        return method(self, path, *more, **options)
    return refuse

for name in ("create", "replace", "read", "exists", "list", "names", "upload"):
    setattr(Elsewhere, name, refusing(getattr(LocalStore, name)))
opening.open_store = Elsewhere
main.BEAT_SECONDS = 0.1
syncing.REFUSED_SECONDS = float(os.environ["REFUSED"])
code = main.main(sys.argv[1:])
main.set_blocking(True)
os._exit(code)
"""


@pytest.fixture
def trouble(tmp_path: Path) -> Path:
    """Return a file of words. Paths that contain one of them fail in the store."""
    return tmp_path / "trouble"


@pytest.fixture
def start(
    bench: Bench, tmp_path: Path, trouble: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    def start(
        program: str, attempt: int = 1, refused_s: float = 600.0, sync_s: float = 0.05
    ) -> subprocess.Popen[bytes]:
        bench.prepare(program, attempt, sync_s=sync_s)
        home = tmp_path / "home"
        environment = {"SWEEPER_HOME": str(home), "TROUBLE": str(trouble)}
        environment |= {"REFUSED": str(refused_s)}
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, bench.folder.address, token(bench.id, attempt)],
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        bench.workers.append(worker)
        return worker

    yield start


def _wait_for_output(worker: subprocess.Popen[bytes], text: str) -> None:
    while text not in (line := worker.stdout.readline().decode()):
        assert line, f"the worker ended, and did not say {text!r}"


def _spooled(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("home/spool/*/s/unsynced/*"))


PLOT = "import sys; open(sys.argv[1] + '/plot.png', 'w'); open(sys.argv[1] + '/metrics.jsonl', 'w')"


def test_a_file_that_the_store_refuses_ends_no_later_than_it_must(
    bench: Bench, start: Any, trouble: Path, tmp_path: Path
) -> None:
    trouble.write_text("plot.png")
    code, output = bench.finish(start(PLOT, refused_s=0.5))
    outcome = bench.outcome()
    assert (code, outcome["state"]) == (0, State.SUCCEEDED)
    assert outcome["unsynced"].endswith("plot.png: not allowed")
    assert "stored on this machine but not in the store" in output
    assert _spooled(tmp_path) == [f"{bench.id}.1"]
    assert (bench.path() / "metrics.jsonl").exists()


def test_cancelling_what_waits_for_the_store_ends_it(
    bench: Bench, start: Any, trouble: Path, tmp_path: Path
) -> None:
    trouble.write_text("plot.png")
    # With this sync_s, "not synced yet" appears only after the recipe has ended.
    worker = start(PLOT, sync_s=600)
    _wait_for_output(worker, "not synced yet")
    bench.store.create(bench.folder.event(bench.id, 1, Event.CANCEL), b"{}")
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["code"]) == (State.CANCELLED, 0)
    assert "plot.png: not allowed" in outcome["detail"]
    assert _spooled(tmp_path) == [f"{bench.id}.1"]


@pytest.fixture
def outage(start: Any, trouble: Path) -> subprocess.Popen[bytes]:
    """Return a worker that has claimed its attempt and whose store has failed since then."""
    trouble.write_text("heartbeats s/runs")
    return start("import sys; open(sys.argv[1] + '/trained', 'w')", 2)


def test_an_outage_before_the_recipe_starts_is_waited_out(
    bench: Bench, outage: subprocess.Popen[bytes], trouble: Path
) -> None:
    for _ in range(8):  # more attempts than a store that answers gets
        _wait_for_output(outage, "trying again")
    trouble.unlink()
    bench.finish(outage)
    assert bench.outcome()["state"] is State.SUCCEEDED
    assert (bench.path(2) / "trained").exists()


@pytest.mark.parametrize("how", ["cancel", "signal"])
def test_an_outage_before_the_recipe_starts_can_be_ended(
    bench: Bench, outage: subprocess.Popen[bytes], how: str
) -> None:
    _wait_for_output(outage, "trying again")
    if how == "cancel":
        bench.store.create(bench.folder.event(bench.id, 2, Event.CANCEL), b"{}")
    else:
        outage.send_signal(signal.SIGTERM)
    bench.finish(outage)
    outcome = bench.outcome()
    assert outcome["state"] is (State.CANCELLED if how == "cancel" else State.PREEMPTED)
    assert not (bench.path(2) / "trained").exists()


def test_what_fails_while_the_store_answers_is_no_outage(
    bench: Bench, start: Any, trouble: Path
) -> None:
    trouble.write_text("s/runs")
    bench.finish(start("pass", 2))
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "start")
