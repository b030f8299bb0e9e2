"""Alarms of a sweep: what its launcher says once, and what it does about it."""

import json
from typing import Any

import pytest

from sweeper.alarms import alarms, names
from sweeper.backends.base import JobState
from sweeper.errors import StoreError
from sweeper.store.documents import encode, read_json
from sweeper.sweep import stacks
from sweeper.sweep.states import Event, State
from sweeper.testing import Fault, Faults, Killed

Scene = Any


def diverging(scene: Scene, run: str, attempt: int = 1) -> None:
    text = "".join(json.dumps({"step": n, "loss": 2.0**n}) + "\n" for n in range(10))
    path = f"{scene.folder.log_path(run, attempt)}/metrics.jsonl"
    scene.store.append(path, text.encode())


def running(scene: Scene, runs: int = 1) -> None:
    scene.step()
    for run in scene.ids[:runs]:
        scene.worker(run, 1, Event.CLAIMED)
        scene.beat(run)


def with_on_alarm(scene: Scene, **sections: Any) -> None:
    plan: Any = read_json(scene.store, scene.folder.plan)
    scene.store.replace(scene.folder.plan, encode(plan | sections))
    scene.scheduler = scene.new_scheduler()


def killed_after_the_alarm(scene: Scene) -> None:
    """The launcher is killed between the alarm and what it sets off."""
    faults = Faults(
        lambda _, call: Fault.KILL_AFTER if call.startswith("store.create s/alarms/") else None
    )
    scene.scheduler = scene.new_scheduler(faults)
    with pytest.raises(Killed):
        scene.step(2.5)


def test_a_launcher_says_it_once_whoever_restarts(scene: Scene) -> None:
    running(scene)
    diverging(scene, scene.ids[0])
    summary = scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.run, alarm.name, alarm.attempt) == (scene.ids[0], "x=0", 1)
    assert (alarm.rule, alarm.key, alarm.step) == ("divergence", "loss", 5)
    assert alarm.value is not None
    assert alarm.bound is not None
    assert alarm.value > alarm.bound
    assert alarm.advice
    assert summary.alarms == (f"alarm: x=0: divergence: {alarm.message}",)
    scene.scheduler = scene.new_scheduler()
    assert scene.step(2.5).alarms == ()
    assert alarms(scene.folder) == [alarm]
    assert names(scene.folder) == [(scene.ids[0], 1, "divergence")]


def test_a_run_that_failed_for_want_of_the_service(scene: Scene) -> None:
    running(scene, 2)
    for run, line in zip(scene.ids, ("x\nerror: Connection refused\n", "bad\n"), strict=False):
        scene.log(run, line)
        scene.worker(run, 1, Event.FAILED, reason="error", code=1)
        scene.backend.end(f"{run}-a1")
    scene.step(2.5)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.run, alarm.rule) == (scene.ids[0], "service")
    assert alarm.message == "it has failed: Connection refused"


def test_a_run_that_did_not_record_what_it_is_judged_by(scene: Scene) -> None:
    with_on_alarm(scene, metric={"name": "test/nl", "goal": "minimize", "at": "last"})
    running(scene, 3)
    rows = (b'{"step": 0, "loss": 1, "test/nll": 2}\n', b'{"step": 0, "test/nl": null}\n')
    for run, row in zip(scene.ids, rows, strict=False):
        scene.store.append(f"{scene.folder.log_path(run, 1)}/metrics.jsonl", row)
    scene.step(2.5)
    assert alarms(scene.folder) == []  # it may come at the end
    for run in scene.ids[:3]:
        scene.worker(run, 1, Event.SUCCEEDED)
        scene.backend.end(f"{run}-a1")
    scene.step(2.5)
    scene.step(2.5)
    by_run = {alarm.run: alarm for alarm in alarms(scene.folder)}
    assert {alarm.rule for alarm in by_run.values()} == {"metric"}
    assert {run: alarm.message for run, alarm in by_run.items()} == {
        scene.ids[0]: "no 'test/nl' was recorded; recorded: test/nll, loss",
        scene.ids[1]: "test/nl is never a number: it was recorded as null",
        scene.ids[2]: "no 'test/nl' was recorded, nor anything else",  # it wrote no metrics
    }


def test_a_command_that_is_not_given_its_folder_is_told_why_it_has_no_metrics(scene: Scene) -> None:
    plan: Any = read_json(scene.store, scene.folder.plan)
    recipe = plan["recipe"] | {"kind": "command", "command": ["train.py", "{x}"]}
    metric = {"name": "loss", "goal": "minimize", "at": "last"}
    with_on_alarm(scene, metric=metric, recipe=recipe)
    running(scene)
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    scene.step(2.5)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert alarm.message == (
        "no 'loss' was recorded, nor anything else: the command has no {log_path}: sweeper cannot"
        " find its metrics"
    )


def test_a_metric_may_be_called_anything(scene: Scene) -> None:
    running(scene)
    path = f"{scene.folder.log_path(scene.ids[0], 1)}/metrics.jsonl"
    scene.store.append(path, b'{"step": 0, "a\\u001b[2J\\u0000\\n": NaN}\n')
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert alarm.key == "a\\x00\\n"
    assert alarm.message == "a\\x00\\n is NaN at step 0"


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
    assert [(a.attempt, a.rule) for a in alarms(scene.folder)] == [(1, "divergence")]


def test_the_last_look_is_after_the_last_run(make_scene: Any) -> None:
    scene = make_scene(1)
    running(scene)
    scene.step(2.5)
    diverging(scene, scene.ids[0])
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    assert scene.scheduler.run().finished
    assert [a.rule for a in alarms(scene.folder)] == ["divergence"]


def test_on_alarm_stops_the_run_once(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": ["divergence"]})
    running(scene, 2)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    scene.step()
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])
    assert (1, Event.CANCEL) not in scene.events(scene.ids[1])
    request = read_json(scene.store, scene.folder.event(scene.ids[0], 1, Event.CANCEL))
    assert request["by"] == "the launcher, because of the alarm divergence"
    # A user who starts it again is not overruled by the alarm of the attempt before.
    scene.worker(scene.ids[0], 1, Event.CANCELLED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.scheduler = scene.new_scheduler()
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
    assert alarms(scene.folder)[0].actions == ()
    assert (1, Event.CANCEL) not in scene.events(scene.ids[0])


def test_what_an_alarm_set_off_is_taken_up_by_the_next_launcher(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    killed_after_the_alarm(scene)
    assert (1, Event.CANCEL) not in scene.events(scene.ids[0])
    scene.scheduler = scene.new_scheduler()
    scene.step(2.5)
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])


def test_a_command_that_is_no_more_does_not_go_on_for_ever(scene: Scene) -> None:
    """Launched again without it, before it was begun."""
    with_on_alarm(scene, on_alarm={"stop": None, "run": ["true"], "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    killed_after_the_alarm(scene)
    with_on_alarm(scene, on_alarm=None)
    scene.step(2.5)
    action = read_json(scene.store, scene.folder.action(scene.ids[0], 1, "divergence"))
    assert (action["command"], action["outcome"]) == (
        None,
        "not run: the grid has no such command now",
    )


def test_a_command_that_does_not_start_is_told(scene: Scene) -> None:
    with_on_alarm(scene, on_alarm={"stop": None, "run": ["/no/such"], "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    assert any("/no/such" in line and "did not start" in line for line in scene.step(2.5).alarms)


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("echo no; echo got $THE_KEY", "got ***"),
        ("echo got $THE_KEY | tr '\\n' ' '", "got ***"),
        ("echo $OWN and $PLAIN", "*** and 4321"),
        ("echo https://h/?k=$QUERY_TOKEN", "https://h/?k=***"),
        ("printf '%s' \"$LINES_SECRET\"", "***"),
        ("printf 'x\\033[2Jy\\000z\\n\\n \\n'", r"xy\x00z"),
        ("head -c 20000 /dev/zero | tr '\\0' k; echo $THE_KEY; echo; echo end", "end"),
        # More than is read of it, cut within the secret.
        ("printf %s $THE_KEY; head -c 16380 /dev/zero | tr '\\0' k", None),
    ],
)
def test_what_a_command_says_goes_on_record_without_secrets(
    make_scene: Any, monkeypatch: pytest.MonkeyPatch, script: str, output: str | None
) -> None:
    scene = make_scene(1)
    secrets = {"THE_KEY": "key-abcdefg", "OWN": "1234", "PLAIN": "4321", "QUERY_TOKEN": "a b/c+d&e"}
    for name, value in (secrets | {"LINES_SECRET": "-----BEGIN\nabcdef\nEND-----"}).items():
        monkeypatch.setenv(name, value)
    command = ["sh", "-c", f"QUERY_TOKEN=a%20b/c%2Bd%26e; {script}; exit 3"]
    with_on_alarm(
        scene, secrets=["OWN"], on_alarm={"stop": None, "run": command, "rules": ["divergence"]}
    )
    running(scene)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)
    scene.backend.end(f"{scene.ids[0]}-a1")
    assert scene.scheduler.run().finished  # it waits for the command
    action = read_json(scene.store, scene.folder.action(scene.ids[0], 1, "divergence"))
    assert action["outcome"] == "ended with 3" + (f": {output}" if output else "")


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

    scene.scheduler = scene.new_scheduler(Faults(choose))
    scene.step(2.5)
    assert struck
    assert len(scene.step(2.5).alarms) == 1
    assert len(alarms(scene.folder)) == 1


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
def test_a_launcher_may_be_killed_at_any_call(make_scene: Any, fault: Fault) -> None:
    """Whatever was done by then, in the end it was said once and the run was stopped."""
    scene = make_scene(1)
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    calls = 1
    while calls < 100:
        try:
            scene.scheduler = scene.new_scheduler(Faults({calls: fault}))
            scene.step(2.5)
            break
        except Killed:
            calls += 1
    assert 5 < calls < 100
    assert [a.rule for a in alarms(scene.folder)] == ["divergence"]
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])
    action = read_json(scene.store, scene.folder.action(scene.ids[0], 1, "divergence"))
    assert action["actions"] == ["stop run"]


def test_a_broken_look_is_told_and_ends_no_loop(scene: Scene) -> None:
    def broken(call: str) -> None:
        if call.startswith("store.names s/alarms"):
            raise ZeroDivisionError("x")

    scene.scheduler = scene.new_scheduler(broken)
    running(scene)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    assert scene.step(2.5).alarms == ("alarms: ZeroDivisionError: x",)
    assert scene.states()[0] is State.RUNNING


def test_a_low_disk_is_said_once_for_a_machine(scene: Scene) -> None:
    scene.step()
    for run in scene.ids[:2]:
        scene.worker(run, 1, Event.CLAIMED, host="node7")
    full = {"disk_free_bytes": 10**8}
    scene.beat(scene.ids[0], host="node7", machine=full, pid=1)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.rule, alarm.key) == ("disk", "disk_free_bytes")
    assert "node7" in alarm.message
    for again in (False, True):  # and once more by the next launcher
        scene.scheduler = scene.new_scheduler() if again else scene.scheduler
        scene.beat(scene.ids[1], host="node7", machine=full, pid=1)
        scene.step(2.5)
        assert alarms(scene.folder) == [alarm]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_low_disk_is_said_again_once_that_attempt_is_over(
    make_scene: Any, *, restarted: bool
) -> None:
    """Of another run there, and of the same when it is tried again: what was said of an attempt
    before is not shown of it. What is to be done about the machine was done the first time."""
    scene = make_scene(2, retries=1)
    with_on_alarm(scene, on_alarm={"run": ["/no/such"]})
    first, second = scene.ids
    full = {"disk_free_bytes": 10**8}
    scene.step()
    for run in scene.ids:
        scene.worker(run, 1, Event.CLAIMED, host="node7")
        scene.beat(run, host="node7", machine=full)
        scene.step(2.5)
    expected = {(first, 1)}
    assert {(a.run, a.attempt) for a in alarms(scene.folder)} == expected
    for ended, attempt, alarmed in ((first, 1, (second, 1)), (second, 1, (first, 2))):
        scene.worker(ended, attempt, Event.PREEMPTED, reason="terminated")
        scene.backend.end(f"{ended}-a{attempt}")
        scene.step(0.5)
        scene.scheduler = scene.new_scheduler() if restarted else scene.scheduler
        scene.step(2.5)
        scene.worker(ended, attempt + 1, Event.CLAIMED, host="node7")
        scene.beat(ended, attempt + 1, host="node7", machine=full)
        scene.step(2.5)
        lines = scene.step(2.5).alarms
        expected.add(alarmed)
        assert {(a.run, a.attempt) for a in alarms(scene.folder)} == expected
    assert lines[-1].startswith("alarm: x=0 (attempt 2): disk: 0.1 GB are free")
    acted = {(a.run, a.attempt): a.actions for a in alarms(scene.folder)}
    assert acted == dict.fromkeys(expected, ()) | {(first, 1): ("run",)}


def test_a_full_disk_stops_one_run_and_none_that_takes_its_place(make_scene: Any) -> None:
    """By the same launcher, or by one of those that follow it."""
    scene = make_scene(12, max_parallel=3)
    with_on_alarm(scene, on_alarm={"stop": "run"})
    full = {"disk_free_bytes": 10**8}

    def work() -> None:
        """Jobs are claimed, beat, and end a look later."""
        for job, status in list(scene.backend.jobs.items()):
            if status.state is JobState.ENDED:
                continue
            run, _, attempt = job.partition("-a")
            events, number = scene.events(run), int(attempt)
            if (number, Event.CLAIMED) not in events:
                scene.worker(run, number, Event.CLAIMED, host="node7")
                scene.beat(run, number, host="node7", machine=full)
                continue
            stopped = (number, Event.CANCEL) in events
            scene.worker(run, number, Event.CANCELLED if stopped else Event.SUCCEEDED)
            scene.backend.end(job)
        scene.step(2.5)

    for turn in range(12):
        scene.scheduler = scene.new_scheduler() if turn % 4 == 3 else scene.scheduler
        work()
    assert sorted(scene.states()) == [State.CANCELLED] + [State.SUCCEEDED] * 11
    [alarm] = alarms(scene.folder)
    # Whoever starts it again takes back that it was stopped: the machine is news once more.
    scene.worker(alarm.run, 1, Event.RETRY)
    for _ in range(3):
        work()
    assert [a.actions for a in alarms(scene.folder)] == [("stop run",)] * 2
    assert (2, Event.CANCEL) in scene.events(alarm.run)


def test_an_alarm_that_cannot_be_said_holds_up_no_other(scene: Scene) -> None:
    def refuse(call: str) -> None:
        if call.startswith(f"store.create s/alarms/{scene.ids[0]}"):
            raise KeyError("advice")

    scene.scheduler = scene.new_scheduler(refuse)
    running(scene, 2)
    for run in scene.ids[:2]:
        diverging(scene, run)
    assert "alarms: KeyError: 'advice'" in scene.step(2.5).alarms
    assert [alarm.run for alarm in alarms(scene.folder)] == [scene.ids[1]]


def test_paused_is_observed_and_is_not_stalled(scene: Scene) -> None:
    running(scene)
    path = f"{scene.folder.log_path(scene.ids[0], 1)}/metrics.jsonl"
    for step in range(3):
        scene.store.append(path, json.dumps({"step": step, "loss": 1.0}).encode() + b"\n")
        scene.beat(scene.ids[0])
        scene.step(2.5)
    pause = {"reason": "rate_limit", "since": "2026-01-01T12:00:03Z"}
    for _ in range(4):
        scene.beat(scene.ids[0], paused=pause, time="2026-01-01T12:01:00Z")
        scene.step(50)
    observed = scene.observed()["observed"][scene.ids[0]]
    assert observed == "paused: rate limit since 12:00:03Z"
    assert alarms(scene.folder) == []


@pytest.mark.parametrize("answers", [True, False])
def test_stalled_waits_for_the_stacks_but_not_for_ever(scene: Scene, answers: bool) -> None:
    running(scene)
    run = scene.ids[0]
    path = f"{scene.folder.log_path(run, 1)}/metrics.jsonl"
    for _ in range(3):
        scene.store.append(path, b'{"step": 0, "loss": 1.0}\n')
        scene.beat(run)
        scene.step(3.0)
    scene.beat(run)
    scene.step(40)
    scene.beat(run)
    scene.step(3.0)
    assert alarms(scene.folder) == []
    if answers:
        threads = "\n\n".join(f"Thread {n}:\n" + "  File a\n" * 50 for n in range(9))
        stacks.answer(scene.folder, run, 1, threads + "\x1b[2J" + "x" * 9000)
    for _ in range(1 if answers else 8):
        scene.beat(run)
        scene.step(3.0)
    [alarm] = alarms(scene.folder)
    if not answers:
        assert alarm.stacks is None
        return
    assert alarm.stacks is not None
    assert alarm.stacks.startswith("Thread 0:\n  File a\n")
    assert len(alarm.stacks) <= 8000
    assert "\x1b" not in alarm.stacks
    assert alarm.document()["stacks"] == alarm.stacks


def test_stalled_is_observed_as_often_as_it_is_so_and_said_once(scene: Scene) -> None:
    running(scene)
    run = scene.ids[0]
    path = f"{scene.folder.log_path(run, 1)}/metrics.jsonl"
    pause = {"paused": {"reason": "rate_limit", "since": "2026-01-01T12:00:03Z"}}

    def seen(seconds: float, **beat: Any) -> str | None:
        scene.beat(run, **beat)
        scene.step(seconds)
        scene.step(0.5)  # what is seen in a step is told in the next
        return scene.observed()["observed"].get(run)

    for wait in (40, 2000):
        for _ in range(3):
            scene.store.append(path, b'{"step": 0, "loss": 1.0}\n')
            assert seen(3.0) is None
        assert seen(wait) == "stalled"
        scene.step(0.5)  # no look is due
        assert scene.observed()["observed"][run] == "stalled"
    assert seen(3.0, **pause) == "paused: rate limit since 12:00:03Z"
    assert [alarm.rule for alarm in alarms(scene.folder)] == ["stalled"]
    scene.worker(run, 1, Event.FAILED, reason="error")
    scene.step(0.5)
    assert run not in scene.observed()["observed"]


def test_a_launcher_that_only_stops_runs_raises_no_alarm(scene: Scene) -> None:
    running(scene)
    diverging(scene, scene.ids[0])
    scene.scheduler = scene.new_scheduler(starting=False)
    assert scene.step(2.5).alarms == ()


def test_a_store_error_in_the_listing_is_asked_again(scene: Scene) -> None:
    down = [True]

    def fail(call: str) -> None:
        if down and "s/alarms" in call:
            raise StoreError("down")

    scene.scheduler = scene.new_scheduler(fail)
    running(scene)
    diverging(scene, scene.ids[0])
    assert scene.step(2.5).alarms == ()
    down.clear()
    assert len(scene.step(2.5).alarms) == 1
