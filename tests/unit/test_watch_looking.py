"""`sweeper watch`: from a store to what is shown, and the arithmetic in between."""

import json
import math
import os
import random
import time
from typing import Any

import pytest
from rich.cells import cell_len, set_cell_size

from sweeper.errors import NotFound
from sweeper.metrics import Point
from sweeper.states import Event
from sweeper.store.documents import encode, read_json
from sweeper.watch.looking import Looker
from sweeper.watch.page import PageData
from sweeper.watch.reading_page import PageReader
from sweeper.watch.shapes import (
    ASCII,
    UNICODE,
    Glyphs,
    age,
    fit_middle,
    mean,
    plot,
    short,
    sparkline,
    wrap,
)
from sweeper.watch.trails import Trail
from sweeper.watch.view import (
    RunView,
    best_run,
    ranks,
    remaining,
    sweep_remaining,
    total_steps,
)


class Watched:
    """A sweep of three runs, looked at with clocks of the test's."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.now = scene, 1000.0
        plan = read_json(scene.store, scene.layout.plan)
        plan["metric"] = {"name": "loss", "goal": "minimize", "at": "last"}
        plan["recipe"]["takes"] = {"max_steps": {"default": 10}}
        scene.store.replace(scene.layout.plan, encode(plan))
        self.looker = Looker(scene.store, "s", clock=lambda: self.now, wall=lambda: 0.0)

    def rows(self, run: str, *steps: int, attempt: int = 1, **more: Any) -> None:
        lines = [json.dumps({"step": s, "loss": 1.0 / (1 + s)} | more) + "\n" for s in steps]
        path = f"{self.scene.layout.log_path(run, attempt)}/metrics.jsonl"
        self.scene.store.append(path, "".join(lines).encode())

    def run(self, number: int = 0, seconds: float = 1.0) -> RunView:
        self.now += seconds
        return self.looker.look().runs[number]


@pytest.fixture
def watched(scene: Any) -> Watched:
    return Watched(scene)


def test_a_run_from_start_to_end(watched: Watched) -> None:
    first, store = watched.scene.ids[0], watched.scene
    assert watched.run().state == "planned" and watched.run().total == 10
    store.worker(first, 1, Event.CLAIMED)
    store.beat(first)
    watched.rows(first, 0, 1)
    run = watched.run()
    assert (run.state, run.step, run.value, run.rank) == ("running", 1.0, 0.5, 1)
    assert run.fraction == 0.2 and run.curve == (1.0, 0.5)
    watched.rows(first, 2, 3)
    run = watched.run(seconds=10.0)
    assert run.step == 3.0 and run.curve == (1.0, 0.5, 1 / 3, 0.25)
    assert run.eta == 30.0  # a fifth in 10 s, and three fifths to go
    store.worker(first, 1, Event.FAILED, reason="oom")
    run = watched.run()
    assert (run.state, run.reason, run.eta, run.beat) == ("failed", "oom", None, None)
    store.worker(first, 2, Event.CLAIMED)
    watched.rows(first, 0, 1, 2, 3, 4, attempt=2)
    run = watched.run()
    assert (run.state, run.attempt, run.step) == ("running", 2, 4.0)
    assert len(run.curve) == 5
    store.worker(first, 2, Event.SUCCEEDED)
    assert watched.run().fraction == 1.0


def test_the_same_view_when_nothing_changes(watched: Watched) -> None:
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first)
    watched.rows(first, 0, 1, 2)
    for _ in range(4):
        watched.run()
    view = watched.looker.look()
    watched.now += 1.0
    assert watched.looker.look() is view
    watched.rows(first, 3)
    after = watched.looker.look()
    assert after is not view and after.runs[1] is view.runs[1]


def test_a_heartbeat_that_stops_and_a_quota(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run in (first, second):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.scene.beat(run)
    assert watched.run().beat == 0.0
    assert watched.run(seconds=40.0).beat == 40.0
    run = watched.run(seconds=60.0)
    assert (run.shown_state, run.remark) == ("silent", "no heartbeat")
    paused = {"reason": "rate_limit", "since": "2026-11-21T12:01:03Z"}
    watched.scene.beat(first, more=1, paused=paused)
    run = watched.run()
    assert (run.shown_state, run.remark) == ("waiting", "rate limit since 12:01")
    assert watched.looker.look().counts["waiting"] == 1
    assert watched.run(seconds=100.0).shown_state == "silent"  # who knows whether it still waits
    watched.scene.beat(first, more=2, paused=None)
    assert watched.run().shown_state == "running"


def test_a_clock_of_this_place(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first, paused={"reason": "capacity", "since": "2026-11-21T12:01:03Z"})
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-2")
        time.tzset()
        assert watched.run().remark == "capacity since 14:01"
    time.tzset()


def test_a_run_stalls_until_its_next_step(watched: Watched) -> None:
    first, layout = watched.scene.ids[0], watched.scene.layout
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first)
    watched.rows(first, 0, 1, 2)
    assert watched.run().shown_state == "running"
    body = {"schema": 1, "message": "no step", "time": "2026", "step": 2}
    watched.scene.store.create(layout.alarm(first, 1, "stalled"), encode(body))
    run = watched.run(seconds=10.0)
    assert (run.shown_state, run.eta) == ("stalled", None)
    watched.rows(first, 3)
    run = watched.run(seconds=10.0)
    assert run.shown_state == "running" and run.alarms and run.eta


def test_what_the_quota_ended_waits_and_what_failed_says_why(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run, reason in ((first, "quota"), (second, "error")):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.scene.log(run, "step 1\nno tokenizer there\n")
        watched.scene.worker(run, 1, Event.FAILED, reason=reason)
    assert watched.run().shown_state == "failed"  # nobody starts it again
    watched.scene.store.create(watched.scene.layout.event(first, 1, Event.RETRY), b"{}")
    run = watched.run()
    assert (run.state, run.shown_state) == ("failed", "waiting")
    assert run.remark == "quota: to start again"
    run = watched.looker.look().runs[1]
    assert (run.shown_state, run.remark) == ("failed", "error: no tokenizer there")
    watched.scene.store.create(watched.scene.layout.event(second, 1, Event.RETRY), b"{}")
    assert watched.run(1).remark == "to start again; error: no tokenizer there"


def test_what_cannot_be_read_is_said_and_the_rest_stays(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.run()
    from sweeper.errors import StoreError

    def fails(*_: object) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr("sweeper.watch.looking.is_held", fails)
    view = watched.looker.look()
    assert view.problem == "the disk is gone" and len(view.runs) == 3


def test_the_launchers_observations_count_while_it_is_at_work(watched: Watched) -> None:
    watched.scene.step()
    from sweeper.store.lock import holding_sweep

    with holding_sweep(watched.scene.store, "s"):
        assert watched.looker.look().launcher
    view = watched.looker.look()
    assert not view.launcher and view.eta is None


def test_alarms_on_record(watched: Watched) -> None:
    first, layout = watched.scene.ids[0], watched.scene.layout
    body = {"schema": 1, "message": "loss is NaN", "advice": "lower it", "time": "2026"}
    watched.scene.store.create(layout.alarm(first, 1, "nan"), encode(body))
    (alarm,) = watched.run().alarms
    assert alarm == ("nan", "loss is NaN; lower it", None)


def test_a_page_reads_what_was_added(watched: Watched) -> None:
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.rows(first, 0, 1, note="text")
    watched.scene.log(first, "one\ntwo\n")
    watched.run()
    reader = PageReader(watched.looker.run(first), "loss", watched.looker.run)
    page = reader.read()
    assert isinstance(page, PageData) and list(page.curves) == ["loss"]
    assert page.log == ("one", "two") and reader.read() is page
    watched.rows(first, 2)
    watched.scene.log(first, "three\n")
    page = reader.read()
    assert page.curves["loss"] == ((0.0, 1.0), (1.0, 0.5), (2.0, 1 / 3))
    assert page.log[-1] == "three"


def test_a_page_has_the_curves_of_the_best_of_the_others(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run, steps in ((first, (0, 1)), (second, (0, 1, 2))):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.rows(run, *steps)
    watched.run()
    reader = PageReader(watched.looker.run(first), "loss", watched.looker.run)
    best = best_run(watched.looker.look().runs, first)
    page = reader.read(best)
    assert (page.best, page.best_curves["loss"][-1]) == (second, (2.0, 1 / 3))
    assert reader.read(best) is page
    watched.rows(second, 3)
    page = reader.read(best)
    assert page.best_curves["loss"][-1] == (3.0, 0.25) and len(page.curves["loss"]) == 2
    assert not reader.read(None).best_curves


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_ranks(goal: str) -> None:
    values = {"a": 1.0, "b": math.nan, "c": None, "d": 3.0, "e": 1.0, "f": math.inf}
    expected = {"a": 1, "e": 1, "d": 3} if goal == "minimize" else {"d": 1, "a": 2, "e": 2}
    assert ranks(values, goal) == expected


def test_times_to_the_end() -> None:
    assert remaining(0.5, None, 0.0, 10.0) == 10.0
    assert remaining(0.5, (0.0, 0.25), None, 10.0) == 20.0
    assert remaining(0.5, (9.0, 0.5), None, 10.0) is None
    assert remaining(None, None, 0.0, 10.0) is None
    assert remaining(1.0, None, 0.0, 10.0) == 0.0
    assert sweep_remaining([10.0, 20.0], 3, 30.0, 2) == 70.0  # 10+30+30, 20+30
    assert sweep_remaining([10.0, None], 0, 30.0, 2) == 30.0
    assert sweep_remaining([], 3, None, 2) is None
    assert sweep_remaining([None], 3, None, 2) is None
    assert sweep_remaining([10.0, 20.0, 30.0], 1, 10.0, 1) == 40.0  # fewer are allowed by now
    assert sweep_remaining([], 0, None, 2) == 0.0


def test_how_many_steps_there_are_to_be() -> None:
    assert total_steps({"max_steps": 5}, {"max_steps": 9}) == 5
    assert total_steps({}, {"max_steps": 9}) == 9
    assert total_steps({"max_steps": True, "n_batches": 3}, {}) == 3
    assert total_steps({"max_steps": math.inf}, {}) is None
    assert total_steps({"max_steps": "many"}, {}) is None


@pytest.mark.parametrize(("at", "expected"), [("last", 0.001), ("best", 0.0005)])
def test_a_long_trail_is_thinned_out(at: str, expected: float) -> None:
    trail = Trail("x", "minimize", at)
    rows = [{"step": n, "x": 0.0005 if n == 1234 else 0.001 + (9999 - n)} for n in range(10000)]
    trail.add(rows)
    assert len(trail.points) <= 514 and trail.points[-1] == (9999, 0.001)
    assert trail.value == expected
    trail.add([{"step": 9999, "x": 7.0}, {"step": 3, "x": -1.0}])
    assert trail.points[-1] == (9999, 7.0)


def test_a_trail_takes_anything() -> None:
    trail = Trail("x")
    trail.load([Point(None, math.nan)], {"step": "no", "progress/done_frac": 7})
    trail.add([{"x": True}, {"x": None}, {"x": 10**400}, {}])
    assert math.isinf(trail.value or 0.0) and trail.step is None and trail.done is None
    assert sparkline(trail.curve, 5, UNICODE) == "     "


def test_drawings() -> None:
    assert sparkline([0, 1, 2, 3], 4, UNICODE) == "▁▃▆█"
    assert sparkline([1, 1], 3, UNICODE) == "▃▃ "
    assert sparkline([0, math.nan, 2], 3, UNICODE) == "▁ █"
    lines = plot([(0, 0), (1, 1)], 20, 5, UNICODE)
    assert len(lines) == 5 and lines[0].startswith("1 ") and lines[3].startswith("0 ")
    assert plot([(0, math.nan)], 20, 5, UNICODE) == ["nothing finite to draw"]
    seconds = (None, 2, 59, 90, 7500, 300000)
    assert [*map(short, seconds)] == ["-", "5s", "60s", "2m", "2h05m", "3d"]
    assert [*map(age, seconds)] == ["-", "now", "45s", "1m", "2h", "3d"]
    assert fit_middle("lr=1e-4,rank=8,seed=10", 16) == "lr=1e-4,…seed=10"
    assert wrap("a long line of words", 8) == ["a long", "line of", "words"]
    assert wrap("日本語", 4) == ["日本", "語"]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_drawings_of_any_numbers(glyphs: Glyphs) -> None:
    numbers = [1.5e308, -1.5e308, 1.5e308, math.nan, math.inf, -math.inf, 5e-324, 0.0]
    for several in ([1.5e308] * 4, [0.0, 5e-324], numbers, numbers[:3]):
        for width in (1, 2, 5, 20):
            assert len(sparkline(several, width, glyphs)) == width
        assert plot([(x, x) for x in several], 40, 6, glyphs)
        assert plot([*enumerate(several)], 40, 6, glyphs)
    assert sparkline([-1.5e308, 0.0, 1.5e308], 3, ASCII) == "_+@"
    assert mean([1.5e308, 1.5e308]) == 1.5e308


def test_a_long_line_is_cut_as_a_short_one() -> None:
    def plainly(text: str, width: int) -> list[str]:
        lines: list[str] = []
        while cell_len(text) > width > 0:
            head = set_cell_size(text, width).rstrip()
            space = head.rfind(" ")
            head = head[:space] if space > width // 2 else head
            lines.append(head)
            text = text[len(head) :].lstrip()
            if not head:
                return lines
        return [*lines, text]

    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices("ab  \u65e5e\u0301\u3000", k=draw.randrange(80)))
        for width in (0, 1, 2, 5, 20):
            assert wrap(text, width) == plainly(text, width)
    begun = time.process_time()
    assert len(wrap("x" * 400_000, 80)) == 5000
    assert time.process_time() - begun < 2.0


def test_a_sweep_that_is_removed_is_said_to_be(watched: Watched) -> None:
    watched.run()
    os.remove(watched.scene.store.local_path(watched.scene.layout.plan))
    for _ in range(2):  # and not only once
        with pytest.raises(NotFound):
            watched.looker.look()


def test_a_plan_that_changes_is_read_again(watched: Watched) -> None:
    watched.run()
    plan = read_json(watched.scene.store, watched.scene.layout.plan)
    plan["runs"].append(plan["runs"][0] | {"id": "f" * 12, "name": "x=new"})
    watched.scene.store.replace(watched.scene.layout.plan, encode(plan))
    assert [run.name for run in watched.looker.look().runs][-1] == "x=new"
