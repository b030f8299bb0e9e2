"""The quickstart on real Slurm and Ray, and with the store on S3 on emulated AWS Batch and
stand-ins for Kubernetes, Beaker and Modal: the recipe `sft` with an engine at an address that jobs
are told, to the same values as on `local`.

A part of it; `make quickstarts` runs the whole grid.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sweeper import analysis
from sweeper.engine import lifecycle
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
TOKEN = "tml-a-token-of-the-test-0123456789"
ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:engine-AbCdEf"
WHOLE = "SWEEPER_TEST_WHOLE" in os.environ
PART = ["~lora_rank", "learning_rate=[2e-3,8e-3]", "max_steps=6", "eval_every=3", "test_size=8"]
PART = [] if WHOLE else PART
SEEDS = 3 if WHOLE else 1
SECONDS = 900 if WHOLE else 250


class Work:
    """A folder with the grid, and an engine of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = {"SWEEPER_HOME": str(folder / "engine")}
        self.engine_variables: dict[str, str] = {}
        shutil.copytree(ROOT / "grids", folder / "grids")

    def sweeper(self, *arguments: str, code: int = 0, **more: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "sweeper"), *arguments],
            cwd=self.folder,
            env=os.environ | {"SWEEPER_HOME": str(self.folder / "home")} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def launch(self, root: str, launch: Mapping[str, Any], code: int = 0, **more: str) -> str:
        hub = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(self.folder / "engine" / "hub")}
        grid = {"extends": "quickstart.yaml", "name": "quickstart", "seeds": SEEDS}
        grid["launch"] = {**launch, "max_parallel": 4, "env": hub}
        (self.folder / "grids" / "here.yaml").write_text(json.dumps(grid))
        given = ["launch", "grids/here.yaml", *PART, "--root", root, "--wait"]
        return self.sweeper(*given, code=code, **more)


class Place(NamedTuple):
    """Where it is launched; `shown` gives what the platform shows of jobs."""

    launch: dict[str, Any]
    root: str
    shown: Callable[[], str] = lambda: ""


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    made = Work(tmp_path)
    made.sweeper("engine", "start", SWEEPER_ENGINE_TOKEN=TOKEN, **made.home)
    try:
        engine = lifecycle.find(made.home["SWEEPER_HOME"])
        assert engine is not None
        made.engine_variables = {"SWEEPER_ENGINE_URL": engine.url, "SWEEPER_ENGINE_TOKEN": TOKEN}
        yield made
    finally:
        made.sweeper("engine", "stop", "--force", **made.home)


@pytest.fixture(params=["slurm", "aws-batch", "ray", "kubernetes", "beaker", "modal"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "slurm":
        request.getfixturevalue("slurm")
        return Place({"backend": "slurm"}, str(tmp_path / "sweeps"))
    if request.param == "ray":
        options = request.getfixturevalue("ray").options
        return Place({"backend": "ray", "ray": options}, str(tmp_path / "sweeps"))
    if request.param == "kubernetes":
        return _kubernetes(request)
    if request.param == "beaker":
        return _beaker(request)
    if request.param == "modal":
        return _modal(request)
    batch = request.getfixturevalue("batch")
    batch.secrets[ARN] = TOKEN
    options = batch.options(secrets={"TINKER_API_KEY": ARN}, array=2)

    def shown() -> str:
        return json.dumps([job.describe() for job in batch.jobs()], default=str)

    return Place({"backend": "aws-batch", "aws_batch": options}, batch.root, shown)


def _kubernetes(request: pytest.FixtureRequest) -> Place:
    kube, root = request.getfixturevalue("kube"), request.getfixturevalue("s3_root")
    aws = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    kube.environment = aws
    kube.add("secrets", "engine", values={"key": TOKEN})
    options = kube.options(secrets={"TINKER_API_KEY": "engine/key"})

    def shown() -> str:
        return json.dumps([kube.things[kind] for kind in ("jobs", "pods", "events")])

    return Place({"backend": "kubernetes", "kubernetes": options}, root, shown)


def _beaker(request: pytest.FixtureRequest) -> Place:
    beaker, root = request.getfixturevalue("beaker"), request.getfixturevalue("s3_root")
    beaker.environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    beaker.secrets["engine"] = TOKEN
    options = beaker.options(secrets={"TINKER_API_KEY": "engine"})
    return Place({"backend": "beaker", "beaker": options}, root, beaker.shown)


def _modal(request: pytest.FixtureRequest) -> Place:
    modal, root = request.getfixturevalue("modal"), request.getfixturevalue("s3_root")
    modal.environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    modal.secrets["engine"] = {"TINKER_API_KEY": TOKEN}
    options = modal.options(secrets={"TINKER_API_KEY": "engine"})
    return Place({"backend": "modal", "modal": options}, root, modal.shown)


@pytest.mark.timeout(2 * SECONDS)
def test_the_same_values_as_here(place: Place, work: Work, tmp_path: Path) -> None:
    output = work.launch(place.root, place.launch, code=2, SWEEPER_ENGINE_TOKEN=TOKEN)
    assert "SWEEPER_ENGINE_URL" in output  # nobody could know where the engine is
    work.launch(str(tmp_path / "here"), {"backend": "local"}, **work.engine_variables | work.home)
    output += work.launch(place.root, place.launch, **work.engine_variables)
    roots = {"here": str(tmp_path / "here"), "there": place.root}
    frames = {where: Registry(root, cache=False).runs() for where, root in roots.items()}
    values = {where: frame.set_index("name")["value"].to_dict() for where, frame in frames.items()}
    assert set(frames["there"]["state"]) == {"succeeded"}
    assert len(values["there"]) == (18 if WHOLE else 2)
    assert values["there"] == values["here"]
    reports = {where: analysis.analyze(root, "quickstart") for where, root in roots.items()}
    assert reports["there"].html_path == f"{place.root}/quickstart/report/report.html"
    headlines = {where: report.verdict.splitlines()[:4] for where, report in reports.items()}
    assert headlines["there"] == headlines["here"]
    print("\n".join(headlines["there"]))
    assert TOKEN not in place.shown() + output
