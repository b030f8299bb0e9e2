"""Sweeps on a stand-in for a Kubernetes cluster (real processes), their store on S3."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.store.opening import open_store
from sweeper.sweep.states import Event, State

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
CANARY = "tml-canary-5f0c1d2e3b4a"


@pytest.fixture
def sweep(elsewhere: Callable[[str, Any], Any], kube: Any) -> Any:
    return elsewhere("kubernetes", kube)


def test_a_sweep_from_start_to_end(sweep: Any, kube: Any, kubernetes_support: Any) -> None:
    """The server has too much to do, breaks, and does not say that it has accepted a job. The
    checkout is gone when the jobs start: what they run came with them; so did a secret, whose value
    is nowhere else."""
    fault = kubernetes_support.Fault
    kube.add("secrets", "keys", values={"wandb": CANARY})
    grid = sweep.shell.folder / "grid.yaml"
    options = kube.options(secrets={"WANDB_API_KEY": "keys/wandb"})
    text = grid.read_text().replace(json.dumps(kube.options()), json.dumps(options))
    grid.write_text(text + "secrets: [WANDB_API_KEY]\n")
    command = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    grid.write_text(grid.read_text().replace("command: [", command))
    sweep.shell.environment["WANDB_API_KEY"] = "not this one"
    kube.held = True
    sweep.shell.run("launch", "grid.yaml", code=0)
    sweep.shell.until(lambda: sweep.shell.run_states() == {"submitted": 3})
    sweep.shell.until(lambda: sweep.waits_for("Insufficient cpu"))
    assert "Insufficient cpu" in sweep.shell.run("status", "toys", code=4)
    elsewhere = sweep.shell.folder.with_name("elsewhere")
    sweep.shell.folder.rename(elsewhere)
    sweep.shell.folder = elsewhere
    kube.faults += [fault("GET", "jobs", 500), fault("GET", "pods", 429), fault("GET", "jobs", 0)]
    kube.held = False
    sweep.shell.until(lambda: sweep.shell.run_states() == {"succeeded": 3})
    sweep.shell.judge(once=True)
    kube.faults.clear()  # the launcher may have been done before it met the last
    (run, *_) = sweep.shell.runs()
    printed = "\n".join(sweep.backend().logs(f"{run.id}-a1"))
    assert "attempt 1, in" in printed
    shown = json.dumps([kube.things[kind] for kind in ("jobs", "pods", "events")])
    assert "keys" in shown and CANARY not in shown + printed
    store = open_store(sweep.root)
    files = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in files)
    assert not any(CANARY.encode() in data for data in files)


def test_what_is_submitted_was_in_the_plan(sweep: Any, kube: Any) -> None:
    """But for two values that a launch makes."""
    planned = sweep.shell.manifests()
    assert len(planned) == 3
    kube.held = True
    sweep.shell.run("launch", "grid.yaml", code=0)
    sweep.shell.until(lambda: sweep.shell.run_states() == {"submitted": 3})
    for job in planned:
        there = copy.deepcopy(kube.things["jobs"][job["metadata"]["name"]])
        assert there["metadata"]["labels"]["sweeper/identity"] != "made-at-launch"
        for document in (there, there["spec"]["template"]):
            document["metadata"]["labels"]["sweeper/identity"] = "made-at-launch"
        there["metadata"]["annotations"]["sweeper/submission"] = "made-at-launch"
        for key in ("uid", "creationTimestamp", "generation", "namespace"):
            del there["metadata"][key]
        del there["status"]
        assert there == job
    assert sweep.shell.manifests() == []  # all of it is on its way
    sweep.shell.run("cancel", "toys")
    sweep.shell.until(lambda: sweep.shell.run_states() == {"cancelled": 3})


def test_a_queue_that_takes_a_job_back(sweep: Any, kube: Any) -> None:
    """Kueue holds jobs up and says why; one that it has taken back is the run's next attempt, and
    the old one is withdrawn before it is let go again."""
    kube.open_queues.clear()
    queue = "launch.kubernetes.queue=team"
    launcher = sweep.shell.start(
        "launch", "grid.yaml", "~x", queue, "mode=resume:first:holds-3", "launch.grace=1s", "--wait"
    )
    sweep.shell.until(lambda: sweep.waits_for("insufficient quota"))
    kube.open_queues.add("team")
    sweep.shell.until(lambda: sweep.at_step(2))
    (run,) = sweep.shell.runs()
    job = sweep.backend().find([f"{run.id}-a1"])[f"{run.id}-a1"]
    kube.take_back(job)
    sweep.shell.until(lambda: (2, Event.SUBMITTED) in sweep.events()[run.id])
    sweep.shell.until(lambda: job not in kube.things["jobs"])
    kube.open_queues.add("team")
    output, errors = launcher.communicate(timeout=90)
    assert launcher.returncode == 0, output + errors
    sweep.shell.judge()


def test_what_waits_is_cancelled(sweep: Any, kube: Any) -> None:
    selector = 'launch.kubernetes.node_selector={pool: "none"}'
    launcher = sweep.shell.start("launch", "grid.yaml", "~x", selector, "--wait")
    sweep.shell.until(lambda: sweep.waits_for("0/4 nodes"))
    assert "1 cancelled" in sweep.shell.run("cancel", "toys")
    launcher.communicate(timeout=120)
    assert launcher.returncode == 3
    (run,) = sweep.shell.runs()
    assert not [job for job in kube.things["jobs"] if run.id in job]
    sweep.shell.judge(expected={run.id: State.CANCELLED})


def test_the_doctor(sweep: Any, kube: Any) -> None:
    def diagnose(*arguments: str, code: int = 0) -> dict[str, Any]:
        process = sweep.shell.start("doctor", "--backend", "kubernetes", "--json", *arguments)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        return {check["name"]: check for check in json.loads(output)["checks"]}

    kube.add("secrets", "keys", values={"a": CANARY})
    kube.add("serviceaccounts", "runs")
    grid = sweep.shell.folder / "grid.yaml"
    options = kube.options(
        image="sweeper@sha256:" + 64 * "0",
        secrets={"A": "keys/a"},
        service_account="runs",
        queue="team",
    )
    text = grid.read_text().replace(json.dumps(kube.options()), json.dumps(options))
    grid.write_text(text)
    checks = diagnose("--grid", "grid.yaml")
    ours = ["API server", "permissions", "permissions of use", "image", "nodes", "service account"]
    ours += ["Kueue's queue", "secret A"]
    assert [name for name in ours if not checks[name]["good"]] == []
    assert CANARY not in json.dumps(checks)
    kube.denied = {("delete", "jobs"), ("get", "pods/log")}
    grid.write_text(text.replace("keys/a", "other/a").replace('"team"', '"nobody"'))
    checks = diagnose("--grid", "grid.yaml", code=6)
    problems = {name: check["found"] for name, check in checks.items() if not check["good"]}
    assert "delete jobs" in problems["permissions"]
    assert "get pods/log" in problems["permissions of use"]
    assert 'secrets "other" not found' in problems["secret A"]
    assert 'localqueues "nobody" not found' in problems["Kueue's queue"]
