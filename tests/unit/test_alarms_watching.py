"""Alarms of a sweep: what is read and how much of it, what is said once, what is done about it."""

import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from sweeper.alarms import alarms, names, read
from sweeper.alarms.tail import Tail
from sweeper.alarms.watcher import Seen, Watcher
from sweeper.errors import StoreError
from sweeper.states import Event, State
from sweeper.store.documents import encode, read_json
from sweeper.store.files import LocalStore, open_store
from sweeper.store.layout import Layout
from sweeper.testing import Fault, Faults, FaultyStore, Killed
from sweeper.thresholds import resolve
from sweeper.worker import machine

Scene = Any
NAN = '{"step": 1, "loss": NaN}\n'


class Folder:
    """A store with one run, whose metrics a test writes."""

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(str(root))
        self.layout = Layout("s")
        self.now = 0.0
        self.told: list[str] = []

    def write(self, text: str, attempt: int = 1) -> None:
        path = f"{self.layout.log_path('r', attempt)}/metrics.jsonl"
        self.store.append(path, text.encode())

    def tail(self, attempt: int, most: int = 10**6) -> list[tuple[Any, bool]]:
        """The steps of all rows, and whether they are copies, read so many bytes at a time."""
        tail, rows = Tail(self.store, self.layout, "r", attempt), list[tuple[Any, bool]]()
        more = True
        while more:
            fresh = tail.read(most)
            rows += [(row.get("step"), copied) for row, copied in fresh.rows]
            more = fresh.more
        return rows

    def watcher(self, **given: Any) -> Watcher:
        return Watcher(
            self.store,
            self.layout,
            resolve(given),
            set(),
            clock=lambda: self.now,
            tell=self.told.append,
            lease=60.0,
            is_command=False,
        )


@pytest.fixture
def folder(tmp_path: Path, no_sync: None) -> Folder:
    return Folder(tmp_path)


def rows(*steps: int, **more: Any) -> str:
    return "".join(json.dumps({"step": step, "loss": 1.0} | more) + "\n" for step in steps)


@pytest.mark.parametrize("most", [30, 64, 10**6])
def test_rows_come_whole_whatever_is_read_at_a_time(folder: Folder, most: int) -> None:
    folder.write(rows(0, 1, 2, 3) + '{"step": 4, "lo')
    assert folder.tail(1, most) == [(n, False) for n in range(4)]


def test_a_line_without_end_is_passed_over(folder: Folder) -> None:
    folder.write('{"step": 0, "x": "' + "x" * 500 + '"}\n' + rows(1, 2))
    assert folder.tail(1, 100) == [(1, False), (2, False)]


def test_only_what_is_new_is_read(folder: Folder) -> None:
    folder.write(rows(0, 1))
    tail = Tail(folder.store, folder.layout, "r", 1)
    assert len(tail.read(1000).rows) == 2
    assert tail.read(1000).size == 0
    folder.write(rows(2))
    fresh = tail.read(1000)
    assert [row["step"] for row, _ in fresh.rows] == [2]
    assert fresh.size == len(rows(2))
    folder.store.replace("s/runs/r.1/metrics.jsonl", rows(0).encode())
    fresh = tail.read(1000)
    assert fresh.again
    assert [row["step"] for row, _ in fresh.rows] == [0]


def test_parts_and_then_the_whole_on_a_store_that_is_elsewhere() -> None:
    store, layout = open_store(f"memory://{uuid.uuid4().hex}"), Layout("s")
    path = f"{layout.log_path('r', 1)}/metrics.jsonl"
    tail = Tail(store, layout, "r", 1)

    def steps() -> list[Any]:
        return [row["step"] for row, _ in tail.read(1000).rows]

    assert steps() == []
    store.replace(f"{path}.parts/0", rows(0, 1).encode())
    assert steps() == [0, 1]
    store.replace(f"{path}.parts/{len(rows(0, 1))}", rows(2).encode())
    assert (steps(), steps()) == ([2], [])
    store.replace(path, rows(0, 1, 2, 3).encode())
    store.remove([f"{path}.parts/0", f"{path}.parts/{len(rows(0, 1))}"])
    assert (steps(), steps()) == ([3], [])


@pytest.mark.parametrize("most", [40, 10**6])
def test_copies_of_the_attempt_before_are_marked(folder: Folder, most: int) -> None:
    folder.write(rows(0, 1) + NAN + rows(3, 4))
    folder.write(rows(0, 1) + NAN + rows(3, time=2) + rows(4), attempt=2)
    expected = [(0, True), (1, True), (1, True), (3, False), (4, False)]
    assert folder.tail(2, most) == expected


def test_an_attempt_that_began_anew_has_no_copies(folder: Folder) -> None:
    folder.write(rows(0, 1, time=1))
    folder.write(rows(0, 1, time=2), attempt=2)
    assert folder.tail(2) == [(0, False), (1, False)]


def test_what_was_copied_is_not_said_again(folder: Folder) -> None:
    folder.write(rows(0) + NAN)
    watcher = folder.watcher()
    assert [f.rule for f in watcher.look([Seen("r", 1, True)])[0]] == ["nan"]
    folder.write(rows(0) + NAN, attempt=2)
    assert watcher.look([Seen("r", 2, True)])[0] == []
    folder.write(NAN.replace("1", "2", 1), attempt=2)
    assert [f.rule for f in watcher.look([Seen("r", 2, True)])[0]] == ["nan"]
    folder.write(NAN, attempt=2)
    assert watcher.look([Seen("r", 2, True)])[0] == []


def test_an_end_is_judged_when_it_is_read(folder: Folder) -> None:
    folder.write(rows(*range(40)))
    watcher = folder.watcher()
    assert watcher.look([Seen("r", 1, False)]) == ([], {("r", 1)})
    assert watcher.look([Seen("none", 1, False)]) == ([], {("none", 1)})


def test_a_look_reads_no_more_than_it_may(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.alarms.watcher.MOST_BYTES", 2000)
    folder.write(rows(*range(200)) + NAN)
    watcher, looks, over = folder.watcher(), 0, set[tuple[str, int]]()
    found: list[str] = []
    while not over:
        new, over = watcher.look([Seen("r", 1, False)])
        found += [f.rule for f in new]
        looks += 1
    assert found == ["nan"]
    assert looks >= 3


def test_stalled_by_its_own_pace_and_never_while_paused(folder: Folder) -> None:
    watcher = folder.watcher()
    for step in range(10):
        folder.write(rows(step))
        assert watcher.look([Seen("r", 1, True)])[0] == []
        folder.now += 5
    pause = {"reason": "rate_limit", "since": "2026-01-01T00:00:00Z"}
    for second in range(0, 3000, 100):
        time = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"
        beat = {"paused": pause, "time": time}
        assert watcher.look([Seen("r", 1, True, 0.0, beat)])[0] == []
        folder.now += 100
    folder.now -= 60
    assert watcher.look([Seen("r", 1, True, 0.0, {})])[0] == []
    folder.now += 20
    found, _ = watcher.look([Seen("r", 1, True, 0.0, {})])
    assert [f.rule for f in found] == ["stalled"]
    assert found[0].evidence.bound == 50


def test_work_after_the_last_step_is_no_standstill(folder: Folder) -> None:
    watcher = folder.watcher()
    for step in range(10):
        folder.write(rows(step, progress=step / 9))
        watcher.look([Seen("r", 1, True)])
        folder.now += 2
    folder.now += 300
    assert watcher.look([Seen("r", 1, True)])[0] == []
    folder.now += 400
    assert [f.rule for f in watcher.look([Seen("r", 1, True)])[0]] == ["stalled"]


def test_a_heartbeat_may_hold_anything(folder: Folder) -> None:
    odd = {"paused": 3, "machine": [1], "host": None, "time": {}}
    assert folder.watcher().look([Seen("r", 1, True, 0.0, odd)])[0] == []
    said = {"paused": {"reason": 1}, "machine": {"disk_free_bytes": "x"}, "time": 5}
    assert folder.watcher().look([Seen("r", 1, True, 0.0, said)])[0] == []


def test_rollouts_are_read_where_there_are_some(folder: Folder) -> None:
    turn = {"ac_len": 3, "metrics": {"stop/max_tokens": 1.0}}
    for step in range(10):
        path = f"s/runs/r.1/iteration_{step:06d}/train_rollout_summaries.jsonl"
        line = json.dumps({"group_idx": 0, "total_reward": step / 10, "steps": [turn]}) + "\n"
        folder.store.append(path, line.encode())
        folder.write(rows(step))
    found, _ = folder.watcher().look([Seen("r", 1, False)])
    assert [(f.rule, f.evidence.step) for f in found] == [("truncation", 7)]


def diverging(scene: Scene, run: str, attempt: int = 1) -> None:
    text = "".join(json.dumps({"step": n, "loss": 2.0**n}) + "\n" for n in range(10))
    path = f"{scene.layout.log_path(run, attempt)}/metrics.jsonl"
    scene.store.append(path, text.encode())


def running(scene: Scene, runs: int = 1) -> None:
    scene.step()
    for run in scene.ids[:runs]:
        scene.worker(run, 1, Event.CLAIMED)
        scene.beat(run)


def with_on_alarm(scene: Scene, **sections: Any) -> None:
    plan = read_json(scene.store, scene.layout.plan)
    scene.store.replace(scene.layout.plan, encode(plan | sections))
    scene.launcher = scene.new_launcher()


def test_a_launcher_says_it_once_whoever_restarts(scene: Scene) -> None:
    running(scene)
    diverging(scene, scene.ids[0])
    summary = scene.step(2.5)
    [alarm] = alarms(scene.store, "s")
    assert (alarm.run, alarm.name, alarm.attempt) == (scene.ids[0], "x=0", 1)
    assert (alarm.rule, alarm.key, alarm.step) == ("divergence", "loss", 5)
    assert alarm.value is not None
    assert alarm.bound is not None
    assert alarm.value > alarm.bound
    assert alarm.advice
    assert summary.alarms == (f"alarm: x=0: divergence: {alarm.message}",)
    scene.launcher = scene.new_launcher()
    assert scene.step(2.5).alarms == ()
    assert alarms(scene.store, "s") == [alarm]
    assert names(scene.store, scene.layout) == [(scene.ids[0], 1, "divergence")]


def test_a_run_that_failed_for_want_of_the_service(scene: Scene) -> None:
    running(scene, 2)
    for run, line in zip(scene.ids, ("x\nerror: Connection refused\n", "bad\n"), strict=False):
        scene.log(run, line)
        scene.worker(run, 1, Event.FAILED, reason="error", code=1)
        scene.backend.end(f"{run}-a1")
    scene.step(2.5)
    scene.step(2.5)
    [alarm] = alarms(scene.store, "s")
    assert (alarm.run, alarm.rule) == (scene.ids[0], "service")
    assert alarm.message == "it has failed: error: Connection refused"


def test_a_metric_may_be_called_anything(scene: Scene) -> None:
    running(scene)
    path = f"{scene.layout.log_path(scene.ids[0], 1)}/metrics.jsonl"
    scene.store.append(path, b'{"step": 0, "a\\u001b[2J\\u0000\\n": NaN}\n')
    scene.step(2.5)
    [alarm] = alarms(scene.store, "s")
    assert alarm.key == "a?[2J??"
    assert alarm.message == "a?[2J?? is NaN at step 0"


def test_rules_that_are_off_say_nothing(scene: Scene) -> None:
    with_on_alarm(scene, alarms={"divergence": None, "spike": None})
    running(scene)
    diverging(scene, scene.ids[0])
    assert scene.step(2.5).alarms == ()


def test_what_an_attempt_wrote_last_is_judged_when_the_next_has_begun(make_scene: Any) -> None:
    scene = make_scene(1)
    run = scene.ids[0]
    running(scene)
    scene.step(2.5)
    diverging(scene, run)
    scene.worker(run, 1, Event.PREEMPTED, reason="terminated")
    scene.backend.end(f"{run}-a1")
    scene.step(0.5)
    assert scene.step(0.5).counts[State.SUBMITTED] == 1
    scene.step(2.5)
    assert [(a.attempt, a.rule) for a in alarms(scene.store, "s")] == [(1, "divergence")]


def test_the_last_look_is_after_the_last_run(make_scene: Any) -> None:
    scene = make_scene(1)
    running(scene)
    scene.step(2.5)
    diverging(scene, scene.ids[0])
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    assert scene.launcher.run().finished
    assert [a.rule for a in alarms(scene.store, "s")] == ["divergence"]


def test_on_alarm_stops_the_run_once(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": ["divergence"]})
    running(scene, 2)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    scene.step()
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])
    assert (1, Event.CANCEL) not in scene.events(scene.ids[1])
    request = read_json(scene.store, scene.layout.event(scene.ids[0], 1, Event.CANCEL))
    assert request["by"] == "the launcher, because of the alarm divergence"
    # A user who starts it again is not overruled by the alarm of the attempt before.
    scene.worker(scene.ids[0], 1, Event.CANCELLED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.launcher = scene.new_launcher()
    scene.step(2.5)
    scene.step(2.5)
    assert (2, Event.INTENT) in scene.events(scene.ids[0])
    assert (2, Event.CANCEL) not in scene.events(scene.ids[0])


def test_on_alarm_stops_the_sweep(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": "sweep", "run": None, "rules": None})
    running(scene, 2)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    for run in scene.ids:
        assert (1, Event.CANCEL) in scene.events(run)


def test_on_alarm_not_asked_for_by_that_rule(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": "sweep", "run": None, "rules": ["nan"]})
    running(scene)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    assert alarms(scene.store, "s")[0].actions == ()
    assert (1, Event.CANCEL) not in scene.events(scene.ids[0])


def test_what_an_alarm_set_off_is_taken_up_by_the_next_launcher(scene: Scene) -> None:
    """The launcher is killed between the alarm and what it sets off."""
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    scene.launcher._alarming._reactions.add = lambda alarm: None  # killed just there
    scene.step(2.5)
    assert (1, Event.CANCEL) not in scene.events(scene.ids[0])
    scene.launcher = scene.new_launcher()
    scene.step(2.5)
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])


def test_a_command_that_does_not_start_is_told(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": None, "run": ["/no/such"], "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    assert any("/no/such" in line and "did not start" in line for line in scene.step(2.5).alarms)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
def test_a_store_that_fails_delays_an_alarm_and_ends_no_loop(scene: Scene, fault: Fault) -> None:
    running(scene)
    diverging(scene, scene.ids[0])
    struck: list[str] = []

    def choose(_: int, what: str) -> Fault | None:
        if "/alarms/" in what and what not in struck and what.startswith("store.create"):
            struck.append(what)
            return fault
        return None

    alarming = scene.launcher._alarming
    alarming._store = FaultyStore(scene.store, Faults(choose))
    scene.step(2.5)
    assert struck
    assert len(scene.step(2.5).alarms) == 1
    assert len(alarms(scene.store, "s")) == 1


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
def test_a_launcher_may_be_killed_at_any_call(make_scene: Any, fault: Fault) -> None:
    """Whatever was done by then, in the end it was said once and the run was stopped."""
    scene = make_scene(1)
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    calls = 1
    while calls < 100:
        faults = Faults({calls: fault})
        alarming = scene.launcher._alarming
        for part in (alarming, alarming._reactions, alarming._watcher):
            part._store = FaultyStore(scene.store, faults)
        try:
            scene.step(2.5)
            break
        except Killed:
            scene.launcher = scene.new_launcher()
            calls += 1
    assert 5 < calls < 100
    assert [a.rule for a in alarms(scene.store, "s")] == ["divergence"]
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])
    action = read_json(scene.store, scene.layout.action(scene.ids[0], 1, "divergence"))
    assert action["actions"] == ["stop run"]


def test_a_broken_rule_is_told_and_ends_no_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr("sweeper.alarms.history.History.add", broken)
    running(scene)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    assert scene.step(2.5).alarms == ("alarms: ZeroDivisionError: x",)
    assert scene.states()[0] is State.RUNNING


def test_a_low_disk_is_said_once_for_a_machine(scene: Scene) -> None:
    running(scene, 2)
    for run in scene.ids[:2]:
        scene.beat(run, host="node7", machine={"disk_free_bytes": 10**8}, pid=1)
    scene.step(2.5)
    [alarm] = alarms(scene.store, "s")
    assert (alarm.rule, alarm.key) == ("disk", "disk_free_bytes")
    assert "node7" in alarm.message


def test_paused_is_observed_and_is_not_stalled(scene: Scene) -> None:
    running(scene)
    path = f"{scene.layout.log_path(scene.ids[0], 1)}/metrics.jsonl"
    for step in range(3):
        scene.store.append(path, rows(step).encode())
        scene.beat(scene.ids[0])
        scene.step(2.5)
    pause = {"reason": "rate_limit", "since": "2026-01-01T12:00:03Z"}
    for _ in range(4):
        scene.beat(scene.ids[0], paused=pause, time="2026-01-01T12:01:00Z")
        scene.step(50)
    said = scene.observed()["observed"][scene.ids[0]]
    assert said == "paused: rate limit since 12:00:03Z"
    assert alarms(scene.store, "s") == []


def test_records_are_read_once_where_the_caller_remembers(folder: Folder) -> None:
    from sweeper.alarms.records import Alarm, put

    alarm = Alarm("r", "a/b", 2, "nan", "2026-01-01T00:00:00Z", "x", 3, math.inf, None, "m", "a")
    assert put(folder.store, folder.layout, alarm)
    assert not put(folder.store, folder.layout, alarm)
    known: dict[str, Alarm] = {}
    assert read(folder.store, folder.layout, known) == [alarm]
    os.truncate(f"{folder.store.root}/s/alarms/r.2.nan.json", 0)
    assert read(folder.store, folder.layout, known) == [alarm]
    assert read(folder.store, folder.layout) == []  # damaged, and passed over
    folder.store.append("s/alarms/stray.json", b"{}")
    assert names(folder.store, folder.layout) == [("r", 2, "nan")]


def test_a_launcher_that_only_stops_runs_raises_no_alarm(scene: Scene) -> None:
    running(scene)
    diverging(scene, scene.ids[0])
    scene.launcher = scene.new_launcher(starting=False)
    assert scene.step(2.5).alarms == ()


def test_what_is_left_of_a_machine(tmp_path: Path) -> None:
    found = machine.facts(str(tmp_path))
    assert 0 < found["disk_free_bytes"] <= found["disk_total_bytes"]
    assert 0 < found["memory_free_bytes"] <= found["memory_total_bytes"]
    assert "disk_free_bytes" not in machine.facts(str(tmp_path / "none"))
    (tmp_path / "job/step").mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/x\n0::/job/step\n")
    for name, limit, used in (("job", "1000", "700"), ("job/step", "max", "600")):
        (tmp_path / name / "memory.max").write_text(limit + "\n")
        (tmp_path / name / "memory.current").write_text(used + "\n")
        (tmp_path / name / "memory.stat").write_text("anon 5\ninactive_file 50\n")
    assert machine._container(str(tmp_path), str(tmp_path / "own")) == (350, 1000)
    (tmp_path / "own").write_text("0::/elsewhere\n")
    assert machine._container(str(tmp_path), str(tmp_path / "own")) is None


def test_a_store_error_in_the_listing_is_asked_again(scene: Scene) -> None:
    running(scene)
    diverging(scene, scene.ids[0])

    class Down:
        def __getattr__(self, name: str) -> Any:
            raise StoreError("down")

    alarming = scene.launcher._alarming
    store, alarming._store = alarming._store, Down()
    assert scene.step(2.5).alarms == ()
    alarming._store = store
    assert len(scene.step(2.5).alarms) == 1
