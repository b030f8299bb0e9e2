"""Jobs on machines that have only Python (`launch.requirements`), installed from local wheels."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells
from support import wheels

from sweeper.recipe import job_bundle
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event
from sweeper.worker import bare_machine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PRINTS = "python -c 'import dependency; print(dependency.VERSION)' > '{log_path}/version'"


class Node:
    """A machine with a bare `python`, a `home` shared by jobs, and a folder of `wheels`."""

    def __init__(self, folder: Path, support: Any) -> None:
        self.home, self.wheels = folder / "home", folder / "wheels"
        support.wheels(self.wheels, job_bundle.pinned(["s3fs"]))
        for version in ("1.0", "2.0"):
            text = f"VERSION = '{version}'\n"
            support.made(self.wheels, "dependency", version, dependency=text)
        made = [sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")]
        subprocess.run(made, check=True)
        self.python = str(folder / "bare" / "bin" / "python")
        self.environment = {"SWEEPER_HOME": str(self.home), "PIP_CONFIG_FILE": os.devnull}

    def requirements(self, *lines: str) -> str:
        return "\n".join(["--no-index", f"--find-links {self.wheels}", *lines, ""])

    def environments(self) -> list[str]:
        """Return the requirements of each environment that was built."""
        return [path.read_text() for path in self.home.glob("built/*/requirements.txt")]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("node"), wheels)


def _grid(shell: Any, options: dict[str, Any], requirements: str, **more: Any) -> None:
    """Write a sweep of two runs that print the version of their dependency."""
    (shell.folder / "needs.txt").write_text(requirements)
    grid = {
        "name": "toys",
        "command": ["sh", "-c", PRINTS],
        "service": "none",
        "grid": {"x": [1, 2]},
        "launch": options | {"requirements": "needs.txt", "lease": "15s", "sync": "1s"},
    }
    (shell.folder / "grid.yaml").write_text(json.dumps(grid | more))


def _versions(shell: Any) -> set[str]:
    store = open_store(shell.root)
    paths = [path for path in store.names("toys/runs") if path.endswith("/version")]
    return {store.read(path).decode().strip() for path in paths}


def _printed(cluster: Any) -> str:
    logs = (Path(cluster.folder) / "containers").glob("*.log")
    return "".join(path.read_text(errors="replace") for path in logs)


def test_on_kubernetes(elsewhere: Any, tmp_path: Path, kube: Any, node: Node) -> None:
    """Each environment is built once. A changed requirement makes another environment."""
    shell = elsewhere("kubernetes", kube).shell
    kube.environment |= node.environment
    options = {"backend": "kubernetes", "kubernetes": kube.options(python=node.python)}
    before, printed = len(node.environments()), _printed(kube).count("building an environment")
    _grid(shell, options, node.requirements("dependency==1.0", f"# {tmp_path}"))
    shell.run("launch", "grid.yaml", "--wait")
    assert shell.run_states() == {"succeeded": 2}
    assert _versions(shell) == {"1.0"}
    made = node.environments()
    (ours,) = (text for text in made if "s3fs==" in text)  # the other may be of another test
    assert "--find-links" in ours and "dependency" not in ours
    assert sum(str(tmp_path) in text for text in made) == 1
    assert _printed(kube).count("building an environment") - printed == len(made) - before
    assert len(list(node.home.glob("sources/*/sweeper/worker/main.py"))) == 1
    asks = "python -c 'import sweeper.sandbox, dependency as d; print(d.VERSION)' > {log_path}"
    _grid(
        shell,
        options,
        node.requirements("dependency==2.0", f"# {tmp_path}"),
        command=["sh", "-c", f"{asks}/version"],
        grid={"x": [3]},
    )
    shell.run("launch", "grid.yaml", "--wait", "--drop")
    assert _versions(shell) == {"1.0", "2.0"}
    assert len(node.environments()) == len(made) + 1
    tried = shell.run("doctor", "--backend", "kubernetes", "--grid", "grid.yaml", "--try")
    assert "succeeded" in tried and "the copy of" in tried and "removed" in tried


def test_on_beaker_with_a_requirement_that_is_not_to_be_had(
    elsewhere: Any, tmp_path: Path, beaker: Any, node: Node
) -> None:
    """One line names the missing requirement, for the recipe's and the worker's environment."""
    shell = elsewhere("beaker", beaker).shell
    beaker.environment |= node.environment
    options = {"backend": "beaker", "beaker": beaker.options(python=node.python)}
    _grid(shell, options, node.requirements("dependency==3.0"), grid={"x": [1]})
    shell.run("launch", "grid.yaml", "--wait", code=3)
    message = "No matching distribution found for dependency==3.0"
    (detail,) = _details(shell)
    assert "\n" not in detail and "needs.txt" in detail and message in detail
    assert "needs.txt: No matching distribution" in shell.run("status", "toys", code=3)
    assert not any("dependency==3.0" in text for text in node.environments())
    beaker.environment |= {"SWEEPER_HOME": str(tmp_path / "empty")}
    nothing = node.requirements("dependency==1.0").replace(str(node.wheels), str(tmp_path))
    _grid(shell, options, nothing, grid={"x": [2]})
    shell.run("launch", "grid.yaml", "--wait", code=3)
    assert any("started: sweeper: no environment for the job: " in line for line in _details(shell))


def _details(shell: Any) -> list[str]:
    store = open_store(shell.root)
    states = SweepFolder(store, "toys").read_states()
    return [
        str(SweepFolder(store, "toys").read_outcome(run, state).detail)
        for run, state in states.items()
    ]


def test_in_an_array_on_aws_batch(tmp_path: Path, batch: Any, node: Node, monkeypatch: Any) -> None:
    """A child finds its run by its index. The request stays below Batch's size limit."""
    monkeypatch.setenv("SWEEPER_ROOT", batch.root)

    def contain(command: list[str], environment: dict[str, str]) -> list[str]:
        environment |= node.environment
        return command

    batch.contain = contain
    shell = shells.ShellElsewhere(tmp_path, "aws-batch", batch.options(), batch.root)
    options = {"backend": "aws-batch", "aws_batch": batch.options(array=2, python=node.python)}
    _grid(shell, options, node.requirements("dependency==1.0"))
    shell.run("launch", "grid.yaml", "--wait")
    assert shell.run_states() == {"succeeded": 2}
    assert _versions(shell) == {"1.0"}
    events = SweepFolder(open_store(batch.root), "toys").read_events()
    assert all((1, Event.SUCCEEDED) in happened for happened in events.values())
    job = batch.jobs()[-1]
    assert job.container_overrides["command"][5] == "sweeper.worker.array"
    assert len(json.dumps(job.container_overrides)) < 8192


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder for the real pip, without an index or uv."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path


def test_pip_is_not_misled(pip: Path) -> None:
    """Modules in the working folder and variables of the image have no effect."""
    (pip / "work" / "types.py").write_text("raise SystemExit('of the working folder')\n")
    (pip / "work" / "sitecustomize.py").write_text("raise SystemExit('of the image')\n")
    wheels.made(pip / "wheels", "dependency", "1.0", dependency="VERSION = '1.0'")
    misled = {"PYTHONPATH": str(pip / "work"), "PIP_TARGET": str(pip / "there"), "PIP_USER": "1"}
    text = f"--no-index\n--find-links {pip}/${{WHERE}}\ndependency==1.0\n"
    environ = {**os.environ, **misled, "WHERE": "wheels"}
    python = bare_machine.build(str(pip / "built"), text, environ)
    assert python is not None and not (pip / "there").exists()
    command = [python, "-I", "-c", "import dependency; print(dependency.VERSION)"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"1.0\n"


def test_pip_tells_no_value_and_names_what_fails(pip: Path, capfd: Any) -> None:
    secret = "canary-5f0c1d2e"
    folder = pip / secret
    folder.mkdir()
    with tarfile.open(folder / "broken-1.0.tar.gz", "w:gz") as packed:
        entry = tarfile.TarInfo("broken-1.0/setup.py")
        entry.size = len(b"raise SystemExit(3)\n")
        packed.addfile(entry, io.BytesIO(b"raise SystemExit(3)\n"))
    text = f"--no-index\n--find-links {pip}/${{WHERE}}\nbroken==1.0\n"
    with pytest.raises(bare_machine.BuildError) as error:
        bare_machine.build(str(pip / "built"), text, {**os.environ, "WHERE": secret})
    assert "broken" in str(error.value) and "See above" not in str(error.value)
    printed = capfd.readouterr().out
    assert "${WHERE}" in printed and secret not in printed + str(error.value)
