"""State files that are damaged, empty, or of a newer sweeper."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.real import NAME, Sweep, Sweeps, until

from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

DAMAGE = {
    "empty": b"",
    "torn": b'{"schema": 1, "ti',
    "zeros": bytes(64),
    "list": b"[]",
    "binary": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "newer": b'{"schema": 99}',
    "types": b'{"schema": "x", "time": [], "reason": {}, "started": 7, "wall_s": "long"}',
}


def _say(sweep: Sweep, *arguments: str) -> tuple[int, str]:
    """Return the output of `sweeper ARGUMENTS`, and its exit code."""
    command = [sys.executable, "-m", "sweeper", *arguments, "--root", str(sweep.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def done(make_sweep: Sweeps) -> Sweep:
    """Return a finished sweep of two runs."""
    sweep = make_sweep(runs=2, steps=2, seconds=0.02)
    assert sweep.finish() == 0
    return sweep


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_event_still_tells_its_name(done: Sweep, damage: str) -> None:
    """The file's name has the state: nothing is done again, and every reader shows the state, and
    reports the damage."""
    for path in done.root.glob(f"{NAME}/state/*/*.json"):
        path.write_bytes(DAMAGE[damage])
    done.finish_well(once=True)
    for verb in ("status", "ls"):
        code, output = _say(done, verb, NAME, "--json")
        assert code == 6, output
        document = json.loads(output)
        assert [run["state"] for run in document["runs"]] == ["succeeded"] * 2
        assert sum("succeeded.json: " in line for line in document["problems"]) == 2, output
        assert all(f"/{NAME}/state/" in line for line in document["problems"]), output
        code, output = _say(done, verb, NAME)
        assert code == 6 and output.count("succeeded.json: ") == 2


def test_names_that_are_no_events(make_sweep: Sweeps) -> None:
    """Files of a newer sweeper, an editor or a file manager in `state/` are ignored."""
    sweep = make_sweep(runs=2, steps=2, seconds=0.02)
    planned = make_sweep(runs=2)
    del planned
    for name in ("1.archived.json", "x.intent.json", "1.intent.json~", ".DS_Store", "1.json", "²"):
        for run in ("0" * 12, "notes"):
            path = sweep.root / NAME / "state" / run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"?")
    sweep.finish_well(once=True)


@pytest.mark.parametrize("damage", ["empty", "binary", "newer", "types"])
def test_what_may_be_lost_is_made_again(make_sweep: Sweeps, damage: str) -> None:
    """Heartbeats, observations, the service's address are damaged under a running sweep. It ends
    as if nothing had happened."""
    sweep = make_sweep(runs=3, seconds=0.6)
    first = sweep.start()
    folder = sweep.sweep_folder
    beats = Path(sweep.root, folder.heartbeats)
    # A recipe may have done a step before its worker's first heartbeat.
    until(lambda: len(sweep.rows()) >= 2 and beats.exists())
    first.kill()
    for path in (folder.observations, folder.service):
        Path(sweep.root, path).write_bytes(DAMAGE[damage])
    for path in beats.iterdir():
        path.write_bytes(DAMAGE[damage])
    _, output = _say(sweep, "status", NAME)
    assert "toys" in output
    sweep.finish_well(once=True)


@pytest.mark.parametrize("damage", ["empty", "torn", "newer"])
def test_a_damaged_claim_is_somebody_elses(make_sweep: Sweeps, damage: str) -> None:
    """A worker that finds an unreadable claim leaves the attempt alone."""
    sweep = make_sweep(runs=1, lease=1.0, launch={"retries": 2})
    sweep.start(faults={"1": "kill"}, only="backend.submit").wait()
    (run,) = [run.id for run in SweepFolder(sweep.store, NAME).read_plan().runs]
    claim = Path(sweep.root, sweep.sweep_folder.event(run, 1, Event.CLAIMED))
    claim.write_bytes(DAMAGE[damage])
    assert sweep.finish() == 0, sweep.log.read_text()
    assert {attempt for _, attempt, _ in sweep.rows()} == {2}
    assert sweep.verdict().good
