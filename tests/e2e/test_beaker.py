"""Sweeps on a stand-in for Beaker (real processes), their store on S3."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper import launch
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.store.opening import open_store
from sweeper.sweep.states import Event, State

pytestmark = pytest.mark.e2e
CANARY = "tml-canary-5f0c1d2e3b4a"
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6
HOLDS = ("mode=resume:first:holds-3", "launch.grace=1s")
HELD = ("mode=resume:holds-3", "launch.grace=1s")


@pytest.fixture
def sweep(elsewhere: Callable[[str, Any], Any], beaker: Any) -> Any:
    return elsewhere("beaker", beaker)


def test_a_sweep_from_start_to_end(sweep: Any, beaker_support: Any) -> None:
    """Jobs wait, and say why; the service breaks now and then. The checkout is gone when they
    start: what they run came with them; so did a secret, whose value is nowhere else."""
    fault, shell, beaker = beaker_support.Fault, sweep.shell, sweep.service
    beaker.secrets["wandb"] = CANARY
    sweep.write("secrets: [WANDB_API_KEY]\n", secrets={"WANDB_API_KEY": "wandb"})
    told = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    sweep.grid.write_text(sweep.grid.read_text().replace("command: [", told))
    shell.environment["WANDB_API_KEY"] = "not this one"
    beaker.held = True
    beaker.faults.append(fault("ListJobs", "RESOURCE_EXHAUSTED"))  # which says why a job waits
    shell.run("launch", "grid.yaml", code=0)
    shell.until(lambda: shell.run_states() == {"submitted": 3})
    shell.until(lambda: sweep.waits_for("no room on 4 nodes"))
    assert "no room on 4 nodes" in shell.run("status", "toys", code=4)
    elsewhere = shell.folder.with_name("elsewhere")
    shell.folder.rename(elsewhere)
    shell.folder = elsewhere
    beaker.faults.append(fault("ListWorkloads", "INTERNAL"))
    beaker.held = False
    shell.until(lambda: shell.run_states() == {"succeeded": 3})
    sweep.shell.judge(once=True)
    (run, *_) = sweep.shell.runs()
    printed = "\n".join(sweep.backend().logs(f"{run.id}-a1"))
    assert "attempt 1, in" in printed
    shown = beaker.shown()
    assert '"secret": "wandb"' in shown and CANARY not in shown + printed
    store = open_store(sweep.root)
    kept = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in kept)
    assert not any(CANARY.encode() in data for data in kept)


def test_what_is_submitted_was_in_the_plan(sweep: Any) -> None:
    """But for the sweep's identity, which a launch makes."""
    shell, beaker = sweep.shell, sweep.service
    planned = shell.manifests()
    assert len(planned) == 3
    beaker.held = True
    shell.run("launch", "grid.yaml", code=0)
    shell.until(lambda: shell.run_states() == {"submitted": 3})
    there = {one.task["command"][-1]: one.spec for one in beaker.going.values()}
    for spec in planned:
        known = there[spec["tasks"][0]["command"][-1]]
        identity = known["description"].partition(":")[0].removeprefix("sweeper ")
        assert identity != "made-at-launch"
        told = spec["description"].replace("made-at-launch", identity)
        assert known == spec | {"description": told}
    shell.run("cancel", "toys")
    shell.until(lambda: shell.run_states() == {"cancelled": 3})


@pytest.mark.timeout(600)
def test_whatever_is_killed_or_lost(sweep: Any, beaker_support: Any) -> None:
    """One job is preempted, another's node is lost, and the answer to what follows as well; the
    launcher is killed, and nothing answers for longer than a lease."""
    fault, shell, beaker = beaker_support.Fault, sweep.shell, sweep.service
    launcher = sweep.start(*HELD)
    shell.until(lambda: sweep.at_step(2) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    ids, store = [run.id for run in sweep.shell.runs()], open_store(sweep.root)
    parts = [f"toys/runs/{run}.1/checkpoints.jsonl.parts" for run in ids]
    shell.until(lambda: all(list(store.names(path)) for path in parts))
    preempted, lost, _ = ids
    experiments = sweep.backend().find([f"{run}-a1" for run in ids])
    beaker.silent = True
    launcher = sweep.start(*HELD)  # which waits for its service
    output, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 6 and "does not answer" in errors, output + errors
    beaker.silent = False
    beaker.faults += [fault("create", 500, after=True), fault("create", 0, after=True)]
    beaker.preempt(experiments[f"{preempted}-a1"], 20.0)
    node = beaker.lose(experiments[f"{lost}-a1"])
    launcher = sweep.start(*HELD)

    def seen() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        events = sweep.events()
        return all((2, Event.CLAIMED) in events[run] for run in (preempted, lost))

    shell.until(seen)
    node.alive = True
    shell.until(lambda: set(shell.run_states()) == {"running"})
    beaker.silent = True
    shell.wait_out_a_lease()
    beaker.silent = False
    Path(f"{shell.ledger}.go").touch()
    sweep.well(launcher)
    sweep.shell.judge()
    happened = sweep.events()
    assert (1, Event.PREEMPTED) in happened[preempted] & happened[lost]
    assert not any(event is Event.FAILED for events in happened.values() for _, event in events)
    assert min(int(s) for r, a, s in shell.executed() if (r, a) == (lost, "2")) > 0


def test_many_quick_runs(sweep: Any) -> None:
    """And a launcher that is killed among them."""
    values = json.dumps(list(range(MANY)))
    given = (f"x={values}", "seconds=0.01", "launch.max_parallel=30")
    launcher = sweep.start(*given)
    sweep.shell.until(lambda: sweep.at_step(9) > MANY // 20)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    begun = time.monotonic()
    sweep.well(sweep.start(*given), 1200)
    print(f"{MANY} runs, the last after {time.monotonic() - begun:.0f} s")
    sweep.shell.judge(once=True)
    made = sweep.service.requests.count("create")
    assert made <= MANY + 31  # what was submitted twice was known


def test_what_waits_is_cancelled(sweep: Any) -> None:
    launcher = sweep.start("~x", "launch.beaker.hostnames=[n0.lab.org]", "launch.beaker.cpus=1000")
    sweep.shell.until(lambda: sweep.waits_for("no room"))
    assert "1 cancelled" in sweep.shell.run("cancel", "toys")
    launcher.communicate(timeout=120)
    assert launcher.returncode == 3
    (run,) = sweep.shell.runs()
    going = list(sweep.service.going.values())  # which the service changes meanwhile
    assert not [one for one in going if run.id in one.message.experiment.name]
    sweep.shell.judge(expected={run.id: State.CANCELLED})


def test_what_never_began_has_told_why(sweep: Any) -> None:
    """`logs`, and `logs -f`, have what Beaker has kept of a job whose worker never began."""
    sweep.write(python="/bin/false-python", docker_image="registry/sweeper:1", image=None)
    launcher = sweep.start("~x", "launch.retries=0")
    launcher.communicate(timeout=200)
    assert launcher.returncode == 3
    for more in ([], ["-f"]):
        assert "failed to start" in sweep.shell.run("logs", "toys", *more)


def test_what_is_refused(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is on record; what the service refuses is in
    `tests/contract/test_beaker.py`."""
    monkeypatch.chdir(sweep.shell.folder)

    def refused(match: str, more: str = "", error: Any = UsageError, **how: Any) -> None:
        options = how.pop("options", {})
        sweep.write(more, **options)
        with pytest.raises(error, match=match) as caught:
            launch(str(sweep.grid), **how)
        assert "\n" not in str(caught.value)
        assert not list(open_store(sweep.root).names("toys"))

    refused("its jobs cannot read the folder", root=str(sweep.shell.folder / "sweeps"))
    refused("--live does not work", live=True)
    refused("no image is given", options={"image": None})
    secret = "secrets: [WANDB_API_KEY]\n"
    refused(r"launch.beaker.secrets: \{WANDB_API_KEY: TINKER_API_KEY\}", secret)
    told = "the dataset lab/promts: it does not exist"
    refused(told, error=EnvironmentFailure, options={"datasets": {"/data": "lab/promts"}})


def test_the_doctor(sweep: Any) -> None:
    def told(code: int = 0) -> dict[str, Any]:
        given = ("doctor", "--backend", "beaker", "--json", "--grid", "grid.yaml")
        process = sweep.shell.start(*given)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        return {check["name"]: check for check in json.loads(output)["checks"]}

    sweep.service.secrets["keys"] = CANARY
    named = {
        "secrets": {"A": "keys"},
        "clusters": ["lab/cpu"],
        "datasets": {"/data": "lab/prompts"},
    }
    sweep.write(**named, budget="lab/everyday", priority="normal", hostnames=["n0.lab.org"])
    found = told()
    ours = ["Beaker", "workspace", "permission", "budget", "image", "priority", "cluster lab/cpu"]
    ours += ["nodes", "dataset /data", "secret A"]
    assert [name for name in ours if not found[name]["good"]] == []
    assert CANARY not in json.dumps(found)
    sweep.write(**(named | {"secrets": {"A": "other"}}), gpus=64)
    found = told(code=6)
    said = {name: check["found"] for name, check in found.items() if not check["good"]}
    assert "have 8 GPUs, but a job asks for 64" in said["cluster lab/cpu"]
    assert "has the name" in said["secret A"]
