"""Sweeps on a stand-in for Modal (real processes), their store on S3."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.store.opening import open_store
from sweeper.sweep.states import State

pytestmark = pytest.mark.e2e
CANARY = "tml-canary-5f0c1d2e3b4a"
HOLDS = ("mode=resume:first:holds-3", "launch.grace=1s")


@pytest.fixture
def sweep(elsewhere: Callable[[str, Any], Any], modal: Any) -> Any:
    return elsewhere("modal", modal)


def test_a_sweep_from_start_to_end(sweep: Any, modal_support: Any) -> None:
    """There is no room at first, and the service breaks now and then. The checkout is gone when
    the jobs start: what they run came with them; so did a secret, whose value is nowhere else."""
    fault, shell, modal = modal_support.Fault, sweep.shell, sweep.service
    modal.secrets["keys"] = {"WANDB_API_KEY": CANARY}
    sweep.write("secrets: [WANDB_API_KEY]\n", secrets={"WANDB_API_KEY": "keys"})
    command = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    sweep.grid.write_text(sweep.grid.read_text().replace("command: [", command))
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
    files = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in files)
    assert not any(CANARY.encode() in data for data in files)


def test_what_is_submitted_was_in_the_plan(sweep: Any) -> None:
    planned = sweep.shell.manifests(*HOLDS)
    assert len(planned) == 3
    launcher = sweep.start(*HOLDS)
    sweep.shell.until(lambda: sweep.at_step(2) == 3)
    launched = {sandbox.definition.name: sandbox for sandbox in sweep.service.sandboxes.values()}
    for made in planned:
        sandbox = launched[made["name"]]
        assert list(sandbox.definition.entrypoint_args) == made["args"]
        assert sandbox.definition.timeout_secs == made["timeout"]
        resources = sandbox.definition.resources
        assert (resources.milli_cpu, resources.memory_mb) == (1000 * made["cpu"], made["memory"])
        assert made["tags"]["sweeper-identity"] == "made-at-launch"
        assert sandbox.tags.keys() == made["tags"].keys()
        assert sandbox.tags["run"] == made["tags"]["run"]
    Path(f"{sweep.shell.ledger}.go").touch()
    sweep.well(launcher)


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
    return [name for name in modal.going() if run in modal.sandboxes[name].definition.name]


def test_the_doctor(sweep: Any) -> None:
    def diagnose(code: int = 0) -> dict[str, Any]:
        given = ("doctor", "--backend", "modal", "--json", "--grid", "grid.yaml")
        process = sweep.shell.start(*given)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, output + errors
        return {check["name"]: check for check in json.loads(output)["checks"]}

    sweep.service.secrets["keys"] = {"A": CANARY}
    sweep.write(secrets={"A": "keys"}, image=f"sweeper@sha256:{64 * '0'}")
    checks = diagnose()
    ours = ["Modal", "image", "image's digest", "secret A"]
    assert [name for name in ours if not checks[name]["good"]] == []
    assert CANARY not in json.dumps(checks)
    sweep.write(secrets={"A": "other"})
    checks = diagnose(code=6)
    problems = {name: check["found"] for name, check in checks.items() if not check["good"]}
    assert "may change while a sweep runs" in problems["image's digest"]
    assert "no secret has the name" in problems["secret A"]
