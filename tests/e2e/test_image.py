"""The image of docker/Dockerfile, as `make image` builds it, has the jobs of a sweep
on the emulated AWS Batch in it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.registry import Registry

pytestmark = pytest.mark.e2e

# What the Dockerfile promises of where a job runs.
TOY = """
import json, os, shutil, sys
import recipes.sft, sweeper, tinker
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
    """The emulation, with all its jobs in one container of the image."""
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


def test_a_sweep_in_the_image(contained: Any, shells: Any, tmp_path: Path) -> None:
    """Its interpreter is `python`, as the backend has it unless told otherwise."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shell = shells.Shell(folder, "aws-batch")
    (folder / "toy.py").write_text(TOY)
    options = contained.options(array=2)
    del options["python"]
    launch = {"backend": "aws-batch", "sync": "1s", "aws_batch": options}
    (folder / "grid.yaml").write_text(json.dumps(GRID | {"launch": launch}))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    said = shell.run("launch", "grid.yaml", "--root", contained.root, "--wait")
    assert "2/2 succeeded" in said
    registry = Registry(contained.root, cache=False)
    runs = registry.runs(sweep="toys")
    assert sorted(registry.metrics(runs)["loss"]) == [1.0, 2.0]
