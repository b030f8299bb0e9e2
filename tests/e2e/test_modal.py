"""Sweeps on a stand-in for Modal (real processes), their store on S3."""

import json
import os
import signal
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
def sweep(elsewhere: Callable[[str, Any], Any], modal: Any) -> Any:
    return elsewhere("modal", modal)


def test_a_sweep_from_start_to_end(sweep: Any, modal_support: Any) -> None:
    """There is no room at first, and the service breaks now and then. The checkout is gone when
    the jobs start: what they run came with them; so did a secret, whose value is nowhere else."""
    fault, shell, modal = modal_support.Fault, sweep.shell, sweep.service
    modal.secrets["keys"] = {"WANDB_API_KEY": CANARY}
    sweep.write("secrets: [WANDB_API_KEY]\n", secrets={"WANDB_API_KEY": "keys"})
    told = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    sweep.grid.write_text(sweep.grid.read_text().replace("command: [", told))
    shell.environment["WANDB_API_KEY"] = "not this one"
    modal.most = 0
    shell.run("launch", "grid.yaml", code=0)
    shell.until(lambda: modal.requests.count("SandboxCreateV2"))
    elsewhere = shell.folder.with_name("elsewhere")
    shell.folder.rename(elsewhere)
    shell.folder = elsewhere
    broken = fault("SandboxListV2", "INTERNAL", times=6)  # the client asks a few times by itself
    modal.faults.append(broken)
    shell.until(lambda: not broken.times)
    modal.most = None
    shell.until(lambda: shell.run_states() == {"succeeded": 3})
    shell.judge(once=True)
    (run, *_) = shell.runs()
    printed = "\n".join(sweep.backend().logs(f"{run.id}-a1"))
    assert "attempt 1, in" in printed
    assert "st-keys" in modal.shown() and CANARY not in modal.shown() + printed
    store = open_store(sweep.root)
    kept = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in kept)
    assert not any(CANARY.encode() in data for data in kept)


def test_what_is_submitted_was_in_the_plan(sweep: Any) -> None:
    planned = sweep.shell.manifests(*HOLDS)
    assert len(planned) == 3
    launcher = sweep.start(*HOLDS)
    sweep.shell.until(lambda: sweep.at_step(2) == 3)
    known = {one.definition.name: one for one in sweep.service.sandboxes.values()}
    for made in planned:
        one = known[made["name"]]
        assert list(one.definition.entrypoint_args) == made["args"]
        assert one.definition.timeout_secs == made["timeout"]
        resources = one.definition.resources
        assert (resources.milli_cpu, resources.memory_mb) == (1000 * made["cpu"], made["memory"])
        assert made["tags"]["sweeper-identity"] == "made-at-launch"
        assert one.tags.keys() == made["tags"].keys()
        assert one.tags["run"] == made["tags"]["run"]
    Path(f"{sweep.shell.ledger}.go").touch()
    sweep.well(launcher)


@pytest.mark.timeout(600)
def test_whatever_is_killed_or_lost(sweep: Any, modal_support: Any) -> None:
    """One job's machine is taken away, and the answer to what follows is lost; the launcher is
    killed, and nothing answers for longer than a lease."""
    fault, shell, modal = modal_support.Fault, sweep.shell, sweep.service
    launcher = sweep.start(*HELD)
    shell.until(lambda: sweep.at_step(2) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    ids, store = [run.id for run in shell.runs()], open_store(sweep.root)
    parts = [f"toys/runs/{run}.1/checkpoints.jsonl.parts" for run in ids]
    shell.until(lambda: all(list(store.names(path)) for path in parts))
    taken, *_ = ids
    sandboxes = sweep.backend().find([f"{run}-a1" for run in ids])
    modal.silent = True
    launcher = sweep.start(*HELD)  # which gives up before it begins
    output, errors = launcher.communicate(timeout=90)
    assert launcher.returncode == 6 and "does not answer" in errors, output + errors
    assert "Traceback" not in errors
    modal.silent = False
    lost = fault("SandboxCreateV2", "UNAVAILABLE", after=True)
    modal.faults.append(lost)
    modal.terminate(sandboxes[f"{taken}-a1"])
    launcher = sweep.start(*HELD)

    def seen() -> bool:
        assert launcher.poll() is None, launcher.communicate()
        events = sweep.events()
        return all((2, Event.CLAIMED) in events[run] for run in (taken,))

    shell.until(seen)
    assert lost.times == 0
    shell.until(lambda: set(shell.run_states()) == {"running"})
    modal.silent = True
    shell.wait_out_a_lease()
    modal.silent = False
    Path(f"{shell.ledger}.go").touch()
    sweep.well(launcher)
    shell.judge()
    happened = sweep.events()
    assert (1, Event.PREEMPTED) in happened[taken]
    assert not any(event is Event.FAILED for events in happened.values() for _, event in events)
    assert min(int(s) for r, a, s in shell.executed() if (r, a) == (taken, "2")) > 0


def test_many_quick_runs(sweep: Any) -> None:
    """And a launcher that is killed among them."""
    values = json.dumps(list(range(MANY)))
    given = (f"x={values}", "seconds=0.01", "launch.max_parallel=30", *HOLDS)
    launcher = sweep.start(*given)
    sweep.shell.until(lambda: sweep.at_step(2) > MANY // 20)  # none comes to its end
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    Path(f"{sweep.shell.ledger}.go").touch()
    sweep.well(sweep.start(*given), 1200)
    sweep.shell.judge(once=True)


def test_what_runs_is_cancelled(sweep: Any) -> None:
    """The worker is told, and its recipe has time to save; nothing is left at Modal."""
    launcher = sweep.start("~x", *HOLDS)
    sweep.shell.until(lambda: sweep.at_step(2) == 1)
    assert "1 " in sweep.shell.run("cancel", "toys")
    launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    (run,) = sweep.shell.runs()
    sweep.shell.until(lambda: not _of(sweep.service, run.id))
    sweep.shell.judge(expected={run.id: State.CANCELLED})


def _of(modal: Any, run: str) -> list[str]:
    return [one for one in modal.going() if run in modal.sandboxes[one].definition.name]


def test_what_is_refused(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is on record; what the service refuses is in
    `tests/contract/test_modal.py`."""
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
    refused(r"launch.modal.secrets: \{WANDB_API_KEY: tinker\}", secret)
    refused("the image sweper: ", error=EnvironmentFailure, options={"image": "sweper"})


def test_the_doctor(sweep: Any) -> None:
    def told(code: int = 0) -> dict[str, Any]:
        given = ("doctor", "--backend", "modal", "--json", "--grid", "grid.yaml")
        process = sweep.shell.start(*given)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        return {check["name"]: check for check in json.loads(output)["checks"]}

    sweep.service.secrets["keys"] = {"A": CANARY}
    sweep.write(secrets={"A": "keys"}, image=f"sweeper@sha256:{64 * '0'}")
    found = told()
    ours = ["Modal", "image", "image's digest", "secret A"]
    assert [name for name in ours if not found[name]["good"]] == []
    assert CANARY not in json.dumps(found)
    sweep.write(secrets={"A": "other"})
    found = told(code=6)
    said = {name: check["found"] for name, check in found.items() if not check["good"]}
    assert "may change while a sweep runs" in said["image's digest"]
    assert "no secret has the name" in said["secret A"]
