"""`sweeper doctor --try`: a real job runs to its end, on real backends and on stand-ins."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper.commands import doctor_try as trial
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.store.opening import open_store
from sweeper.sweep.folder import find_sweeps
from sweeper.sweep.launch_settings import Launch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CANARY = "tml-canary-5f0c1d2e3b4a"
GRID = """name: mine
command: [sh, train.py]
service: none
grid: {x: [1]}
secrets: [WANDB_API_KEY]
launch: {backend: %s, max_parallel: 4}
"""


def _tried(shell: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
    process = shell.start("doctor", "--try", "--json", *arguments)
    output, errors = process.communicate(timeout=280)
    assert process.returncode == code, output + errors
    return json.loads(output)


def _steps(document: dict[str, Any]) -> list[str]:
    return [step["name"] for step in document["steps"]]


def _leftovers(shell: Any) -> list[Path]:
    """Return the files of a trial in the home, which exist while it runs."""
    home = Path(shell.environment["SWEEPER_HOME"])
    return [*home.glob("environments/*.json"), *home.glob("trials/*")]


WELL = ["submitted", "began", "ran", "known", "store", "code", "secrets", "removed"]


def _here(shell: Any, backend: str, *more: str) -> dict[str, Any]:
    """Try a backend of this machine from a checkout, with a secret."""
    subprocess.run(["git", "init", "-q"], cwd=shell.folder, check=True)
    (shell.folder / "mine.yaml").write_text(GRID % backend)
    shell.environment["WANDB_API_KEY"] = CANARY
    document = _tried(shell, "--grid", "mine.yaml", *more)
    assert _steps(document) == WELL and document["error"] is None, document
    assert CANARY not in json.dumps(document)
    (secrets,) = (step["found"] for step in document["steps"] if step["name"] == "secrets")
    assert secrets == "set: WANDB_API_KEY"
    assert os.listdir(shell.folder / "sweeps") == [".gitignore"]
    assert not _leftovers(shell)
    return document


def test_local(tmp_path: Path) -> None:
    shell = shells.Shell(tmp_path, "local")
    document = _here(shell, "local")
    timed = [step["name"] for step in document["steps"] if step["seconds"] is not None]
    assert timed == ["submitted", "began", "ran", "known", "removed"]
    del shell.environment["WANDB_API_KEY"]
    document = _tried(shell, "--grid", "mine.yaml", code=6)
    assert "WANDB_API_KEY" in document["error"] and "\n" not in document["error"]
    assert os.listdir(shell.folder / "sweeps") == [".gitignore"]
    output = shell.run("doctor", "--try", "--backend", "local")
    assert "succeeded" in output and "removed" in output


def _elsewhere(folder: Path, name: str, platform: Any, root: str, **more: Any) -> Any:
    """Make a checkout with a grid whose jobs need a secret of the platform."""
    shell = shells.ShellElsewhere(folder, name, platform.options(), root)
    platform.environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    shell.environment["SWEEPER_ROOT"] = root
    (shell.folder / "train.py").write_text("")
    launch = {"backend": name, name: platform.options(**more)}
    text = (GRID % "X").replace("{backend: X, max_parallel: 4}", json.dumps(launch))
    (shell.folder / "mine.yaml").write_text(text)
    return shell


@pytest.fixture
def on_kube(tmp_path: Path, kube: Any, s3_root: str) -> Any:
    kube.add("secrets", "keys", values={"wandb": CANARY, "empty": ""})
    more = {"secrets": {"WANDB_API_KEY": "keys/wandb"}}
    return _elsewhere(tmp_path, "kubernetes", kube, s3_root, **more)


def _nothing_is_left(shell: Any, kube: Any) -> None:
    assert not list(open_store(shell.root).names(""))
    shell.until(lambda: not kube.things["jobs"])  # the platform answers before it deletes them


def test_kubernetes(on_kube: Any, kube: Any) -> None:
    document = _tried(on_kube, "--grid", "mine.yaml")
    assert _steps(document) == WELL, document
    assert CANARY not in json.dumps(document)
    _nothing_is_left(on_kube, kube)
    grid = on_kube.folder / "mine.yaml"
    grid.write_text(grid.read_text().replace("keys/wandb", "keys/empty"))
    document = _tried(on_kube, "--grid", "mine.yaml", code=6)
    assert document["error"] == "kubernetes: the secret WANDB_API_KEY is empty in the job"
    grid.write_text(grid.read_text().replace("keys/empty", "nowhere/wandb"))
    document = _tried(on_kube, "--grid", "mine.yaml", code=6)
    assert (
        document["error"] == "backend not tested, because something is MISSING"
        and not document["steps"]
    )
    _nothing_is_left(on_kube, kube)


def test_an_image_without_sweeper(on_kube: Any, kube: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    grid = on_kube.folder / "mine.yaml"
    grid.write_text(grid.read_text().replace(sys.executable, str(bare / "bin" / "python")))
    document = _tried(on_kube, "--grid", "mine.yaml", code=6)
    # A long line is cut, for example one with the path of an interpreter.
    assert "Error while finding module specification for 'sweep" in document["error"]
    assert "\n" not in document["error"]
    assert _steps(document) == ["submitted", "removed"]
    _nothing_is_left(on_kube, kube)


def test_a_job_that_never_begins(on_kube: Any, kube: Any) -> None:
    kube.held = True
    document = _tried(on_kube, "--grid", "mine.yaml", "--timeout", "20s", code=6)
    reason = "kubernetes: the job has not started after 20 s: Unschedulable: "
    assert document["error"].startswith(reason)
    _nothing_is_left(on_kube, kube)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupted(on_kube: Any, kube: Any, number: signal.Signals) -> None:
    kube.held = True
    process = on_kube.start("doctor", "--try", "--grid", "mine.yaml")
    on_kube.until(lambda: kube.things["jobs"])
    assert len(_leftovers(on_kube)) == 2
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, output + errors
    assert "interrupted" in errors
    assert not _leftovers(on_kube)
    _nothing_is_left(on_kube, kube)


def test_interrupted_again_while_it_removes(on_kube: Any, kube: Any) -> None:
    kube.held = True
    process = on_kube.start("doctor", "--try", "--grid", "mine.yaml")
    on_kube.until(lambda: kube.things["jobs"])
    while process.poll() is None:  # after the removal, a signal may end it
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    process.communicate()
    assert not _leftovers(on_kube)
    _nothing_is_left(on_kube, kube)


HOLDS = """import os, sys, time
while "trial.json" in " ".join(sys.orig_argv) and os.path.exists({hold!r}):
    time.sleep(0.1)
"""


def test_what_a_killed_one_left_goes_with_the_next(tmp_path: Path) -> None:
    """The trial's job waits until its launcher is killed."""
    shell, hold = shells.Shell(tmp_path, "local"), tmp_path / "hold"
    hold.touch()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(HOLDS.format(hold=str(hold)))
    launch = {"backend": "local", "env": {"PYTHONPATH": str(tmp_path / "modules")}}
    text = (GRID % "X").replace("{backend: X, max_parallel: 4}", json.dumps(launch))
    (shell.folder / "mine.yaml").write_text(text.replace("secrets: [WANDB_API_KEY]\n", ""))
    process = shell.start("doctor", "--try", "--grid", "mine.yaml")
    shell.until(lambda: list((tmp_path / "sweeps").glob("doctor-*/state/*/1.submitted.json")))
    process.kill()
    process.communicate()
    hold.unlink()
    (name,) = (path.name for path in (tmp_path / "sweeps").iterdir() if path.is_dir())
    assert [path.name for path in _leftovers(shell) if path.parent.name == "trials"] == [name]
    document = _tried(shell, "--grid", "mine.yaml")
    assert document["steps"][0]["found"].startswith(f"{name} from ")
    assert not _leftovers(shell)
    assert os.listdir(tmp_path / "sweeps") == [".gitignore"]


def test_one_that_is_refused_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock was taken, but its plan was not written."""
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MY_KEY", "sys.argv")  # a value that the trial's command contains
    request = trial.TrialRequest("local", Launch("local"), "none", ("MY_KEY",))
    with pytest.raises(UsageError, match="contains the value of the secret MY_KEY"):
        trial.try_out(request, str(tmp_path / "root"), 60.0, lambda _: None)
    assert not list(open_store(str(tmp_path / "root")).folders_with("launcher.lock"))
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".gitignore"]


def test_one_that_cannot_be_stopped_is_left(
    on_kube: Any, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster stops answering; the message names what other verbs can remove."""
    monkeypatch.setattr("sweeper.commands.doctor_try._STOP_SECONDS", 0.0)
    monkeypatch.setattr("sweeper.launcher.control._STOP_SECONDS", 0.0)
    monkeypatch.setenv("SWEEPER_HOME", str(on_kube.folder / "home"))
    monkeypatch.chdir(on_kube.folder)
    kube.held = kube.mute_with_a_job = True
    launch = Launch("kubernetes", grace_s=0.0, options={"kubernetes": kube.options()})
    request = trial.TrialRequest("kubernetes", launch, "none", ())
    with pytest.raises(EnvironmentFailure, match=r"does not answer.*not removed") as error:
        trial.try_out(request, on_kube.root, 20.0, lambda _: None)
    assert "\n" not in str(error.value)
    kube.mute_with_a_job = kube.silent = False
    (name,) = find_sweeps(open_store(on_kube.root))
    assert name in str(error.value)
    on_kube.run("cancel", name)
    on_kube.run("sweep", "delete", name, "--yes")
    _nothing_is_left(on_kube, kube)
