"""Alarms of a sweep: the launcher raises each once and runs its actions."""

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


def end(scene: Scene, run: str, event: Event = Event.SUCCEEDED, attempt: int = 1, **body: Any):
    """End a job that has been claimed."""
    scene.worker(run, attempt, event, **body)
    scene.backend.end(f"{run}-a{attempt}")


def metrics(scene: Scene, run: str, row: bytes) -> None:
    scene.store.append(f"{scene.folder.log_path(run, 1)}/metrics.jsonl", row)


def with_on_alarm(scene: Scene, **sections: Any) -> None:
    plan: Any = read_json(scene.store, scene.folder.plan)
    scene.store.replace(scene.folder.plan, encode(plan | sections))
    scene.scheduler = scene.new_scheduler()


def killed_after_the_alarm(scene: Scene) -> None:
    """Kill the launcher between the alarm and its actions."""
    faults = Faults(
        lambda _, call: Fault.KILL_AFTER if call.startswith("store.create s/alarms/") else None
    )
    scene.scheduler = scene.new_scheduler(faults)
    with pytest.raises(Killed):
        scene.step(2.5)


def test_an_alarm_is_raised_once_across_launcher_restarts(scene):
    running(scene)
    diverging(scene, scene.ids[0])
    summary = scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.run, alarm.name, alarm.attempt) == (scene.ids[0], "x=0", 1)
    assert (alarm.rule, alarm.key, alarm.step) == ("divergence", "loss", 5)
    assert alarm.value > alarm.bound and alarm.advice
    assert summary.alarms == (f"alarm: x=0: divergence: {alarm.message}",)
    scene.scheduler = scene.new_scheduler()
    assert scene.step(2.5).alarms == ()
    assert alarms(scene.folder) == [alarm]
    assert names(scene.folder) == [(scene.ids[0], 1, "divergence")]


def test_a_run_that_lost_the_service_raises_the_service_alarm(scene):
    running(scene, 2)
    for run, line in zip(scene.ids, ("x\nerror: Connection refused\n", "bad\n"), strict=False):
        scene.log(run, line)
        end(scene, run, Event.FAILED, reason="error", code=1)
    scene.step(2.5)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.run, alarm.rule) == (scene.ids[0], "service")
    assert alarm.message == "the run has failed: Connection refused"


def test_a_run_without_its_metric_raises_an_alarm(scene):
    with_on_alarm(scene, metric={"name": "test/nl", "goal": "minimize", "at": "last"})
    running(scene, 3)
    rows = (b'{"step": 0, "loss": 1, "test/nll": 2}\n', b'{"step": 0, "test/nl": null}\n')
    for run, row in zip(scene.ids, rows, strict=False):
        metrics(scene, run, row)
    scene.step(2.5)
    assert alarms(scene.folder) == []  # the metric may come at the end
    for run in scene.ids[:3]:
        end(scene, run)
    scene.step(2.5)
    scene.step(2.5)
    by_run = {alarm.run: alarm for alarm in alarms(scene.folder)}
    assert {alarm.rule for alarm in by_run.values()} == {"metric"}
    assert {run: alarm.message for run, alarm in by_run.items()} == {
        scene.ids[0]: "no 'test/nl' was recorded; recorded: test/nll, loss",
        scene.ids[1]: "test/nl is never a number: it was recorded as null",
        scene.ids[2]: "no 'test/nl' was recorded, and no other metric",  # this run wrote no metrics
    }


def test_the_alarm_explains_a_command_without_log_path(scene):
    plan: Any = read_json(scene.store, scene.folder.plan)
    recipe = plan["recipe"] | {"kind": "command", "command": ["train.py", "{x}"]}
    metric = {"name": "loss", "goal": "minimize", "at": "last"}
    with_on_alarm(scene, metric=metric, recipe=recipe)
    running(scene)
    end(scene, scene.ids[0])
    scene.step(2.5)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert alarm.message == (
        "no 'loss' was recorded, and no other metric; the command has no {log_path}, so sweeper "
        "cannot find its metrics"
    )


def test_hostile_metric_names_are_escaped(scene):
    running(scene)
    metrics(scene, scene.ids[0], b'{"step": 0, "a\\u001b[2J\\u0000\\n": NaN}\n')
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.key, alarm.message) == ("a\\x00\\n", "a\\x00\\n is NaN at step 0")


@pytest.mark.parametrize("starting", [True, False])  # False: the launcher only stops runs
def test_rules_that_are_off_and_launchers_that_only_stop_raise_no_alarm(scene, starting):
    with_on_alarm(scene, alarms={"divergence": None, "spike": None} if starting else {})
    running(scene)
    diverging(scene, scene.ids[0])
    scene.scheduler = scene.new_scheduler(starting=starting)
    assert scene.step(2.5).alarms == ()


def test_the_last_rows_of_an_attempt_are_judged_after_the_next_began(make_scene):
    scene = make_scene(1)
    run = scene.ids[0]
    running(scene)
    scene.step(2.5)
    diverging(scene, run)
    end(scene, run, Event.PREEMPTED, reason="terminated")
    scene.step(0.5)
    assert scene.step(0.5).counts[State.SUBMITTED] == 1
    scene.step(2.5)
    assert [(a.attempt, a.rule) for a in alarms(scene.folder)] == [(1, "divergence")]


def test_the_watcher_looks_once_more_after_the_last_run(make_scene):
    scene = make_scene(1)
    running(scene)
    scene.step(2.5)
    diverging(scene, scene.ids[0])
    end(scene, scene.ids[0])
    assert scene.scheduler.run().finished
    assert [a.rule for a in alarms(scene.folder)] == ["divergence"]


def test_on_alarm_stops_the_run_once(scene):
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": ["divergence"]})
    running(scene, 2)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    scene.step()
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])
    assert (1, Event.CANCEL) not in scene.events(scene.ids[1])
    request = read_json(scene.store, scene.folder.event(scene.ids[0], 1, Event.CANCEL))
    assert request["by"] == "the launcher, because of the alarm divergence"
    # The alarm of an earlier attempt does not stop a run that the user starts again.
    end(scene, scene.ids[0], Event.CANCELLED)
    scene.worker(scene.ids[0], 1, Event.RETRY)
    scene.scheduler = scene.new_scheduler()
    scene.step(2.5)
    scene.step(2.5)
    assert (2, Event.INTENT) in scene.events(scene.ids[0])
    assert (2, Event.CANCEL) not in scene.events(scene.ids[0])


@pytest.mark.parametrize(("rules", "stopped"), [(None, True), (["nan"], False)])
def test_on_alarm_stops_the_sweep_if_its_rules_name_that_alarm(scene, rules, stopped):
    with_on_alarm(scene, on_alarm={"stop": "sweep", "run": None, "rules": rules})
    running(scene, 2)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    assert bool(alarms(scene.folder)[0].actions) == stopped
    assert {(1, Event.CANCEL) in scene.events(run) for run in scene.ids} == {stopped}


def test_the_next_launcher_finishes_the_actions_of_an_alarm(scene):
    with_on_alarm(scene, on_alarm={"stop": "run", "run": None, "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    killed_after_the_alarm(scene)
    assert (1, Event.CANCEL) not in scene.events(scene.ids[0])
    scene.scheduler = scene.new_scheduler()
    scene.step(2.5)
    assert (1, Event.CANCEL) in scene.events(scene.ids[0])


def test_an_alarm_command_removed_from_the_grid_is_not_run(scene):
    """The sweep is launched again without the command before it has started."""
    with_on_alarm(scene, on_alarm={"stop": None, "run": ["true"], "rules": None})
    running(scene)
    diverging(scene, scene.ids[0])
    killed_after_the_alarm(scene)
    with_on_alarm(scene, on_alarm=None)
    scene.step(2.5)
    action = read_json(scene.store, scene.folder.action(scene.ids[0], 1, "divergence"))
    assert action["command"] is None
    assert action["outcome"] == "not run: the grid no longer has this command"


def test_an_alarm_command_that_does_not_start_is_reported(scene):
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
        # Longer than the part that is read, which ends within the secret.
        ("printf %s $THE_KEY; head -c 16380 /dev/zero | tr '\\0' k", None),
    ],
)
def test_output_of_an_alarm_command_is_recorded_without_secrets(
    make_scene, monkeypatch, script, output
):
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
    end(scene, scene.ids[0])
    assert scene.scheduler.run().finished  # the scheduler waits for the command
    action = read_json(scene.store, scene.folder.action(scene.ids[0], 1, "divergence"))
    assert action["outcome"] == "ended with 3" + (f": {output}" if output else "")


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
def test_a_failing_store_delays_an_alarm_without_ending_the_launcher(scene, fault):
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
    assert struck and len(scene.step(2.5).alarms) == len(alarms(scene.folder)) == 1


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
def test_alarms_survive_a_launcher_killed_at_any_call(make_scene, fault):
    """In the end, the alarm was raised once and the run was stopped."""
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


def test_an_error_in_the_watcher_is_reported_and_does_not_end_the_launcher(scene):
    def broken(call: str) -> None:
        if call.startswith("store.names s/alarms"):
            raise ZeroDivisionError("x")

    scene.scheduler = scene.new_scheduler(broken)
    running(scene)
    diverging(scene, scene.ids[0])
    scene.step(2.5)
    assert scene.step(2.5).alarms == ("alarms: ZeroDivisionError: x",)
    assert scene.states()[0] is State.RUNNING


def test_a_low_disk_raises_one_alarm_per_machine(scene):
    scene.step()
    for run in scene.ids[:2]:
        scene.worker(run, 1, Event.CLAIMED, host="node7")
    full = {"disk_free_bytes": 10**8}
    scene.beat(scene.ids[0], host="node7", machine=full, pid=1)
    scene.step(2.5)
    [alarm] = alarms(scene.folder)
    assert (alarm.rule, alarm.key) == ("disk", "disk_free_bytes") and "node7" in alarm.message
    for again in (False, True):  # also with a new launcher
        scene.scheduler = scene.new_scheduler() if again else scene.scheduler
        scene.beat(scene.ids[1], host="node7", machine=full, pid=1)
        scene.step(2.5)
        assert alarms(scene.folder) == [alarm]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_low_disk_raises_an_alarm_again_for_later_attempts(make_scene, *, restarted):
    """For another run on that host, and for a retry of the same run."""
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
        end(scene, ended, Event.PREEMPTED, attempt, reason="terminated")
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


def test_a_full_disk_stops_one_run_and_not_its_successors(make_scene):
    """The same launcher stops no other run, nor do later launchers."""
    scene = make_scene(12, max_parallel=3)
    with_on_alarm(scene, on_alarm={"stop": "run"})
    full = {"disk_free_bytes": 10**8}

    def work() -> None:
        """Claim each job and send a heartbeat; end it at the next call."""
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
            end(scene, run, Event.CANCELLED if stopped else Event.SUCCEEDED, number)
        scene.step(2.5)

    for turn in range(12):
        scene.scheduler = scene.new_scheduler() if turn % 4 == 3 else scene.scheduler
        work()
    assert sorted(scene.states()) == [State.CANCELLED] + [State.SUCCEEDED] * 11
    [alarm] = alarms(scene.folder)
    # A retry withdraws the stop, so the machine raises an alarm again.
    scene.worker(alarm.run, 1, Event.RETRY)
    for _ in range(3):
        work()
    assert [a.actions for a in alarms(scene.folder)] == [("stop run",)] * 2
    assert (2, Event.CANCEL) in scene.events(alarm.run)


def test_an_alarm_that_cannot_be_stored_does_not_block_others(scene):
    def refuse(call: str) -> None:
        if call.startswith(f"store.create s/alarms/{scene.ids[0]}"):
            raise KeyError("advice")

    scene.scheduler = scene.new_scheduler(refuse)
    running(scene, 2)
    for run in scene.ids[:2]:
        diverging(scene, run)
    assert "alarms: KeyError: 'advice'" in scene.step(2.5).alarms
    assert [alarm.run for alarm in alarms(scene.folder)] == [scene.ids[1]]


def test_a_paused_run_is_not_stalled(scene):
    running(scene)
    for step in range(3):
        metrics(scene, scene.ids[0], b'{"step": %d, "loss": 1.0}\n' % step)
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
def test_the_stalled_alarm_waits_a_limited_time_for_stacks(scene, answers):
    running(scene)
    run = scene.ids[0]
    for _ in range(3):
        metrics(scene, run, b'{"step": 0, "loss": 1.0}\n')
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
    assert (alarm.stacks is not None) == answers
    if answers:
        assert alarm.stacks.startswith("Thread 0:\n  File a\n")
        assert len(alarm.stacks) <= 8000 and "\x1b" not in alarm.stacks
        assert alarm.document()["stacks"] == alarm.stacks


def test_a_run_may_stall_repeatedly_and_raises_one_alarm(scene):
    running(scene)
    run = scene.ids[0]
    pause = {"paused": {"reason": "rate_limit", "since": "2026-01-01T12:00:03Z"}}

    def seen(seconds: float, **beat: Any) -> str | None:
        scene.beat(run, **beat)
        scene.step(seconds)
        scene.step(0.5)  # each observation is published one step later
        return scene.observed()["observed"].get(run)

    for wait in (40, 2000):
        for _ in range(3):
            metrics(scene, run, b'{"step": 0, "loss": 1.0}\n')
            assert seen(3.0) is None
        assert seen(wait) == "stalled"
        scene.step(0.5)  # no check is due
        assert scene.observed()["observed"][run] == "stalled"
    assert seen(3.0, **pause) == "paused: rate limit since 12:00:03Z"
    assert [alarm.rule for alarm in alarms(scene.folder)] == ["stalled"]
    scene.worker(run, 1, Event.FAILED, reason="error")
    scene.step(0.5)
    assert run not in scene.observed()["observed"]


def test_a_failed_listing_of_alarms_is_retried(scene):
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
