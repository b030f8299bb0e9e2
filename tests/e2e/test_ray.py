"""A real Ray of two nodes on loopback, with a token (`make ray`)."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from harness.single_jobs import a_job, until, until_state
from support.typed import Typed

from sweeper.backends import open_backend
from sweeper.backends.base import JobState
from sweeper.errors import Unreachable
from sweeper.testing.contract import BackendContract, Site

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    # Drivers outlive their launcher, which here is the test.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class TestRay(BackendContract):
    @pytest.fixture
    def site(self, ray: Any, tmp_path: Path) -> Iterator[Site]:
        @contextmanager
        def hold() -> Iterator[Mapping[str, object]]:
            yield {"resources": {"nowhere": 1.0}}

        made = Site(
            "ray",
            tmp_path,
            options=ray.options,
            parallel=8,
            many=int(os.environ.get("SWEEPER_TEST_MANY", "40")),
            seconds=180.0,
            hold=hold,
            silence=ray.head_away,
            preempt=lambda _: ray.without_second("drain"),
            lose_node=lambda _: ray.without_second(),
            fragile={"resources": {"second": 1.0}},
        )
        with made as site:
            yield site


def test_what_a_sweep_that_was_there_before_has_left(ray: Any, tmp_path: Path) -> None:
    """The next sweep in the folder does not own its jobs, and waits while one is running."""
    folder = tmp_path / "sweep"

    def opened() -> Any:
        return open_backend("ray", "sweep", str(folder), ray.options)

    before, jobs = opened(), [a_job(1, "true"), a_job(2)]
    tokens = [job.token for job in jobs]
    before.submit(jobs)
    until_state(before, tokens[0], JobState.ENDED)
    until_state(before, tokens[1], JobState.RUNNING)
    shutil.rmtree(folder)
    later = opened()
    assert later.find(tokens) == {}
    assert {s.state for s in later.poll(tokens).values()} == {JobState.ABSENT}

    def is_taken(number: int) -> bool:
        with suppress(Unreachable):  # an actor ends shortly after it has reported its job's end
            later.submit([a_job(number)])
            return True
        return False

    until(lambda: is_taken(1))
    with pytest.raises(Unreachable, match=r"the actor .* of an earlier sweep in this folder"):
        later.submit([a_job(2)])
    until_state(later, tokens[0], JobState.RUNNING)
    assert set(later.find(tokens)) == {tokens[0]}
    before.cancel([tokens[1]])
    until_state(before, tokens[1], JobState.ENDED)
    until(lambda: is_taken(2))
    until_state(later, tokens[1], JobState.RUNNING)
    later.cancel(tokens)


def test_what_a_job_left_that_is_forgotten_is_gone(ray: Any, tmp_path: Path) -> None:
    backend = open_backend("ray", "sweep", str(tmp_path / "sweep"), ray.options)
    job = a_job(1, "sh", "-c", "echo said; exit 3")
    backend.submit([job])
    assert until_state(backend, job.token, JobState.ENDED).code == 3
    assert list(backend.logs(job.token)) == ["said"]
    backend.forget([job.token])
    observed = backend.poll([job.token])[job.token]
    assert (observed.state, observed.code) == (JobState.ENDED, None)
    assert list(backend.logs(job.token)) == []


SECRET = "a-value-that-must-be-seen-nowhere"


class Sweeper(Typed):
    """`sweeper` in its own folder."""

    def __init__(self, folder: Path, cluster: Any, **options: Any) -> None:
        super().__init__(folder, A_SECRET=SECRET)
        self.options = {**cluster.options, **options}

    def write(self, command: str, launch: Mapping[str, Any] = MappingProxyType({}), **grid: Any):
        whole = {"name": "g", "command": ["sh", "-c", command], "service": "none", **grid}
        ray = {**self.options, **launch.get("ray", {})}
        whole["launch"] = {"backend": "ray", "retries": 0, "grace": "5s", **launch, "ray": ray}
        (self.folder / "g.yaml").write_text(json.dumps(whole))

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        return super().start(*arguments, **({"stderr": subprocess.STDOUT} | options))

    def printed(self, *arguments: str) -> str:
        """Return the output of a verb, whatever its exit code."""
        return self.start(*arguments).communicate(timeout=300)[0]

    def runs(self, sweep: str = "g") -> list[dict[str, Any]]:
        return self.runs_of(sweep)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < deadline, "waited 180 s in vain"
            time.sleep(0.2)


@pytest.fixture
def sweeper(ray: Any, tmp_path: Path) -> Sweeper:
    return Sweeper(tmp_path, ray)


def test_options_of_runs_and_hidden_secrets(sweeper: Sweeper, ray: Any) -> None:
    """Runs have their own options, and neither platform nor sweep shows a secret or the token."""
    overrides = [{"if": {"x": 2}, "resources": {"second": 1}, "num_cpus": 2}]
    sweeper.write("test $A_SECRET; env; sleep 1", {"ray": {"overrides": overrides}},
                  grid={"x": [1, 2]}, secrets=["A_SECRET"])  # fmt: skip
    planned = sweeper.json("plan", "g.yaml")["runs"]
    assert [run["job"]["resources"].get("num_cpus") for run in planned] == [None, 2]
    sweeper.run("launch", "g.yaml", "--wait")
    assert {run["state"] for run in sweeper.runs()} == {"succeeded"}
    shown = ray.everything_shown()
    assert all(run["id"] in shown for run in sweeper.runs())
    logs = [path.read_text() for path in sweeper.folder.rglob("stdout.log")]
    assert len(logs) == 2 and all("SWEEPER_RUN=" in log for log in logs)
    files = [path for path in sweeper.folder.rglob("*") if path.is_file()]
    everywhere = [shown, *(path.read_text(errors="replace") for path in files)]
    for value in (SECRET, ray.environment["RAY_AUTH_TOKEN"]):
        assert [text[:200] for text in everywhere if value in text] == []


def test_cancelling_what_waits_and_what_runs(sweeper: Sweeper) -> None:
    overrides = [{"if": {"x": 2}, "resources": {"nowhere": 1}}]
    launch = {"ray": {"overrides": overrides, "wait_for_nodes": True}}
    command = "trap 'echo told; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    sweeper.write(command, launch, grid={"x": [1, 2]})
    launcher = sweeper.start("launch", "g.yaml", "--wait")
    sweeper.until(lambda: "queued: resources" in sweeper.printed("status", "g"))
    sweeper.until(lambda: "begun" in sweeper.printed("logs", "g/x=1"))
    sweeper.run("cancel", "g")
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 3, output
    assert {run["state"] for run in sweeper.runs()} == {"cancelled"}
    assert "told" in sweeper.run("logs", "g/x=1")


def test_mistakes_are_one_line(sweeper: Sweeper) -> None:
    """Before any run starts."""

    def refused(code: int, *given: str, **more: str) -> str:
        output = sweeper.run("launch", "g.yaml", "--wait", *given, code=code, **more)
        (line,) = [line for line in output.splitlines() if line.startswith("sweeper: ")]
        assert "Traceback" not in output
        assert not (sweeper.folder / "sweeps" / "g" / "state").exists()
        return line

    sweeper.write("true")
    assert "127.0.0.1:1 does not answer: " in refused(6, "launch.ray.address=127.0.0.1:1")
    assert "a job asks for CPU 900, but the largest node has" in refused(
        2, "launch.ray.num_cpus=900"
    )
    assert "tape 1 asked for" in refused(2, "launch.ray.resources={tape: 1}")
    assert "a job asks for GPU 8, but the largest node has 0" in refused(2, "launch.ray.num_gpus=8")
    assert "memory 900000 asked for" in refused(2, "launch.ray.memory=900000")
    assert "cannot read the folder" in refused(2, "launch.ray.files=false")
    assert "nothing answers" in refused(6, RAY_AUTH_TOKEN="another-token-than-the-clusters")


def test_what_only_a_node_can_know(sweeper: Sweeper) -> None:
    sweeper.write("true", {"ray": {"python": "/no/such/python"}})
    sweeper.run("launch", "g.yaml", "--wait", code=3)
    (run,) = sweeper.runs()
    assert run["reason"].startswith("start: cannot start /no/such/python: No such file")
    sweeper.write("true", {"ray": {"secrets": {"KEY": "file:/no/such/key"}}}, name="h")
    sweeper.run("launch", "g.yaml", "--wait", code=3)
    (run,) = sweeper.runs("h")
    assert "the secret KEY: /no/such/key cannot be read" in run["reason"]


def test_doctor(sweeper: Sweeper) -> None:
    look = ("doctor", "--backend", "ray", "--grid", "g.yaml")
    sweeper.write("true")
    output = sweeper.printed(*look)
    assert sweeper.options["address"] in output and "2, 32 CPU" in output
    assert "a token in the environment" in output
    sweeper.write("true", {"ray": {"num_gpus": 1}})
    assert "a job asks for GPU 1, but the largest node has 0" in sweeper.run(*look, code=6)
    sweeper.write("true", {"ray": {"address": "127.0.0.1:1"}})
    assert "unknown: the head did not answer" in sweeper.run(*look, code=6)


def test_nodes_that_share_no_files(
    s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is on S3, and the nodes have its keys. Jobs use the code of the launch."""
    (tmp_path / "key").write_text(SECRET)
    from support import ray_cluster as support

    if support.missing():
        pytest.skip("no Ray here: `make ray` makes an environment that has it")
    with support.Cluster(cpus=4) as cluster:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            monkeypatch.setenv(name, cluster.environment[name])
        secrets = {"KEY": f"file:{tmp_path}/key"}
        options = {"files": False, "python": sys.executable, "secrets": secrets}
        code = tmp_path / "code"
        code.mkdir()
        typed = Sweeper(code, cluster, **options)
        typed.environment["SWEEPER_ROOT"] = s3_root
        typed.environment["SWEEPER_HOME"] = str(tmp_path / "home")
        typed.environment["KEY"] = "of the launch, and not what the nodes have"
        (code / "about.txt").write_text("use the old code")
        command = "cat about.txt; printenv KEY | wc -c; sleep 1"
        typed.write(command, secrets=["KEY"], grid={"x": [1, 2]})
        for arguments in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *arguments], cwd=code, check=True)
        typed.run("launch", "g.yaml", "--wait")
        assert {run["state"] for run in typed.runs()} == {"succeeded"}
        output = typed.run("logs", "g/x=1")
        assert "use the old code" in output and str(len(SECRET) + 1) in output
        assert SECRET not in output + cluster.everything_shown()
