"""Sweeps on a stand-in for Beaker (real processes), their store on S3."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sweeper.store.opening import open_store
from sweeper.sweep.states import State

pytestmark = pytest.mark.e2e
CANARY = "tml-canary-5f0c1d2e3b4a"


@pytest.fixture
def sweep(elsewhere: Callable[[str, Any], Any], beaker: Any) -> Any:
    return elsewhere("beaker", beaker)


def test_a_sweep_from_start_to_end(sweep: Any, beaker_support: Any) -> None:
    """Jobs wait, and say why; the service breaks now and then. The checkout is gone when they
    start: what they run came with them; so did a secret, whose value is nowhere else."""
    fault, shell, beaker = beaker_support.Fault, sweep.shell, sweep.service
    beaker.secrets["wandb"] = CANARY
    sweep.write("secrets: [WANDB_API_KEY]\n", secrets={"WANDB_API_KEY": "wandb"})
    command = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    sweep.grid.write_text(sweep.grid.read_text().replace("command: [", command))
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
    files = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in files)
    assert not any(CANARY.encode() in data for data in files)


def test_what_is_submitted_was_in_the_plan(sweep: Any) -> None:
    """But for the sweep's identity, which a launch makes."""
    shell, beaker = sweep.shell, sweep.service
    planned = shell.manifests()
    assert len(planned) == 3
    beaker.held = True
    shell.run("launch", "grid.yaml", code=0)
    shell.until(lambda: shell.run_states() == {"submitted": 3})
    there = {workload.task["command"][-1]: workload.spec for workload in beaker.going.values()}
    for spec in planned:
        submitted = there[spec["tasks"][0]["command"][-1]]
        identity = submitted["description"].partition(":")[0].removeprefix("sweeper ")
        assert identity != "made-at-launch"
        description = spec["description"].replace("made-at-launch", identity)
        assert submitted == spec | {"description": description}
    shell.run("cancel", "toys")
    shell.until(lambda: shell.run_states() == {"cancelled": 3})


def test_what_waits_is_cancelled(sweep: Any) -> None:
    launcher = sweep.start("~x", "launch.beaker.hostnames=[n0.lab.org]", "launch.beaker.cpus=1000")
    sweep.shell.until(lambda: sweep.waits_for("no room"))
    assert "1 cancelled" in sweep.shell.run("cancel", "toys")
    launcher.communicate(timeout=120)
    assert launcher.returncode == 3
    (run,) = sweep.shell.runs()
    going = list(sweep.service.going.values())  # which the service changes meanwhile
    assert not [workload for workload in going if run.id in workload.message.experiment.name]
    sweep.shell.judge(expected={run.id: State.CANCELLED})


def test_what_never_began_has_told_why(sweep: Any) -> None:
    """`logs`, and `logs -f`, have what Beaker has kept of a job whose worker never began."""
    sweep.write(python="/bin/false-python", docker_image="registry/sweeper:1", image=None)
    launcher = sweep.start("~x", "launch.retries=0")
    launcher.communicate(timeout=200)
    assert launcher.returncode == 3
    for more in ([], ["-f"]):
        assert "failed to start" in sweep.shell.run("logs", "toys", *more)


def test_the_doctor(sweep: Any) -> None:
    def diagnose(code: int = 0) -> dict[str, Any]:
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
    checks = diagnose()
    ours = ["Beaker", "workspace", "permission", "budget", "image", "priority", "cluster lab/cpu"]
    ours += ["nodes", "dataset /data", "secret A"]
    assert [name for name in ours if not checks[name]["good"]] == []
    assert CANARY not in json.dumps(checks)
    sweep.write(**(named | {"secrets": {"A": "other"}}), gpus=64)
    checks = diagnose(code=6)
    problems = {name: check["found"] for name, check in checks.items() if not check["good"]}
    assert "have 8 GPUs, but a job asks for 64" in problems["cluster lab/cpu"]
    assert "has the name" in problems["secret A"]
