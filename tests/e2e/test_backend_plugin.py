"""A backend from another package has every feature of a built-in one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

PLUGIN = """
import json, os
from typing import Annotated, NamedTuple
from sweeper.backends.base import BackendType, Capabilities, Check, Leftover
from sweeper.backends.local.backend import LocalBackend
from sweeper.errors import UsageError
from sweeper.fields.kinds import Duration, Integer, Text
from sweeper.fields.options import Option, read_options, section_of


class Borrowed(LocalBackend):
    name = "borrowed-time"

    def __init__(self, folder, options):
        super().__init__(folder)
        self._note, self._options = os.path.join(folder, "borrowed.jsonl"), dict(options)

    def preflight(self, asked):
        if any(one.get("queue") == "shut" for one in asked):
            raise UsageError("borrowed-time: the queue is shut")

    def submit(self, jobs):
        with open(self._note, "a") as file:
            for job in jobs:
                file.write(json.dumps([self._options, dict(job.resources)]) + "\\n")
                assert os.environ["BORROWED_TOKEN"] == "a-key-to-the-machines"
        super().submit(jobs)


class Options(NamedTuple):
    queue: Annotated[str | None, Option(Text(), "Where jobs wait.", "long")] = None
    nice: Annotated[int, Option(Integer(0, 19), "How nice they are.")] = 3
    limit_s: Annotated[float, Option(Duration(60), "How long one may take.")] = 3600.0


def capabilities(options):
    if "queue" not in options:
        raise UsageError("borrowed-time: there is no queue")
    return Capabilities(credentials=("BORROWED_TOKEN",))


def check(options):
    typed = read_options(Options, options, "launch.borrowed_time")
    if typed.queue != "long":
        raise LookupError("only the queue `long` is open")
    return f"long, {typed.nice} nice"


BACKEND = BackendType(
    "borrowed-time",
    "Somebody's machines.",
    lambda sweep, folder, options: Borrowed(folder, options),
    section_of(Options),
    by_run=True,
    capabilities=capabilities,
    checks=lambda options: [Check("the queue", True, lambda: check(options))],
    leftovers=lambda folder, over, well: [
        Leftover([path], "notes of jobs that are over")
        for path in [os.path.join(folder, "borrowed.jsonl")]
        if os.path.exists(path)
    ],
)
"""
GRID = """
name: g
command: [sh, -c, "echo {x}; env"]
grid: {x: [1, 2]}
launch:
  backend: borrowed-time
  borrowed_time: {queue: long, limit: 2h, overrides: [{if: {x: 2}, nice: 9}]}
"""
WRONG = """
name: g
command: [sh, -c, "echo {x}"]
grid: {x: []}
launch:
  backend: borrowd-time
  retries: many
  borrowed_time: {queu: long, nice: 20, overrides: [{if: {x: 2}, limt: 2h}]}
"""


OFFERED = """
from argparse import Namespace
from sweeper.commands.completion import Offers
asked = {"prefix": "launch.b", "parser": None, "parsed_args": Namespace(grid="g.yaml")}
print(*Offers()(action=Namespace(dest="overrides"), **asked))
"""


@pytest.fixture
def typed(tmp_path: Path):
    """Return a function that runs sweeper in an environment with the package."""
    site = tmp_path / "site"
    about = site / "borrowed-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "borrowed.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: borrowed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[sweeper.backends]\nborrowed-time = borrowed:BACKEND\n"
    )
    (tmp_path / "sweeper").mkdir()
    (tmp_path / "sweeper" / "config.toml").write_text("[borrowed_time]\nnice = 5\n")
    (tmp_path / "g.yaml").write_text(GRID)
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "XDG_CONFIG_HOME": str(tmp_path),
        "SWEEPER_HOME": str(tmp_path / "home"),
        "SWEEPER_ROOT": str(tmp_path / "sweeps"),
        "BORROWED_TOKEN": "a-key-to-the-machines",
    }

    def run(*arguments: str, code: int = 0, program: Sequence[str] = ("-m", "sweeper")) -> str:
        done = subprocess.run(
            [sys.executable, "-P", *program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def test_it_is_planned_launched_diagnosed_and_cleaned_up_after(typed, tmp_path: Path) -> None:
    planned = json.loads(typed("plan", "g.yaml", "--json"))
    overrides = [{"if": {"x": [2]}, "nice": 9}]
    given = {"queue": "long", "nice": 5, "limit_s": 7200.0}
    assert planned["launch"]["borrowed_time"] == given | {"overrides": overrides}
    resources = [run["job"]["resources"] for run in planned["runs"]]
    assert resources == [given, given | {"nice": 9}]

    typed("launch", "g.yaml", "--wait")
    assert [run["state"] for run in json.loads(typed("ls", "g", "--json"))["runs"]] == [
        "succeeded"
    ] * 2
    notes = (tmp_path / "sweeps" / "g" / "borrowed.jsonl").read_text().splitlines()
    calls = [json.loads(line) for line in notes]
    assert sorted(request["nice"] for _, request in calls) == [5, 9]
    assert all(options["queue"] == "long" for options, _ in calls)

    for log in (tmp_path / "sweeps" / "g" / "attempts").glob("*/stdout.log"):
        assert "SWEEPER_RUN" in log.read_text()
        assert "a-key-to-the-machines" not in log.read_text()  # only the launcher has it

    checks = json.loads(typed("doctor", "--backend", "borrowed-time", "--grid", "g.yaml", "--json"))
    (queue,) = [check for check in checks["checks"] if check["name"] == "the queue"]
    assert (queue["good"], queue["found"]) == (True, "long, 5 nice")
    typed("doctor", "--backend", "borrowed-time", code=6)
    tried = typed("doctor", "--backend", "borrowed-time", "--grid", "g.yaml", "--try", "--json")
    assert json.loads(tried)["error"] is None
    assert [step["name"] for step in json.loads(tried)["steps"]][-1] == "removed"
    assert not list((tmp_path / "sweeps").glob("doctor-*"))

    assert "notes of jobs that are over" in typed("store", "gc", "--days", "0")
    typed("store", "gc", "--days", "0", "--delete")
    assert not (tmp_path / "sweeps" / "g" / "borrowed.jsonl").exists()


def test_its_mistakes_are_reported_with_all_others(typed, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    assert typed("plan", "wrong.yaml", code=2).replace("sweeper: ", "").splitlines() == [
        "wrong.yaml:4:8: axis 'x' has no values",
        "wrong.yaml:6:12: launch.backend: no backend 'borrowd-time': use aws-batch, beaker, "
        "borrowed-time, kubernetes, local, modal, ray, slurm, ssh, tmux; "
        "did you mean 'borrowed-time'?",
        "wrong.yaml:7:12: launch.retries is a string; it takes an integer",
        "wrong.yaml:8:19: unknown key 'queu' in launch.borrowed_time; did you mean 'queue'?",
        "wrong.yaml:8:37: launch.borrowed_time.nice must be 0 to 19, not 20",
        "wrong.yaml:8:66: unknown key 'limt' in launch.borrowed_time.overrides; did you mean"
        " 'limit'?",
    ]
    assert "'borrowed_time'" in typed("plan", "g.yaml", "launch.borowed_time.nice=1", code=2)
    lacking = "sweeper: g.yaml:6:12: borrowed-time: there is no queue\n"
    assert typed("plan", "g.yaml", "~launch.borrowed_time", code=2) == lacking
    shut = typed("launch", "g.yaml", "--wait", "launch.borrowed_time.queue=shut", code=2)
    assert "the queue is shut" in shut


def test_it_is_documented_where_the_others_are(typed, tmp_path: Path) -> None:
    schema = json.loads(typed("init", "--schema"))
    about = schema["properties"]["launch"]["properties"]["borrowed_time"]
    assert about["description"] == "Somebody's machines."
    assert list(about["properties"]) == ["queue", "nice", "limit", "overrides"]
    assert about["properties"]["nice"] == {
        "description": "How nice they are.",
        "default": 3,
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": 19,
    }
    assert "launch.borrowed_time.queue=" in typed(program=["-c", OFFERED]).split()
    lines = typed("init", "sft", "--backend", "borrowed-time", "--out", "-").splitlines()
    written = [" ".join(line.split()) for line in lines]
    assert "borrowed_time: # Somebody's machines." in written
    assert "# queue: long # Where jobs wait." in written
    assert "# limit: 1h # How long one may take." in written


def test_what_is_no_backend_is_reported(typed, tmp_path: Path) -> None:
    entry = tmp_path / "site" / "borrowed-1.0.dist-info" / "entry_points.txt"
    entry.write_text("[sweeper.backends]\nborrowed-time = borrowed:check\n")
    output = typed("plan", "g.yaml", code=2)
    named = "the entry point of the backend 'borrowed-time' names borrowed:check, which is not a"
    assert f"g.yaml:6:12: launch.backend: {named}" in output
    entry.write_text("[sweeper.backends]\nborrowed-time = gone:BACKEND\n")
    output = typed("plan", "g.yaml", code=2)
    assert (
        "cannot be loaded from gone:BACKEND: ModuleNotFoundError: No module named 'gone'" in output
    )
    assert "tmux" in typed("plan", "g.yaml", "launch.backend=lokal", code=2)
