"""Sweeps on a stand-in for a Kubernetes cluster (real processes), their store on S3."""

import copy
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
ROOT = Path(__file__).parents[2]
CANARY = "tml-canary-5f0c1d2e3b4a"
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6


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
    told = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    grid.write_text(grid.read_text().replace("command: [", told))
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
    kept = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in kept)
    assert not any(CANARY.encode() in data for data in kept)


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
        for told in (there, there["spec"]["template"]):
            told["metadata"]["labels"]["sweeper/identity"] = "made-at-launch"
        there["metadata"]["annotations"]["sweeper/submission"] = "made-at-launch"
        for key in ("uid", "creationTimestamp", "generation", "namespace"):
            del there["metadata"][key]
        del there["status"]
        assert there == job
    assert sweep.shell.manifests() == []  # all of it is on its way
    sweep.shell.run("cancel", "toys")
    sweep.shell.until(lambda: sweep.shell.run_states() == {"cancelled": 3})


@pytest.mark.timeout(600)
def test_whatever_is_killed_or_lost(sweep: Any, kube: Any, kubernetes_support: Any) -> None:
    """One job's node is drained, another's is lost, and the answer to what follows as well; the
    launcher is killed, and nothing answers for longer than a lease."""
    fault = kubernetes_support.Fault
    given = ("launch", "grid.yaml", "mode=resume:holds-3", "launch.grace=1s", "--wait")
    launcher = sweep.shell.start(*given)
    sweep.shell.until(lambda: sweep.at_step(2) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    names = {run.id: f"toys/runs/{run.id}.1/checkpoints.jsonl.parts" for run in sweep.shell.runs()}
    sweep.shell.until(lambda: all(list(open_store(sweep.root).names(p)) for p in names.values()))
    drained, lost, _ = names
    job = sweep.backend().find([f"{run}-a1" for run in names])
    kube.silent = True
    launcher = sweep.shell.start(*given)  # which waits for its cluster
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 6 and "does not answer" in errors, output + errors
    kube.silent = False
    kube.faults += [fault("POST", "jobs", 500, after=True), fault("POST", "jobs", 0, after=True)]
    kube.shut_down(job[f"{drained}-a1"], 20.0)
    node = kube.lose(job[f"{lost}-a1"])
    launcher = sweep.shell.start(*given)

    def seen() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        events = sweep.events()
        return all((2, Event.CLAIMED) in events[run] for run in (drained, lost))

    sweep.shell.until(seen)
    node.alive = True
    sweep.shell.until(lambda: set(sweep.shell.run_states()) == {"running"})
    kube.silent = True
    sweep.shell.wait_out_a_lease()
    kube.silent = False
    Path(f"{sweep.shell.ledger}.go").touch()
    output, errors = launcher.communicate(timeout=90)
    assert launcher.returncode == 0, output + errors
    sweep.shell.judge()
    happened = sweep.events()
    assert (1, Event.PREEMPTED) in happened[drained] & happened[lost]
    assert not any(event is Event.FAILED for events in happened.values() for _, event in events)
    assert min(int(s) for r, a, s in sweep.shell.executed() if (r, a) == (lost, "2")) > 0


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


def test_many_quick_runs(sweep: Any, kube: Any) -> None:
    """And a launcher that is killed among them."""
    values = json.dumps(list(range(MANY)))
    given = (
        "launch",
        "grid.yaml",
        f"x={values}",
        "seconds=0.01",
        "launch.max_parallel=30",
        "--wait",
    )
    launcher = sweep.shell.start(*given)
    sweep.shell.until(lambda: sweep.at_step(9) > MANY // 20)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    begun = time.monotonic()
    process = sweep.shell.start(*given)
    output, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, output + errors
    print(f"{MANY} runs, the last after {time.monotonic() - begun:.0f} s")
    sweep.shell.judge(once=True)
    assert kube.requests.count(("POST", "jobs")) <= MANY + 31  # what was submitted twice was known


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


def test_what_is_refused(sweep: Any, kube: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is on record; what the cluster refuses is in
    `tests/contract/test_kubernetes.py`."""
    monkeypatch.chdir(sweep.shell.folder)
    grid = sweep.shell.folder / "grid.yaml"
    text, plain = grid.read_text(), json.dumps(kube.options())

    def refused(match: str, text: str = text, error: Any = UsageError, **more: Any) -> None:
        grid.write_text(text)
        with pytest.raises(error, match=match) as caught:
            launch(str(grid), **more)
        assert "\n" not in str(caught.value)
        assert not list(open_store(sweep.root).names("toys"))

    refused("its jobs cannot read the folder", root=str(sweep.shell.folder / "sweeps"))
    refused("--live does not work", live=True)
    refused("no image is given", text.replace(plain, "{}"))
    secret = text + "secrets: [WANDB_API_KEY]\n"
    refused(r"launch.kubernetes.secrets: \{WANDB_API_KEY: tinker/api-key\}", secret)
    refused(
        "needs an engine that the jobs can reach", text.replace("service: none", "service: local")
    )
    missing = json.dumps(kube.options(service_account="runs"))
    told = 'serviceaccounts: "runs" not found'
    refused(told, text.replace(plain, missing), EnvironmentFailure)


def test_the_doctor(sweep: Any, kube: Any) -> None:
    def told(*arguments: str, code: int = 0) -> dict[str, Any]:
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
    found = told("--grid", "grid.yaml")
    ours = ["API server", "permissions", "permissions of use", "image", "nodes", "service account"]
    ours += ["Kueue's queue", "secret A"]
    assert [name for name in ours if not found[name]["good"]] == []
    assert CANARY not in json.dumps(found)
    kube.denied = {("delete", "jobs"), ("get", "pods/log")}
    grid.write_text(text.replace("keys/a", "other/a").replace('"team"', '"nobody"'))
    found = told("--grid", "grid.yaml", code=6)
    said = {name: check["found"] for name, check in found.items() if not check["good"]}
    assert "delete jobs" in said["permissions"]
    assert "get pods/log" in said["permissions of use"]
    assert 'secrets "other" not found' in said["secret A"]
    assert 'localqueues "nobody" not found' in said["Kueue's queue"]
