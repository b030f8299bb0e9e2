"""A part of the quickstart on every backend gives the values of `local` (`make quickstarts`)."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.typed import Typed

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


class Work(Typed):
    """A folder with the grid and its own engine."""

    seconds = SECONDS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.home = {"SWEEPER_HOME": str(folder / "engine")}
        self.engine_variables: dict[str, str] = {}
        shutil.copytree(ROOT / "grids", folder / "grids")

    def launch(self, root: str, launch: Mapping[str, Any], code: int = 0, **more: str) -> str:
        hub = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(self.folder / "engine" / "hub")}
        grid = {"extends": "quickstart.yaml", "name": "quickstart", "seeds": SEEDS}
        grid["launch"] = {**launch, "max_parallel": 4, "env": hub}
        (self.folder / "grids" / "here.yaml").write_text(json.dumps(grid))
        given = ["launch", "grids/here.yaml", *PART, "--root", root, "--wait"]
        # A test's fixtures set the variables of its platform.
        environment = {**os.environ, "SWEEPER_HOME": self.environment["SWEEPER_HOME"], **more}
        return self.run(*given, code=code, **environment)


class Place(NamedTuple):
    """Where the sweep is launched; `shown` returns what the platform shows of its jobs."""

    launch: dict[str, Any]
    root: str
    shown: Callable[[], str] = lambda: ""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    made = Work(tmp_path_factory.mktemp("work"))
    made.run("engine", "start", SWEEPER_ENGINE_TOKEN=TOKEN, **made.home)
    try:
        engine = lifecycle.find(made.home["SWEEPER_HOME"])
        made.engine_variables = {"SWEEPER_ENGINE_URL": engine.url, "SWEEPER_ENGINE_TOKEN": TOKEN}
        yield made
    finally:
        made.run("engine", "stop", "--force", **made.home)


@pytest.fixture(scope="module")
def here(work: Work) -> str:
    """Return the root of the sweep on this machine, with which the others are compared."""
    root = str(work.folder / "here")
    work.launch(root, {"backend": "local"}, **work.engine_variables | work.home)
    return root


SECRETS: dict[str, Callable[[Any], object]] = {
    ARN: lambda batch: batch.secrets.update({ARN: TOKEN}),
    "engine/key": lambda kube: kube.add("secrets", "engine", values={"key": TOKEN}),
    "engine": lambda beaker: beaker.secrets.update(engine=TOKEN),
    "keys": lambda modal: modal.secrets.update(keys={"TINKER_API_KEY": TOKEN}),
}
"""How a stand-in gets the secret of this name, which contains the engine's token."""
ELSEWHERE: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "aws-batch": (
        "batch",
        ARN,
        lambda batch: json.dumps([job.describe() for job in batch.jobs()], default=str),
    ),
    "kubernetes": (
        "kube",
        "engine/key",
        lambda kube: json.dumps([kube.things[kind] for kind in ("jobs", "pods", "events")]),
    ),
    "beaker": ("beaker", "engine", lambda beaker: beaker.shown()),
    "modal": ("modal", "keys", lambda modal: modal.shown()),
}
"""By backend: the fixture, the name of the secret, and what the platform shows of its jobs."""


@pytest.fixture(params=["slurm", "ray", *ELSEWHERE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = request.param
    if name == "slurm":
        request.getfixturevalue("slurm")
        return Place({"backend": "slurm"}, str(tmp_path / "sweeps"))
    if name == "ray":
        options = request.getfixturevalue("ray").options
        return Place({"backend": "ray", "ray": options}, str(tmp_path / "sweeps"))
    fixture, secret, shown = ELSEWHERE[name]
    service = request.getfixturevalue(fixture)
    SECRETS[secret](service)
    more: dict[str, Any] = {"array": 2} if name == "aws-batch" else {}
    options = service.options(secrets={"TINKER_API_KEY": secret}, **more)
    if name == "aws-batch":
        root = service.root
    else:
        root = request.getfixturevalue("s3_root")
        service.environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    launch = {"backend": name, name.replace("-", "_"): options}
    return Place(launch, root, lambda: shown(service))


@pytest.mark.timeout(2 * SECONDS)
def test_the_same_values_as_here(place: Place, work: Work, here: str) -> None:
    output = work.launch(place.root, place.launch, code=2, SWEEPER_ENGINE_TOKEN=TOKEN)
    assert "SWEEPER_ENGINE_URL" in output  # jobs could not find the engine
    output += work.launch(place.root, place.launch, **work.engine_variables)
    roots = {"here": here, "there": place.root}
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
