"""Sweeps on stand-ins with real processes (Kubernetes, Beaker and Modal) and a store on S3."""

import copy
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper import launch
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.store.opening import open_store
from sweeper.sweep.states import Event

pytestmark = pytest.mark.e2e
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6
HELD = ("mode=resume:holds-3", "launch.grace=1s")
CANARY = "tml-canary-5f0c1d2e3b4a"
IMAGE = "sweeper@sha256:" + 64 * "0"
PLANNED = "made-at-launch"


class Place:
    """Differences between the stand-ins. This class describes Kubernetes."""

    fixture = "kube"
    lost_answers: tuple[tuple[Any, ...], ...] = (("POST", "jobs", 500), ("POST", "jobs", 0))
    submission: Any = ("POST", "jobs")
    """The submission in the service's list of requests."""
    broken: tuple[tuple[Any, ...], ...] = (
        ("GET", "jobs", 500),
        ("GET", "pods", 429),
        ("GET", "jobs", 0),
    )
    """Faults that a launcher with waiting jobs meets."""
    has_nodes = True
    reason: str | None = "Insufficient cpu"
    """The reason of jobs that wait for room."""
    secret = "keys/wandb"
    example = r"launch.kubernetes.secrets: \{WANDB_API_KEY: tinker/api-key\}"
    """The example in the message about a missing secret."""
    refused: Mapping[str, Any] = {"service_account": "runs"}
    """Options that the service refuses with `message`."""
    message = 'serviceaccounts: "runs" not found'
    good: Mapping[str, Any] = {
        **{"image": IMAGE, "service_account": "runs", "queue": "team"},
        "secrets": {"A": "keys/wandb"},
    }
    checks = (
        *("API server", "permissions", "optional permissions", "image", "nodes", "service account"),
        *("Kueue's queue", "secret A"),
    )
    """What `doctor` checks for good options; `problems` has its findings for bad ones."""
    bad: Mapping[str, Any] = {"queue": "nobody", "secrets": {"A": "other/a"}}
    problems: Mapping[str, Any] = {
        "permissions": "delete jobs",
        "optional permissions": "get pods/log",
        "secret A": 'secrets "other" not found',
        "Kueue's queue": 'localqueues "nobody" not found',
    }

    def add_secret(self, service: Any) -> None:
        service.add("secrets", "keys", values={"wandb": CANARY})

    def prepare_doctor(self, service: Any) -> None:
        service.add("serviceaccounts", "runs")

    def deny(self, service: Any) -> None:
        service.denied = {("delete", "jobs"), ("get", "pods/log")}

    def hold(self, service: Any, *, held: bool = True) -> None:
        """Leave no room for jobs, or make room again."""
        service.held = held

    def preempt(self, service: Any, job: str) -> None:
        """Take a job away with notice."""
        service.shut_down(job, 20.0)

    def shown(self, service: Any) -> str:
        """Return what the service shows of the jobs."""
        return json.dumps([service.things[kind] for kind in ("jobs", "pods", "events")])

    def compare(self, planned: list[Any], service: Any) -> None:
        """Assert that the plan equals what was submitted, except for values set by a launch."""
        for job in planned:
            there = copy.deepcopy(service.things["jobs"][job["metadata"]["name"]])
            for document in (there, there["spec"]["template"]):
                assert document["metadata"]["labels"]["sweeper/identity"] != PLANNED
                document["metadata"]["labels"]["sweeper/identity"] = PLANNED
            there["metadata"]["annotations"]["sweeper/submission"] = PLANNED
            for key in ("uid", "creationTimestamp", "generation", "namespace"):
                del there["metadata"][key]
            del there["status"]
            assert there == job


class Beaker(Place):
    fixture = "beaker"
    lost_answers = (("create", 500), ("create", 0))
    submission = "create"
    broken = (("ListJobs", "RESOURCE_EXHAUSTED"), ("ListWorkloads", "INTERNAL"))
    reason = "no room on 4 nodes"
    secret = "wandb"
    example = r"launch.beaker.secrets: \{WANDB_API_KEY: TINKER_API_KEY\}"
    refused: Mapping[str, Any] = {"datasets": {"/data": "lab/promts"}}
    message = "the dataset lab/promts: it does not exist"
    good: Mapping[str, Any] = {
        **{"clusters": ["lab/cpu"], "budget": "lab/everyday", "priority": "normal"},
        **{"datasets": {"/data": "lab/prompts"}, "hostnames": ["n0.lab.org"]},
        "secrets": {"A": "wandb"},
    }
    checks = (
        *("Beaker", "workspace", "permission", "budget", "image", "priority", "cluster lab/cpu"),
        *("nodes", "dataset /data", "secret A"),
    )
    bad: Mapping[str, Any] = {"clusters": ["lab/cpu"], "secrets": {"A": "other"}, "gpus": 64}
    problems: Mapping[str, Any] = {
        "cluster lab/cpu": "have 8 GPUs, but a job asks for 64",
        "secret A": "is not in the workspace",
    }

    def add_secret(self, service: Any) -> None:
        service.secrets["wandb"] = CANARY

    def prepare_doctor(self, service: Any) -> None:
        pass

    deny = prepare_doctor

    def preempt(self, service: Any, job: str) -> None:
        service.preempt(job, 20.0)

    def shown(self, service: Any) -> str:
        return service.shown()

    def compare(self, planned: list[Any], service: Any) -> None:
        there = {workload.task["command"][-1]: workload.spec for workload in service.going.values()}
        for spec in planned:
            submitted = there[spec["tasks"][0]["command"][-1]]
            identity = submitted["description"].partition(":")[0].removeprefix("sweeper ")
            assert identity != PLANNED
            description = spec["description"].replace(PLANNED, identity)
            assert submitted == spec | {"description": description}


class Modal(Beaker):
    fixture = "modal"
    lost_answers = (("SandboxCreateV2", "UNAVAILABLE"),)
    submission = None  # the client retries some requests itself
    broken = (("SandboxListV2", "INTERNAL"),) * 6  # the client retries a few times
    has_nodes = False
    reason = None
    secret = "keys"
    example = r"launch.modal.secrets: \{WANDB_API_KEY: tinker\}"
    refused: Mapping[str, Any] = {"image": "sweper"}
    message = "the image sweper: "
    good: Mapping[str, Any] = {"secrets": {"A": "keys"}, "image": IMAGE}
    checks = ("Modal", "image", "image's digest", "secret A")
    bad: Mapping[str, Any] = {"secrets": {"A": "other"}}
    problems: Mapping[str, Any] = {
        "image's digest": "may change while a sweep runs",
        "secret A": "for A in launch.modal.secrets does not exist",
    }

    def add_secret(self, service: Any) -> None:
        service.secrets["keys"] = {"WANDB_API_KEY": CANARY, "A": CANARY}

    def hold(self, service: Any, *, held: bool = True) -> None:
        service.most = 0 if held else None

    def preempt(self, service: Any, job: str) -> None:
        service.terminate(job)

    def compare(self, planned: list[Any], service: Any) -> None:
        launched = {sandbox.definition.name: sandbox for sandbox in service.sandboxes.values()}
        for made in planned:
            tags, definition = launched[made["name"]].tags, launched[made["name"]].definition
            assert list(definition.entrypoint_args) == made["args"]
            assert definition.timeout_secs == made["timeout"]
            resources = definition.resources
            assert resources.milli_cpu == 1000 * made["cpu"]
            assert resources.memory_mb == made["memory"]
            assert made["tags"]["sweeper-identity"] == PLANNED
            assert tags.keys() == made["tags"].keys() and tags["run"] == made["tags"]["run"]


PLACES = {"kubernetes": Place(), "beaker": Beaker(), "modal": Modal()}


@pytest.fixture(params=PLACES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def place(name: str) -> Place:
    return PLACES[name]


@pytest.fixture
def sweep(
    name: str,
    place: Place,
    elsewhere: Callable[[str, Any], Any],
    request: pytest.FixtureRequest,
) -> Any:
    return elsewhere(name, request.getfixturevalue(place.fixture))


def _fault(name: str, *about: Any, **more: Any) -> Any:
    return importlib.import_module(f"support.{name}").Fault(*about, **more)


def test_a_sweep_from_start_to_end(sweep: Any, name: str, place: Place) -> None:
    """Requests fail and the checkout is gone. Jobs have their code; no file has the secret."""
    shell, service = sweep.shell, sweep.service
    place.add_secret(service)
    sweep.write("secrets: [WANDB_API_KEY]\n", secrets={"WANDB_API_KEY": place.secret})
    command = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    sweep.grid.write_text(sweep.grid.read_text().replace("command: [", command))
    shell.environment["WANDB_API_KEY"] = "not this one"
    place.hold(service)
    shell.run("launch", "grid.yaml", code=0)
    if place.reason is None:
        shell.until(lambda: service.requests.count("SandboxCreateV2"))
    else:
        shell.until(lambda: shell.run_states() == {"submitted": 3})
        shell.until(lambda: sweep.waits_for(place.reason))
        assert place.reason in shell.run("status", "toys", code=4)
    shell.folder = shell.folder.rename(shell.folder.with_name("elsewhere"))
    faults = [_fault(name, *about) for about in place.broken]
    service.faults += faults
    shell.until(lambda: not any(fault.times for fault in faults))
    place.hold(service, held=False)
    shell.until(lambda: shell.run_states() == {"succeeded": 3})
    shell.judge(once=True)
    (run, *_) = shell.runs()
    printed = "\n".join(sweep.backend().logs(f"{run.id}-a1"))
    assert "attempt 1, in" in printed
    shown = place.shown(service)
    assert place.secret.partition("/")[0] in shown and CANARY not in shown + printed
    store = open_store(sweep.root)
    files = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in files)
    assert not any(CANARY.encode() in data for data in files)


def test_what_is_submitted_was_in_the_plan(sweep: Any, place: Place) -> None:
    planned = sweep.shell.manifests(*HELD)
    assert len(planned) == 3
    launcher = sweep.start(*HELD)
    sweep.shell.until(lambda: sweep.at_step(2) == 3)
    place.compare(planned, sweep.service)
    assert sweep.shell.manifests(*HELD) == []  # everything is submitted
    Path(f"{sweep.shell.ledger}.go").touch()
    sweep.well(launcher)


def test_the_doctor(sweep: Any, name: str, place: Place) -> None:
    def diagnose(code: int) -> dict[str, Any]:
        given = ("doctor", "--backend", name, "--json", "--grid", "grid.yaml")
        process = sweep.shell.start(*given)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        assert CANARY not in output
        return {check["name"]: check for check in json.loads(output)["checks"]}

    place.add_secret(sweep.service)
    place.prepare_doctor(sweep.service)
    sweep.write(**place.good)
    checks = diagnose(0)
    assert [check for check in place.checks if not checks[check]["good"]] == []
    place.deny(sweep.service)
    sweep.write(**place.bad)
    checks = diagnose(6)
    for check, message in place.problems.items():
        assert not checks[check]["good"] and message in checks[check]["found"]


@pytest.mark.timeout(600)
def test_whatever_is_killed_or_lost(sweep: Any, name: str, place: Place) -> None:
    """A preemption, a lost node, lost replies, killed launchers and an outage cost no run."""
    shell, service = sweep.shell, sweep.service
    launcher = sweep.start(*HELD)
    shell.until(lambda: sweep.at_step(2) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    ids, store = [run.id for run in shell.runs()], open_store(sweep.root)
    parts = [f"toys/runs/{run}.1/checkpoints.jsonl.parts" for run in ids]
    shell.until(lambda: all(list(store.names(path)) for path in parts))
    jobs = sweep.backend().find([f"{run}-a1" for run in ids])
    service.silent = True
    launcher = sweep.start(*HELD)
    output, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 6 and "does not answer" in errors, output + errors
    assert "Traceback" not in errors
    service.silent = False
    faults = [_fault(name, *about, after=True) for about in place.lost_answers]
    service.faults += faults
    taken = ids[:2] if place.has_nodes else ids[:1]
    place.preempt(service, jobs[f"{taken[0]}-a1"])
    node = service.lose(jobs[f"{taken[1]}-a1"]) if place.has_nodes else None
    launcher = sweep.start(*HELD)

    def seen() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        events = sweep.events()
        return all((2, Event.CLAIMED) in events[run] for run in taken)

    shell.until(seen)
    assert all(fault.times == 0 for fault in faults)
    if node is not None:
        node.alive = True
    shell.until(lambda: set(shell.run_states()) == {"running"})
    service.silent = True
    shell.wait_out_a_lease()
    service.silent = False
    Path(f"{shell.ledger}.go").touch()
    sweep.well(launcher)
    shell.judge()
    happened = sweep.events()
    assert all((1, Event.PREEMPTED) in happened[run] for run in taken)
    assert not any(event is Event.FAILED for events in happened.values() for _, event in events)
    assert min(int(s) for r, a, s in shell.executed() if (r, a) == (taken[-1], "2")) > 0


def test_many_quick_runs(sweep: Any, place: Place) -> None:
    """A launcher is killed while they run."""
    values = json.dumps(list(range(MANY)))
    given = (f"x={values}", "seconds=0.01", "launch.max_parallel=30")
    given += ("mode=resume:first:holds-3", "launch.grace=1s")
    launcher = sweep.start(*given)
    sweep.shell.until(lambda: sweep.at_step(2) > MANY // 20)  # no run ends before the kill
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    Path(f"{sweep.shell.ledger}.go").touch()
    begun = time.monotonic()
    sweep.well(sweep.start(*given), 1200)
    print(f"{MANY} runs, the last after {time.monotonic() - begun:.0f} s")
    sweep.shell.judge(once=True)
    if place.submission is not None:  # at most the jobs in flight were submitted again
        assert sweep.service.requests.count(place.submission) <= MANY + 31


def test_what_is_refused(sweep: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is recorded. tests/contract covers refusals by the service."""
    monkeypatch.chdir(sweep.shell.folder)

    def refused(match: str, more: str = "", error: Any = UsageError, **how: Any) -> None:
        options = how.pop("options", {})
        sweep.write(more, **options)
        with pytest.raises(error, match=match) as caught:
            launch(str(sweep.grid), **how)
        assert "\n" not in str(caught.value)
        assert not list(open_store(sweep.root).names("toys"))

    refused("jobs cannot read the folder", root=str(sweep.shell.folder / "sweeps"))
    refused("--live does not work", live=True)
    refused("no image is given", options={"image": None})
    refused(place.example, "secrets: [WANDB_API_KEY]\n")
    refused(place.message, error=EnvironmentFailure, options=place.refused)
