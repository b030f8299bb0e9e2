"""Wrong clocks of the launcher or the workers: an hour off, losing time at each reading, and set
forward and back, by a second and by a year, during the sweep."""

import glob
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.real import NAME, Sweeps, until

from sweeper import Registry
from sweeper.alarms.records import read as read_alarms
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

HOUR = 3600.0
FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")
OF_THE_LAUNCHER = ("+1h", "-1h", "+0", "+1y", "-1y", "-2s", "+90s")
OF_WORKERS = ("-1y", "-31536002", "+1y", "+31539600")  # never the right year, once they are set


@pytest.mark.parametrize(
    ("launcher", "worker"),
    [
        ({"clock": HOUR}, {"clock": -HOUR}),
        ({"clock": -HOUR}, {"clock": HOUR}),
        ({"step_back": 5.0}, {"step_back": 7.0}),
    ],
    ids=["ahead", "behind", "back"],
)
def test_the_time_of_day_decides_nothing(
    make_sweep: Sweeps, launcher: dict[str, float], worker: dict[str, float]
) -> None:
    """A launcher is killed meanwhile: no run is started twice, none is reported lost."""
    sweep = make_sweep(runs=4, seconds=0.8, lease=1.5)
    settings = {"beat": 0.2, **worker}
    first = sweep.start(worker=settings, **launcher)
    until(lambda: len(sweep.rows()) >= 3)
    first.kill()
    sweep.finish_well(worker=settings, **launcher, once=True)
    for record in Registry(str(sweep.root)).records(NAME):
        assert record["state"] == "succeeded"
        assert 0 < record["wall_s"] < 60  # by the monotonic clock
    command = [sys.executable, "-m", "sweeper", "status", NAME, "--root", str(sweep.root), "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {run["state"] for run in json.loads(shown)["runs"]} == {"succeeded"}


@pytest.mark.parametrize(
    "clock", [{}, {"clock": HOUR}, {"step_back": 5.0}], ids=["right", "ahead", "back"]
)
def test_a_launcher_and_its_workers_are_killed_together(
    make_sweep: Sweeps, clock: dict[str, float]
) -> None:
    """As when a machine goes down: running runs are lost after the lease, and done again. Leases
    use the launcher's own monotonic clock: they expire, but not at once."""
    sweep = make_sweep(runs=3, seconds=0.8, lease=1.0, mode="waits")
    first = sweep.start(**clock)
    until(lambda: len({run for run, _, _ in sweep.rows()}) == 2)
    first.kill()
    for process in sweep.workers():
        process.kill()
    Path(f"{sweep.ledger}.go").touch()
    sweep.finish_well(**clock)
    events = SweepFolder(sweep.store, NAME).read_events().values()
    assert sum((1, Event.LOST) in happened for happened in events) == 2


@pytest.mark.skipif(not FAKETIME, reason="no faketime: `make faketime` installs it")
def test_clocks_that_are_set_while_all_is_at_work(make_sweep: Sweeps) -> None:
    """faketime sets the clocks of a real launcher, which is killed meanwhile, and of real workers.
    Files have the kernel's time, as files of a remote store have the store's. No run may get a
    wrong state."""
    launch = {"timeout": "60s", "env": {"LD_PRELOAD": ""}}
    # The lease is longer than a busy machine delays a worker, and shorter than most clock changes.
    sweep = make_sweep(runs=3, seconds=1.2, lease=20.0, launch=launch, mode="holds-2")
    files = [sweep.folder / "launcher.time", sweep.folder / "workers.time"]
    through = ["env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={files[0]}"]
    through += ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"]
    settings = [itertools.cycle(OF_THE_LAUNCHER), itertools.cycle(OF_WORKERS)]
    shown_states: set[str] = set()

    def set_clocks() -> None:
        for file, setting in zip(files, settings, strict=True):
            # Atomically: while a file is empty, the clock has the right time.
            fresh = file.with_suffix(".new")
            fresh.write_text(f"{next(setting)}\n")
            fresh.replace(file)
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        shown_states.update(re.findall(r"\((\w+)", shown), re.findall(r"-\d+s", shown))

    command = [sys.executable, "-m", "sweeper", "status", NAME, "--root", str(sweep.root)]
    for file in files:
        file.write_text("+0\n")
    options = {"fork": False, "through": through, "workers_time": str(files[1])}
    first = sweep.start(**options)
    until(lambda: len(sweep.rows()) >= 2)
    set_clocks()
    Path(f"{sweep.ledger}.go").touch()  # no run has ended before that
    first.kill()
    second = sweep.start(**options)
    while second.poll() is None:
        set_clocks()
    assert second.code == 0, sweep.log.read_text()
    sweep.rest()
    assert sweep.verdict(once=True).good
    assert not shown_states & {"stale", "stalled", "paused", "unreachable"}
    assert not [duration for duration in shown_states if duration.startswith("-")]
    assert read_alarms(sweep.sweep_folder) == []
    years = set[str]()
    for record in Registry(str(sweep.root)).records(NAME):
        assert record["state"] == "succeeded"
        assert 0 < record["wall_s"] < 60
        years |= {record["started"][:4], record["ended"][:4]}
    assert len(years) > 1, "the clocks were never set"
