"""Jobs of a sweep run in the image of docker/Dockerfile; failed builds say why."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]

# Checks what the Dockerfile promises about the environment of jobs.
TOY = """
import json, os, shutil, sys
import sweeper.recipes.sft, sweeper, tinker
assert os.getuid() != 0, "it is root"
assert shutil.which("git"), "there is no git"
assert sweeper.__file__.startswith("/usr/local/lib"), sweeper.__file__
assert os.environ["HOME"] == "/home/runs" and os.getcwd().startswith("/home/runs"), os.getcwd()
with open(os.path.join(sys.argv[2], "metrics.jsonl"), "a") as file:
    print(json.dumps({"step": 0, "loss": float(sys.argv[1])}), file=file)
"""
GRID: dict[str, Any] = {
    "name": "toys",
    "command": ["python", "toy.py", "{x}", "{log_path}"],
    "service": "none",
    "grid": {"x": [1, 2]},
    "metric": {"name": "loss", "goal": "minimize"},
}


@pytest.fixture
def contained(batch: Any) -> Iterator[Any]:
    """Yield the emulation, with all its jobs in one container of the image."""
    place = os.environ.get("SWEEPER_TEST_IMAGE")
    if place is None:
        pytest.skip("no image: `make image` builds one")
    storage = ("--root", f"{place}/storage", "--runroot", f"{place}/run")
    policy = ("--signature-policy", f"{place}/policy.json")

    def buildah(verb: str, *arguments: str) -> list[str]:
        return ["buildah", *storage, "--storage-driver", "vfs", verb, *arguments]

    made = buildah("from", "--pull-never", *policy, "localhost/sweeper")
    done = subprocess.run(made, capture_output=True, text=True, check=True)
    container = done.stdout.strip()

    def contain(command: list[str], environment: dict[str, str]) -> list[str]:
        given = [f"--env={name}={value}" for name, value in environment.items()]
        return buildah("run", "--isolation", "chroot", *given, container, "--", *command)

    batch.contain = contain
    yield batch
    batch.contain = None
    subprocess.run(buildah("rm", container), capture_output=True, check=True)


def test_a_sweep_in_the_image(contained: Any, tmp_path: Path) -> None:
    """Its interpreter is `python`, the backend's default."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shell = shells.Shell(folder, "aws-batch")
    (folder / "toy.py").write_text(TOY)
    options = contained.options(array=2)
    del options["python"]
    launch = {"backend": "aws-batch", "sync": "1s", "aws_batch": options}
    (folder / "grid.yaml").write_text(json.dumps(GRID | {"launch": launch}))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    output = shell.run("launch", "grid.yaml", "--root", contained.root, "--wait")
    assert "2/2 succeeded" in output
    registry = Registry(contained.root, cache=False)
    runs = registry.runs(sweep="toys")
    assert sorted(registry.metrics(runs)["loss"]) == [1.0, 2.0]


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """Return a function that builds with stand-in programs: exit code, output and calls."""

    def built(**programs: str) -> tuple[int, str, list[str]]:
        folder, calls = tmp_path / "programs", tmp_path / "calls"
        folder.mkdir(exist_ok=True)
        calls.write_text("")
        for name, line in programs.items():
            text = f'#!/bin/sh\necho "{name} $*" >>{calls}\n{line}\n'
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        done = subprocess.run(
            ["sh", ".ci/build-image", str(tmp_path / "image")],
            cwd=ROOT,
            env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()

    return built


def test_users_other_than_root_are_refused(build: Any) -> None:
    code, output, calls = build(id="echo 1000", buildah="", debootstrap="")
    assert (code, len(output.splitlines()), calls) == (1, 1, ["id -u"])
    assert "needs root" in output


def test_the_output_of_debootstrap_is_shown(build: Any) -> None:
    """It writes its errors to standard output."""
    code, output, _ = build(id="echo 0", buildah="exit 1", debootstrap="echo E: no mirror; exit 1")
    assert code == 1
    assert output.splitlines()[-1] == "E: no mirror"


def test_a_build_that_fails_leaves_no_container(build: Any) -> None:
    """A successful build removes the image of the previous build."""
    half = 'case "$*" in *" inspect "*|*" run "*) exit 1;; *" from "*) echo half-made;; esac'
    code, _, calls = build(id="echo 0", buildah=half, debootstrap="")
    assert code != 0
    assert calls[-1].endswith(" rm half-made")
    code, _, calls = build(id="echo 0", buildah="")
    assert code == 0
    assert calls[-2].endswith(" rmi --prune")  # the last call lists the images
