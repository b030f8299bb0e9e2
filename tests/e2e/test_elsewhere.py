"""What every sweep elsewhere must survive, on stand-ins with real processes; its store is on S3."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sweeper import launch
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.store.opening import open_store
from sweeper.sweep.states import Event

pytestmark = pytest.mark.e2e
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6
HELD = ("mode=resume:holds-3", "launch.grace=1s")


class Place(NamedTuple):
    """A stand-in: its fixture, faults that lose the answers to submissions, how a submission is
    among its requests, how it takes a job away with notice, whether it can lose nodes, the example
    that a missing secret's message gives, and options that it refuses."""

    fixture: str
    faults: tuple[tuple[Any, ...], ...]
    submission: Any
    preempt: Callable[[Any, str], None]
    has_nodes: bool
    secret: str
    refused: dict[str, Any]
    error: str


PLACES = {
    "kubernetes": Place(
        "kube",
        (("POST", "jobs", 500), ("POST", "jobs", 0)),
        ("POST", "jobs"),
        lambda kube, job: kube.shut_down(job, 20.0),
        True,
        r"launch.kubernetes.secrets: \{WANDB_API_KEY: tinker/api-key\}",
        {"service_account": "runs"},
        'serviceaccounts: "runs" not found',
    ),
    "beaker": Place(
        "beaker",
        (("create", 500), ("create", 0)),
        "create",
        lambda beaker, job: beaker.preempt(job, 20.0),
        True,
        r"launch.beaker.secrets: \{WANDB_API_KEY: TINKER_API_KEY\}",
        {"datasets": {"/data": "lab/promts"}},
        "the dataset lab/promts: it does not exist",
    ),
    "modal": Place(
        "modal",
        (("SandboxCreateV2", "UNAVAILABLE"),),
        None,  # its client repeats some by itself
        lambda modal, job: modal.terminate(job),
        False,
        r"launch.modal.secrets: \{WANDB_API_KEY: tinker\}",
        {"image": "sweper"},
        "the image sweper: ",
    ),
}


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


@pytest.mark.timeout(600)
def test_whatever_is_killed_or_lost(
    sweep: Any, name: str, place: Place, request: pytest.FixtureRequest
) -> None:
    """One job is preempted, another's node is lost, and the answer to what follows as well; the
    launcher is killed, and nothing answers for longer than a lease."""
    fault = request.getfixturevalue(f"{name}_support").Fault
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
    launcher = sweep.start(*HELD)  # which waits for its service
    output, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 6 and "does not answer" in errors, output + errors
    assert "Traceback" not in errors
    service.silent = False
    faults = [fault(*about, after=True) for about in place.faults]
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
    """And a launcher that is killed among them."""
    values = json.dumps(list(range(MANY)))
    given = (f"x={values}", "seconds=0.01", "launch.max_parallel=30")
    given += ("mode=resume:first:holds-3", "launch.grace=1s")
    launcher = sweep.start(*given)
    sweep.shell.until(lambda: sweep.at_step(2) > MANY // 20)  # none comes to its end
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    Path(f"{sweep.shell.ledger}.go").touch()
    begun = time.monotonic()
    sweep.well(sweep.start(*given), 1200)
    print(f"{MANY} runs, the last after {time.monotonic() - begun:.0f} s")
    sweep.shell.judge(once=True)
    if place.submission is not None:  # what was submitted twice was known
        assert sweep.service.requests.count(place.submission) <= MANY + 31


def test_what_is_refused(sweep: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is on record; what the service refuses is in tests/contract."""
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
    refused(place.secret, "secrets: [WANDB_API_KEY]\n")
    refused(place.error, error=EnvironmentFailure, options=place.refused)
