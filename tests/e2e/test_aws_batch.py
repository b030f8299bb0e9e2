"""Sweeps on an emulated AWS Batch (moto's control plane, real processes), their store on S3."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.ledger import judge, read_ledger

import analysis
from sweeper.backends.aws_batch import open_backend
from sweeper.registry import Registry
from sweeper.states import Event, State
from sweeper.store.files import open_store
from sweeper.store.sweeps import read_events

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]

Shells = Any
GRID = """
name: toys
command: [{python}, toy.py, '{ledger}', '10', '{{seconds}}', '{{mode}}', '{{log_path}}']
service: none
base: {{seconds: 1, mode: resume}}
grid: {{x: [1, 2, 3, 4]}}
metric: {{name: loss, goal: minimize}}
launch:
  backend: aws-batch
  lease: 15s
  sync: 1s
  aws_batch: {options}
"""


@pytest.fixture
def shell(shells: Shells, tmp_path: Path, batch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A checkout with the chaos tests' toy and its grid."""
    monkeypatch.setenv("SWEEPER_ROOT", batch.root)
    folder = tmp_path / "checkout"
    folder.mkdir()
    shell = shells.Shell(folder, "aws-batch")
    shell.environment["SWEEPER_HOME"] = str(tmp_path / "home")
    shell.ledger = tmp_path / "ledger"
    shutil.copy(ROOT / "tests" / "chaos" / "harness" / "toy.py", folder)
    options = json.dumps(batch.options(array=3))
    text = GRID.format(python=sys.executable, ledger=shell.ledger, options=options)
    (folder / "grid.yaml").write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return shell


def _events(root: str) -> list[set[tuple[int, Event]]]:
    return list(read_events(open_store(root), "toys").values())


def _judge(shell: Any, root: str, **options: Any) -> None:
    verdict = judge(
        open_store(root), "toys", read_ledger(shell.ledger), 10, resumes=True, **options
    )
    assert verdict.good, verdict


def _jobs(batch: Any, root: str) -> list[Any]:
    """The jobs of the test's own sweep, arrays' children and not arrays."""
    backend = open_backend("toys", f"{root}/toys", batch.options())
    prefix = backend._names.prefix
    return [j for j in batch.jobs() if j.job_name.startswith(prefix) and not j._child_jobs]


def test_a_sweep_from_start_to_end(shell: Any, batch: Any) -> None:
    """Requests are throttled, and the reply to the one that is accepted is lost. The checkout is
    gone when the jobs start: what they run came with them."""
    batch.held, batch.throttle, batch.lose_replies = True, 3, 1
    shell.run("launch", "grid.yaml")
    shell.until(lambda: shell.states() == {"submitted": 4})
    assert batch.throttle == batch.lose_replies == 0
    assert len(_jobs(batch, batch.root)) == 4  # of one request, that was not sent again
    elsewhere = shell.folder.with_name("elsewhere")
    shell.folder.rename(elsewhere)
    shell.folder = elsewhere
    batch.release()
    shell.until(lambda: shell.states() == {"succeeded": 4})
    assert "4 succeeded" in shell.run("status", "toys")
    _judge(shell, batch.root, once=True)
    registry = Registry(batch.root, cache=False)
    metrics = registry.metrics(registry.runs(sweep="toys"))
    assert [sorted(rows["step"]) for _, rows in metrics.groupby("run")] == [[*range(10)]] * 4
    report = analysis.analyze(batch.root, "toys")
    assert report.html_path == f"{batch.root}/toys/report/report.html"
    # What the backend itself kept: the worker's own words.
    backend = open_backend("toys", f"{batch.root}/toys", batch.options())
    tokens = [f"{run}-a1" for run in read_events(open_store(batch.root), "toys")]
    printed = "\n".join(backend.logs(tokens[0]))
    assert "attempt 1, in" in printed
    assert "succeeded after" in printed
    described = backend.aws.call(
        "batch", "describe_jobs", jobs=[_jobs(batch, batch.root)[0].job_id]
    )
    assert "testing-secret" not in json.dumps(described, default=str)


def test_a_machine_is_taken_away_and_the_launcher_killed(shell: Any, batch: Any) -> None:
    """Batch starts the job again by itself, which is an attempt of its own; a launcher that comes
    back finds everything as it is."""
    launcher = shell.start("launch", "grid.yaml", "seconds=6", "--wait")
    shell.until(lambda: len({run for run, _, _ in shell.executed()}) == 4)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    job, other = _jobs(batch, batch.root)[:2]
    saved = f"toys/runs/{_token(job, batch).replace('-a', '.')}/checkpoints.jsonl.parts"
    shell.until(lambda: list(open_store(batch.root).names(saved)))
    batch.interrupt(job.job_id)
    shell.until(lambda: {"2"} & {attempt for _, attempt, _ in shell.executed()})
    assert "4/4 succeeded" in shell.run("launch", "grid.yaml", "seconds=6", "--wait")
    _judge(shell, batch.root)
    assert batch.requests.count("submitjob") == 1  # nothing was submitted again
    happened = sorted(_events(batch.root), key=len)
    assert {(1, Event.PREEMPTED), (2, Event.CLAIMED), (2, Event.SUCCEEDED)} <= happened[-1]
    assert all((1, Event.SUCCEEDED) in events for events in happened[:3])
    # The second attempt went on from where the first one's machine was lost.
    again = [int(step) for _, attempt, step in shell.executed() if attempt == "2"]
    assert min(again) > 0
    assert len(job.attempts) == 2
    assert len(other.attempts) == 1
    streams = "\n".join(
        open_backend("toys", f"{batch.root}/toys", batch.options()).logs(_token(job, batch))
    )
    assert "attempt 1, in" in streams
    assert "attempt 2, in" in streams


def _token(job: Any, batch: Any) -> str:
    backend = open_backend("toys", f"{batch.root}/toys", batch.options())
    return str(backend._names.tokens(job.job_name)[job.array_properties["index"]])


def test_an_array_with_failures(shell: Any, batch: Any) -> None:
    """One run fails for good, one at first; the others do not notice."""
    given = ["launch", "grid.yaml", "launch.retries=1", "~x", "seconds=0.5", "--wait"]
    modes = "mode=[resume, resume:first:fail, resume:fail, resume:say-hello]"
    said = shell.run(*given, modes, code=3)
    assert "3/4 succeeded, 1 failed" in said
    runs = {run.name: run for run in Registry(batch.root, cache=False).sweep("toys").runs}
    failed = next(run for run in runs.values() if run.state is State.FAILED)
    _judge(shell, batch.root, expected={failed.id: State.FAILED})
    assert Counter(run.attempts for run in runs.values()) == {1: 2, 2: 2}
    jobs = _jobs(batch, batch.root)
    assert len(jobs) == 6  # four, and a second attempt of two: jobs of their own
    assert all(len(job.attempts) == 1 for job in jobs)  # Batch retried nothing by itself


def test_terminated_and_cancelled(shell: Any, batch: Any) -> None:
    """Who terminates a job in the console has it resumed; who cancels the run does not."""
    launcher = shell.start("launch", "grid.yaml", "~x", "seconds=[8,600]", "--wait")
    shell.until(lambda: len({run for run, _, _ in shell.executed()}) == 2)
    first, second = _jobs(batch, batch.root)
    batch.client("batch").terminate_job(jobId=first.job_id, reason="somebody else's wish")
    shell.until(lambda: {"2"} & {attempt for _, attempt, _ in shell.executed()})
    runs = {run.id: run for run in Registry(batch.root, cache=False).sweep("toys").runs}
    second_run = second.job_name.rpartition("-")[0].rpartition("-")[2]
    assert "1 cancelled" in shell.run("cancel", "toys", runs[second_run].name)
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 3, output + errors
    assert (first.status, second.status) == ("FAILED", "FAILED")
    _judge(shell, batch.root, expected={second_run: State.CANCELLED})


def test_what_is_refused(shell: Any, batch: Any, tmp_path: Path) -> None:
    launch = ("launch", "grid.yaml")
    said = shell.run(*launch, "--root", str(tmp_path / "sweeps"), code=2)
    assert "its jobs do not see the folder" in said
    assert "--live has no meaning" in shell.run(*launch, "--live", code=2)
    grid = shell.folder / "grid.yaml"
    text = grid.read_text()
    grid.write_text(text.replace(batch.queue, "nope"))
    assert "there is no job queue nope in us-east-1" in shell.run(*launch, code=6)
    grid.write_text(text + "secrets: [WANDB_API_KEY]\n")
    assert "no secret's value travels with a job" in shell.run(*launch, code=2)
    grid.write_text(text.replace("service: none", "service: local"))
    assert "needs an engine that the jobs reach" in shell.run(*launch, code=2)
    grid.write_text(text)
    shell.environment["AWS_DEFAULT_REGION"] = ""
    shell.environment["AWS_ENDPOINT_URL_BATCH"] = "http://127.0.0.1:9"
    said = shell.run(*launch, "launch.max_parallel=2", code=6)
    assert "sweeper: AWS Batch does not answer: " in said.splitlines()[-1]
    assert not list(open_store(batch.root).names("toys"))
