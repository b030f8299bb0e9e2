"""One sweep at several places elsewhere, its store on S3: stand-ins for Beaker and Kubernetes, with
real processes. The toy's ledger says what was really done."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import shell as shells

from sweeper.backends import open_backend
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

pytestmark = pytest.mark.e2e
HOLDS = "mode=resume:first:holds-3"


class Sweep:
    """The chaos tests' toy in a checkout, with two jobs at once at each of two places."""

    def __init__(self, shell: Any, places: dict[str, Any]) -> None:
        self.shell, self.places, self.root = shell, places, shell.root
        grid = yaml.safe_load((shell.folder / "grid.yaml").read_text())
        backends = [{p: {**place.options(), "max_parallel": 2}} for p, place in places.items()]
        grid["launch"] = {"backends": backends, "lease": "15s", "sync": "1s", "grace": "1s"}
        (shell.folder / "grid.yaml").write_text(json.dumps(grid))

    def start(self, *given: str) -> Any:
        return self.shell.start("launch", "grid.yaml", *given, "--wait")

    def well(self, launcher: Any) -> None:
        output, errors = launcher.communicate(timeout=120)
        assert launcher.returncode == 0, output + errors

    def go_on(self) -> None:
        """Let those go on that hold."""
        Path(f"{self.shell.ledger}.go").touch()

    def where(self) -> dict[str, str]:
        """The place of each run's latest attempt."""
        runs = json.loads(self.shell.run("ls", "toys", "--json"))["runs"]
        return {run["id"]: run["backend"] for run in runs if "backend" in run}

    def job(self, place: str, run: str) -> str:
        """What the first job of a run is called at its place."""
        options, token = self.places[place].options(), f"{run}-a1"
        opened = open_backend(place, "toys", f"{self.root}/toys", options)
        return opened.find([token])[token]

    def at_step(self, step: int) -> set[str]:
        """The runs that have come to this step."""
        return {run for run, _, at in self.shell.executed() if int(at) == step}

    def until_kept(self, runs: list[str]) -> None:
        """Wait until what these are to go on from is in the store."""
        store = open_store(self.root)
        parts = [f"toys/runs/{run}.1/checkpoints.jsonl.parts" for run in runs]
        self.shell.until(lambda: all(list(store.names(path)) for path in parts))

    def events(self) -> dict[str, set[tuple[int, Event]]]:
        return SweepFolder(open_store(self.root), "toys").read_events()

    def unreachable(self) -> str:
        return str(SweepFolder(open_store(self.root), "toys").read_observations().unreachable)


@pytest.fixture
def sweep(
    tmp_path: Path,
    beaker: Any,
    kube: Any,
    s3_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Sweep:
    monkeypatch.setenv("SWEEPER_ROOT", s3_root)
    places = {"beaker": beaker, "kubernetes": kube}
    for place in places.values():
        aws = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        place.environment = aws
    return Sweep(shells.ShellElsewhere(tmp_path, "beaker", beaker.options(), s3_root), places)


def test_what_one_place_takes_back_goes_on_at_the_other(
    sweep: Sweep, beaker: Any, kube: Any
) -> None:
    """In both directions, from the last checkpoint; the launcher was killed before."""
    launcher = sweep.start(HOLDS)
    sweep.shell.until(lambda: len(sweep.at_step(2)) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    before = sweep.where()
    assert Counter(before.values()) == {"beaker": 2, "kubernetes": 1}
    sweep.until_kept(list(before))
    at_beaker = next(run for run, place in before.items() if place == "beaker")
    (at_kube,) = (run for run, place in before.items() if place == "kubernetes")
    beaker.preempt(sweep.job("beaker", at_beaker), 60.0)
    kube.shut_down(sweep.job("kubernetes", at_kube), 60.0)

    def taken_back() -> bool:
        events = sweep.events()
        return all((1, Event.PREEMPTED) in events[run] for run in (at_beaker, at_kube))

    # While the one is still at work at Beaker, the other finds no room there.
    sweep.shell.until(taken_back)
    launcher = sweep.start(HOLDS)

    def seen() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        again = {(at_beaker, "2"), (at_kube, "2")}
        return again <= {row[:2] for row in sweep.shell.executed()}

    sweep.shell.until(seen)
    sweep.go_on()
    sweep.well(launcher)
    sweep.shell.judge()
    assert sweep.where() == before | {at_beaker: "kubernetes", at_kube: "beaker"}
    happened = sweep.events()
    assert (1, Event.PREEMPTED) in happened[at_beaker] & happened[at_kube]
    rows = sweep.shell.executed()
    for run in (at_beaker, at_kube):
        assert min(int(step) for name, attempt, step in rows if (name, attempt) == (run, "2")) > 0


def test_a_place_that_answers_nothing_for_a_while(sweep: Sweep, beaker: Any, kube: Any) -> None:
    """For longer than a lease. What it has goes on to its end, the other place takes more, and when
    it answers again it is used again: nothing is lost, and nothing done twice."""
    launcher = sweep.start("x=[1,2,3,4,5,6,7,8]", HOLDS)
    sweep.shell.until(lambda: len(sweep.at_step(2)) == 4)
    first = sweep.where()
    assert Counter(first.values()) == {"beaker": 2, "kubernetes": 2}
    beaker.silent = kube.held = True
    sweep.shell.until(lambda: "does not answer" in sweep.unreachable())
    sweep.go_on()
    sweep.shell.until(lambda: sweep.at_step(9) == {*first})
    sweep.shell.until(lambda: Counter(sweep.where().values())["kubernetes"] == 4)
    assert Counter(sweep.where().values()) == {"beaker": 2, "kubernetes": 4}
    beaker.silent = False
    sweep.shell.until(lambda: len(sweep.at_step(9)) == 6)  # two more, at beaker
    kube.held = False
    sweep.well(launcher)
    sweep.shell.judge(once=True)
    assert Counter(sweep.where().values()) == {"beaker": 4, "kubernetes": 4}
    assert all({attempt for attempt, _ in events} == {1} for events in sweep.events().values())


def test_a_launch_while_one_place_is_away(sweep: Sweep, beaker: Any, kube: Any) -> None:
    """It starts where it can, and says so; the other place is used once it answers."""
    beaker.silent = True
    launcher = sweep.start("x=[1,2,3,4]", HOLDS)
    sweep.shell.until(lambda: len(sweep.at_step(2)) == 2)
    assert Counter(sweep.where().values()) == {"kubernetes": 2}
    sweep.shell.until(lambda: "does not answer" in sweep.unreachable())
    assert "beaker: " in sweep.shell.run("status", "toys", code=4)
    beaker.silent = False
    sweep.shell.until(lambda: len(sweep.at_step(2)) == 4)
    assert Counter(sweep.where().values()) == {"kubernetes": 2, "beaker": 2}
    sweep.go_on()
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, output + errors
    assert "beaker does not answer now and will be used once it does: " in errors
    sweep.shell.judge(once=True)


def test_a_launch_where_no_place_answers(sweep: Sweep, beaker: Any, kube: Any) -> None:
    beaker.silent = kube.silent = True
    output, errors = sweep.start().communicate(timeout=120)
    assert "beaker: " in errors and "kubernetes: " in errors, output + errors
    assert not list(open_store(sweep.root).names("toys"))
