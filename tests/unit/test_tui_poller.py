"""`sweeper watch`: from a store to the view."""

import os
import time
from contextlib import ExitStack
from typing import Any

import pytest

from sweeper.errors import NotFound, StoreError
from sweeper.results.status import NOBODY
from sweeper.store.documents import encode, read_json
from sweeper.sweep.lock import holding_sweep
from sweeper.sweep.states import Event
from sweeper.tui.model import RunView
from sweeper.tui.render import head_lines
from sweeper.tui.run_views import by_our_clock
from sweeper.tui.text import UNICODE, joined

Watched = Any


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
    view = watched.poller.check()
    watched.now += 1.0
    assert watched.poller.check() is view
    watched.rows(first, 3)
    after = watched.poller.check()
    assert after is not view and after.runs[1] is view.runs[1]


def test_runs_are_shown_as_silent_or_waiting(watched: Watched) -> None:
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
    assert watched.poller.check().counts["waiting"] == 1
    assert watched.run(seconds=100.0).shown_state == "silent"  # it may no longer wait
    watched.scene.beat(first, more=2, paused=None)
    assert watched.run().shown_state == "running"


def test_times_are_shown_in_the_local_zone(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first, paused={"reason": "capacity", "since": "2026-11-21T12:01:03Z"})
    alarm = {"schema": 1, "message": "waits since 2020-12-31T23:01:03.5Z", "time": "2026"}
    watched.scene.store.create(watched.scene.folder.alarm(first, 1, "waits"), encode(alarm))
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-2")
        time.tzset()
        run = watched.run()
        assert run.remark == "capacity since 14:01"
        assert run.alarms[0].text == "waits since 2021-01-01 01:01"
        assert by_our_clock("from 12:01:03.25Z to 12:02:03+00:00") == "from 14:01 to 14:02"
        for text in ("99:10:00Z", "12:60:00Z", "9999-12-31T23:00:00Z", "2026-02-30T00:00:00Z"):
            assert by_our_clock(text) == text
    time.tzset()


def test_a_run_is_stalled_as_long_as_its_launcher_says(watched: Watched) -> None:
    first, store = watched.scene.ids[0], watched.scene.store
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first)
    watched.rows(first, 0, 1, 2)
    launcher = ExitStack()
    launcher.enter_context(holding_sweep(watched.scene.folder))

    def observed(**words: str) -> RunView:
        kinds = {run: {"kind": kind} for run, kind in words.items()}
        store.replace(watched.scene.folder.observations, encode({"observed": kinds}))
        return watched.run(seconds=10.0)

    assert observed().shown_state == "running"
    for _ in range(2):  # it may stall again
        run = observed(**{first: "stalled"})
        assert (run.shown_state, run.eta, run.remark) == ("stalled", None, "")
        watched.rows(first, 3)
        run = observed()
        assert run.shown_state == "running" and run.eta
    observed(**{first: "stalled"})
    launcher.close()  # without a launcher it is unknown
    assert watched.run().shown_state == "running"
    with holding_sweep(watched.scene.folder):
        watched.scene.beat(first, paused={"reason": "capacity", "since": "2026-11-21T12:01:03Z"})
        assert watched.run().shown_state == "waiting"
        assert watched.run(seconds=100.0).shown_state == "silent"


def test_all_failed_runs_show_their_reason_at_once(make_watched: Any, make_scene: Any) -> None:
    watched = make_watched(make_scene(8))
    for run in watched.scene.ids:
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.scene.log(run, "boom\n")
        watched.scene.worker(run, 1, Event.FAILED, reason="error")
    assert {run.remark for run in watched.poller.check().runs} == {"error: boom"}


def test_an_unreadable_file_is_read_later(watched: Watched, unreadable: set[str]) -> None:
    first, second, third = watched.scene.ids
    for run in (first, second, third):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.rows(run, 0)
        if run != third:
            watched.scene.log(run, "boom\n")
            watched.scene.worker(run, 1, Event.FAILED, reason="error")
    watched.scene.store.remove([watched.scene.folder.log(second, 1)])
    unreadable.add(f"{first}.1")
    view = watched.poller.check()
    assert [run.last_line for run in view.runs] == ["", "", ""]
    assert [run.value for run in view.runs] == [None, 1.0, 1.0]
    assert "not for you" in view.problem and view.loading == 0
    unreadable.clear()
    watched.poller.check()
    view = watched.poller.check()
    assert [run.last_line for run in view.runs] == ["boom", "", ""]
    assert [run.value for run in view.runs] == [1.0] * 3 and not view.problem


def test_an_unreadable_outcome_does_not_show_the_earlier_one(watched: Watched) -> None:
    """It is read once it can be, even without a new event."""
    first, store = watched.scene.ids[0], watched.scene.store
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.worker(first, 1, Event.FAILED, reason="oom", detail="no memory")
    assert (watched.run().reason, watched.run().last_line) == ("oom", "no memory")
    watched.scene.worker(first, 2, Event.CLAIMED)
    path = watched.scene.folder.event(first, 2, Event.FAILED)
    store.replace(path, b"{")
    run = watched.run()
    assert (run.state, run.attempt, run.reason, run.last_line) == ("failed", 2, "", "")
    assert path in watched.poller.check().problem
    store.replace(path, encode({"schema": 1, "reason": "quota"}))
    assert watched.run().reason == "quota"
    assert not watched.poller.check().problem


def test_the_head_tells_whether_runs_are_still_to_start(watched: Watched) -> None:
    first, second, third = watched.scene.ids

    def head() -> str:
        return joined(head_lines(watched.poller.check(), UNICODE)[1])

    for run in watched.scene.ids:
        watched.scene.worker(run, 1, Event.CLAIMED)
    watched.scene.worker(first, 1, Event.SUCCEEDED, wall_s=100.0)
    watched.scene.worker(second, 1, Event.FAILED, reason="error")
    watched.scene.worker(third, 1, Event.CANCELLED)
    assert head() == "ended"
    watched.scene.worker(second, 1, Event.RETRY)
    assert head() == NOBODY
    with holding_sweep(watched.scene.folder):
        assert watched.poller.check().eta == 120.0  # includes the run that starts again
    watched.scene.worker(second, 2, Event.INTENT)
    assert head() == NOBODY
    watched.scene.worker(second, 2, Event.SUCCEEDED)
    assert head() == "ended"
    watched.scene.worker(third, 1, Event.RETRY)
    watched.scene.worker(third, 2, Event.PREEMPTED)
    assert head() == NOBODY
    plan: Any = read_json(watched.scene.store, watched.scene.folder.plan)
    plan["runs"][2]["retired"] = True
    watched.scene.store.replace(watched.scene.folder.plan, encode(plan))
    assert head() == "ended"


def test_runs_ended_by_the_quota_are_shown_as_waiting(watched: Watched) -> None:
    first, second = watched.scene.ids[:2]
    for run, reason in ((first, "quota"), (second, "error")):
        watched.scene.worker(run, 1, Event.CLAIMED)
        watched.scene.log(run, "step 1\nno tokenizer there\n")
        watched.scene.worker(run, 1, Event.FAILED, reason=reason)
    assert watched.run().shown_state == "failed"  # no retry is requested
    watched.scene.store.create(watched.scene.folder.event(first, 1, Event.RETRY), b"{}")
    run = watched.run()
    assert (run.state, run.shown_state) == ("failed", "waiting")
    assert run.remark == "quota: to start again"
    run = watched.poller.check().runs[1]
    assert (run.shown_state, run.remark) == ("failed", "error: no tokenizer there")
    watched.scene.store.create(watched.scene.folder.event(second, 1, Event.RETRY), b"{}")
    assert watched.run(1).remark == "to start again; error: no tokenizer there"


def test_an_unreadable_store_keeps_the_last_view(scene: Any, make_watched: Any) -> None:
    gone: list[str] = []

    def fail(call: str) -> None:
        if gone:
            raise StoreError("the disk is gone")

    watched = make_watched(scene, scene.at(fail))
    watched.run()
    gone.append("s")
    view = watched.poller.check()
    assert view.problem == "the disk is gone" and len(view.runs) == 3


def test_the_view_tells_whether_a_launcher_runs(watched: Watched) -> None:
    watched.scene.step()
    with holding_sweep(watched.scene.folder):
        assert watched.poller.check().launcher
    view = watched.poller.check()
    assert not view.launcher and view.eta is None


def test_a_remote_view_misses_no_row(make_watched: Any, scene: Any) -> None:
    first, second = scene.ids[:2]
    watched = make_watched(scene, scene.at(None, remote=True))
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.rows(first, 0)
    assert watched.run().step == 0
    watched.rows(first, 1)
    assert watched.run().step == 1
    watched.rows(first, 2)
    watched.scene.worker(second, 1, Event.CLAIMED)
    assert [watched.run().step for _ in range(2)] == [2, 2]


def test_recorded_alarms_are_shown(watched: Watched) -> None:
    first, folder = watched.scene.ids[0], watched.scene.folder
    body = {"schema": 1, "message": "loss is NaN", "advice": "lower it", "time": "2026"}
    watched.scene.store.create(folder.alarm(first, 1, "nan"), encode(body))
    (alarm,) = watched.run().alarms
    assert alarm == ("nan", "loss is NaN; lower it")


def test_a_removed_sweep_is_reported(watched: Watched) -> None:
    watched.run()
    os.remove(watched.scene.store.local_path(watched.scene.folder.plan))
    for _ in range(2):  # each time
        with pytest.raises(NotFound):
            watched.poller.check()


def test_a_changed_plan_is_read_again(watched: Watched) -> None:
    watched.run()
    plan: Any = read_json(watched.scene.store, watched.scene.folder.plan)
    plan["runs"].append(plan["runs"][0] | {"id": "f" * 12, "name": "x=new"})
    watched.scene.store.replace(watched.scene.folder.plan, encode(plan))
    assert [run.name for run in watched.poller.check().runs][-1] == "x=new"
