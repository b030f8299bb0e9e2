"""What a launcher shows while it runs: in windows of its backend, and line by line."""

from collections.abc import Callable
from typing import Any

import pytest

from sweeper.commands.status import changes, describe, fitted
from sweeper.sweep.folder import token
from sweeper.sweep.states import Event


@pytest.fixture
def running(make_scene: Callable[..., Any]) -> Any:
    """Return a scene of three runs, two at once; `run_steps` runs its launcher for some steps."""
    scene = make_scene(3)

    left = [0]

    def sleep(seconds: float) -> None:
        scene.clock.sleep(seconds)
        left[0] -= 1
        if left[0] <= 0:
            raise InterruptedError

    def step(count: int = 3) -> None:
        left[0] = count
        with pytest.raises(InterruptedError):
            scene.scheduler.run()

    def launch(*about: Any, **options: Any) -> None:
        scene.scheduler = scene.new_scheduler(*about, sleep=sleep, **options)

    scene.run_steps, scene.launch = step, launch
    launch()
    return scene


def test_a_backend_is_shown_only_changes(running: Any) -> None:
    scene, first = running, token(running.ids[0], 1)
    scene.run_steps()
    ((status, words),) = scene.backend.shown
    assert status.endswith("0/3 succeeded, 2 submitted, 1 to start")
    assert words == {first: "submitted", token(scene.ids[1], 1): "submitted"}
    scene.run_steps(6)
    assert len(scene.backend.shown) == 1  # nothing new
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.beat(scene.ids[0])
    scene.run_steps()
    assert scene.backend.shown[-1][1] == {first: "running"}
    scene.beat(scene.ids[0], paused={"reason": "rate limit", "since": "now"})
    scene.run_steps()
    assert scene.backend.shown[-1][1][first].startswith("paused: ")
    scene.finish(scene.ids[1])
    scene.run_steps()
    assert scene.backend.shown[-1][1] == {token(scene.ids[1], 1): "succeeded"}


def test_what_an_unreachable_backend_missed_is_shown_later(running: Any) -> None:
    scene = running
    scene.run_steps()
    scene.backend.shown.clear()
    scene.worker(scene.ids[0], 1, Event.CLAIMED)
    scene.backend.reachable = False
    scene.run_steps(2)
    assert scene.backend.shown == []
    scene.backend.reachable = True
    scene.run_steps()
    assert scene.backend.shown[-1][1] == {token(scene.ids[0], 1): "running"}


def _run(
    state: str, attempts: int = 1, reason: str | None = None, observed: str | None = None
) -> Any:
    return {"state": state, "attempts": attempts, "reason": reason, "observed": observed}


def test_only_changes_are_printed() -> None:
    seen: Any = {"launcher": True, "held": None, "limit": None, "unreachable": None}
    slowed = {"limit": 2, "limit_why": "the service delays runs"}
    before = {"a": _run("running"), "b": _run("running")}
    assert not changes(before, dict(before), seen, seen)
    after = {"a": _run("running"), "b": _run("failed", reason="oom"), "c": _run("planned", 0)}
    shown = changes(before, after, seen, seen | slowed | {"held": "all fail alike"})
    assert [run for run, _, _ in shown.runs] == ["b", "c"]
    assert shown.sentences == [
        "at most 2 at once: the service delays runs",
        "held: all fail alike",
    ]
    assert changes(before, before, seen | slowed, seen).sentences == [
        "the limit of the grid applies again"
    ]
    assert changes(before, before, seen, seen | {"launcher": False}).sentences == [
        "no launcher is running: no runs are started until `sweeper resume`"
    ]


def test_states_are_described_in_words() -> None:
    assert describe(None, _run("running")) == "running"
    assert describe(_run("failed"), _run("running", 2)) == "running (attempt 2)"
    assert describe(_run("running"), _run("failed", reason="oom")) == "failed (oom)"
    paused = _run("running", 2, observed="paused: 429")
    assert describe(_run("running", 2), paused) == "running: paused: 429"


def test_a_full_disk_of_the_log_does_not_end_the_launcher(running: Any) -> None:

    def refuse(_: object) -> None:
        raise OSError(28, "No space left on device")

    running.launch(notify=refuse)
    running.run_steps()
    assert len(running.backend.submitted) == 2


@pytest.mark.parametrize("doing", ["alarms", "ending"])
def test_a_retry_while_the_launcher_ends_is_taken_up(running: Any, doing: str) -> None:
    """The last alarms and uploads may take minutes, and the launcher still owns the sweep."""
    scene = running
    times: list[bool] = []

    def finishing() -> None:
        times.append(True)
        if len(times) == 1:
            scene.worker(scene.ids[0], 1, Event.RETRY)

    def last_look(call: str) -> None:
        """Call `finishing` when the launcher records its last look for alarms."""
        if call == f"store.replace {scene.folder.judged}" and not times:
            finishing()

    if doing == "alarms":
        scene.launch(last_look)
    else:
        scene.launch(ending=finishing)
    scene.run_steps()
    for run in scene.ids[:2]:
        scene.finish(run, 1, Event.FAILED, reason="error", code=1)
    scene.run_steps()
    scene.finish(scene.ids[2])
    scene.run_steps(20)
    assert len(times) == 1
    assert token(scene.ids[0], 2) in scene.backend.submitted


def test_a_table_is_cut_to_fit_the_screen() -> None:
    table = [f"\x1b[1mx={n}\x1b[0m running" for n in range(9)]
    below = ["", "many: 9 running", "held: " + "why " * 4, "alarm: x=1: " + "nan " * 20]
    whole = fitted([*table, *below], 20, 14)
    assert whole[:9] == table  # escape sequences take no room
    rest = ["", "many: 9 running", "held: why why why wh", "y ", "alarm: x=1: nan nan "]
    assert whole[9:] == rest
    assert fitted([*table, *below], 20, 9) == [*table[:3], "...", *rest]
    for height in (1, 2, 5, 6):
        assert len(fitted([*table, *below], 20, height)) == height
    assert fitted(["\u65e5\u672c"], 2, 5) == ["\u65e5", "\u672c"]
