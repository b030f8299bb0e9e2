"""Sweeps on an emulated AWS Batch (moto's control plane, real processes), their store on S3."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells

from sweeper import launch
from sweeper.backends.aws_batch.backend import AwsBatchBackend, open_backend
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event, State

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
CANARY = "tml-canary-5f0c1d2e3b4a"
ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:wandb-AbCdEf"
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6

Shells = Any


@pytest.fixture
def shell(tmp_path: Path, batch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWEEPER_ROOT", batch.root)
    return shells.ShellElsewhere(tmp_path, "aws-batch", batch.options(array=3), batch.root)


def _backend(batch: Any) -> AwsBatchBackend:
    return open_backend("toys", f"{batch.root}/toys", batch.options())


def _jobs(batch: Any) -> list[Any]:
    """The jobs of the test's own sweep, arrays' children and not arrays."""
    prefix = _backend(batch).names.prefix
    return [j for j in batch.jobs() if j.job_name.startswith(prefix) and not j._child_jobs]


def _jobs_by_run(batch: Any) -> dict[str, Any]:
    """Of each run the first."""
    names = _backend(batch).names
    jobs: dict[str, Any] = {}
    for job in _jobs(batch):
        token = names.tokens(job.job_name)[job.array_properties.get("index", 0)]
        jobs.setdefault(token.rpartition("-")[0], job)
    return jobs


def _all_over(batch: Any) -> bool:
    """Whether the processes of all jobs have ended, which have outcomes on record before."""
    return all(job.status in ("SUCCEEDED", "FAILED") for job in _jobs(batch))


def _at_step(shell: Any, step: int) -> int:
    """How many executions have come to this step."""
    return sum(int(at) == step for _, _, at in shell.executed())


def _attempts(shell: Any) -> set[tuple[str, str]]:
    """(run, attempt) of what has really done a step."""
    return {(run, attempt) for run, attempt, _ in shell.executed()}


def test_a_sweep_from_start_to_end(shell: Any, batch: Any) -> None:
    """Requests are throttled, the reply to the one that is accepted is lost, and the next listing
    does not have it yet. The checkout is gone when the jobs start: what they run came with them; so
    did a secret, whose value is nowhere else."""
    batch.secrets[ARN] = CANARY
    grid, options = shell.folder / "grid.yaml", batch.options(array=3)
    text = grid.read_text().replace(
        json.dumps(options), json.dumps({**options, "secrets": {"WANDB_API_KEY": ARN}})
    )
    command = 'command: [sh, -c, \'echo the key is $WANDB_API_KEY && exec "$0" "$@"\', '
    grid.write_text(text.replace("command: [", command) + "secrets: [WANDB_API_KEY]\n")
    shell.environment["WANDB_API_KEY"] = "not this one"
    batch.held, batch.lose_replies, batch.late_listings = True, 1, 1
    batch.throttle["submitjob"], batch.throttle["registerjobdefinition"] = 3, 1
    shell.run("launch", "grid.yaml")
    shell.until(lambda: shell.run_states() == {"submitted": 3})
    assert not batch.throttle.total()
    assert batch.lose_replies == batch.late_listings == 0
    assert batch.requests.count("submitjob") == 4  # the one that was accepted came last
    assert len(_jobs(batch)) == 3
    elsewhere = shell.folder.with_name("elsewhere")
    shell.folder.rename(elsewhere)
    shell.folder = elsewhere
    batch.release()
    shell.until(lambda: shell.run_states() == {"succeeded": 3})
    assert "3 succeeded" in shell.run("status", "toys")
    shell.judge(once=True)
    registry = Registry(batch.root, cache=False)
    metrics = registry.metrics(registry.runs(sweep="toys"))
    assert [sorted(rows["step"]) for _, rows in metrics.groupby("run")] == [[*range(10)]] * 3
    # What the backend itself kept: the worker's own words.
    backend, (run, job) = _backend(batch), _jobs_by_run(batch).popitem()
    # The last of them come after the outcome.
    shell.until(lambda: "succeeded after" in "\n".join(backend.logs(f"{run}-a1")))
    printed = "\n".join(backend.logs(f"{run}-a1"))
    assert "attempt 1, in" in printed
    described = backend.aws.call("batch", "describe_jobs", jobs=[job.job_id])
    definitions = backend.aws.call("batch", "describe_job_definitions", status="ACTIVE")
    shown = json.dumps([described, definitions], default=str)
    assert ARN in shown and "testing-secret" not in shown
    assert CANARY not in shown + printed
    store = open_store(batch.root)
    files = [store.read(path) for path in store.names("toys")]
    assert any(b"the key is" in data for data in files)
    assert not any(CANARY.encode() in data for data in files)


def test_a_machine_is_taken_away_and_the_launcher_killed(shell: Any, batch: Any) -> None:
    """Batch starts the job again by itself, which is an attempt of its own; a launcher that comes
    back finds everything as it is."""
    given = ("launch", "grid.yaml", "mode=resume:first:holds-3", "--wait")
    launcher = shell.start(*given)
    shell.until(lambda: len(_attempts(shell)) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    run = [run for run, _, step in shell.executed() if step == "0"][-1]  # the last to begin
    job = _jobs_by_run(batch)[run]
    saved = f"toys/runs/{run}.1/checkpoints.jsonl.parts"
    shell.until(lambda: list(open_store(batch.root).names(saved)))
    batch.interrupt(job.job_id)
    shell.until(lambda: (run, "2") in _attempts(shell))
    Path(f"{shell.ledger}.go").touch()
    assert "3/3 succeeded" in shell.run(*given)
    shell.judge()
    assert batch.requests.count("submitjob") == 1  # nothing was submitted again
    happened = SweepFolder(open_store(batch.root), "toys").read_events()
    again = happened.pop(run)
    assert {(1, Event.PREEMPTED), (2, Event.CLAIMED), (2, Event.SUCCEEDED)} <= again
    assert all((1, Event.SUCCEEDED) in events for events in happened.values())
    # The second attempt went on from where the first one's machine was lost.
    assert min(int(step) for _, attempt, step in shell.executed() if attempt == "2") > 0
    shell.until(lambda: _all_over(batch))
    assert sorted(len(job.attempts) for job in _jobs(batch)) == [1, 1, 2]
    assert len(job.attempts) == 2
    streams = "\n".join(_backend(batch).logs(f"{run}-a1"))
    assert "attempt 1, in" in streams
    assert "attempt 2, in" in streams


@pytest.mark.timeout(600)
def test_a_host_is_lost_and_batch_does_not_answer(shell: Any, batch: Any) -> None:
    """For longer than a lease, and it is not to start jobs again by itself. Its words are all that
    tells of the one whose host was terminated; the others go on to their ends."""
    more = ("launch.aws_batch.retries_on_interruption=0", "mode=resume:first:holds-3")
    launcher = shell.start("launch", "grid.yaml", *more, "--wait")
    shell.until(lambda: _at_step(shell, 2) == 3)
    jobs = _jobs_by_run(batch)
    lost, *others = jobs
    saved = f"toys/runs/{lost}.1/checkpoints.jsonl.parts"
    shell.until(lambda: list(open_store(batch.root).names(saved)))
    batch.silent = True
    batch.interrupt(jobs[lost].job_id)
    shell.until(lambda: len(jobs[lost].attempts) == 1)
    shell.wait_out_a_lease()
    Path(f"{shell.ledger}.go").touch()
    shell.until(lambda: _at_step(shell, 9) == 2)
    batch.silent = False
    output, errors = launcher.communicate(timeout=90)
    assert launcher.returncode == 0, output + errors
    shell.judge()
    events = SweepFolder(open_store(batch.root), "toys").read_events()
    assert {(1, Event.PREEMPTED), (2, Event.SUBMITTED), (2, Event.SUCCEEDED)} <= events[lost]
    assert all({attempt for attempt, _ in events[run]} == {1} for run in others)
    ends = {event for run_events in events.values() for _, event in run_events}
    assert not ends & {Event.FAILED, Event.LOST}
    assert min(int(step) for _, attempt, step in shell.executed() if attempt == "2") > 0
    shell.until(lambda: _all_over(batch))
    assert [len(job.attempts) for job in _jobs(batch)] == [1, 1, 1, 1]


def test_many_quick_runs(shell: Any, batch: Any) -> None:
    """And a launcher that is killed among them."""
    values = json.dumps(list(range(MANY)))
    more = (f"x={values}", "seconds=0.01", "launch.max_parallel=30")
    launcher = shell.start("launch", "grid.yaml", *more, "--wait")
    shell.until(lambda: _at_step(shell, 9) > MANY // 20)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    launcher = shell.start("launch", "grid.yaml", *more, "--wait")
    output, errors = launcher.communicate(timeout=1200)
    assert launcher.returncode == 0, output + errors
    shell.judge(once=True)
    assert len(_jobs(batch)) == MANY  # nothing was submitted twice


def test_an_array_with_failures(shell: Any, batch: Any) -> None:
    """One run fails for good, one at first; the other does not notice."""
    given = ["launch", "grid.yaml", "launch.retries=1", "~x", "seconds=0.5", "--wait"]
    modes = "mode=[resume:first:fail, resume:fail, resume:say-hello]"
    output = shell.run(*given, modes, code=3)
    assert "2/3 succeeded, 1 failed" in output
    runs = shell.runs()
    (failed,) = [run for run in runs if run.state is State.FAILED]
    shell.judge(expected={failed.id: State.FAILED})
    assert Counter(run.attempts for run in runs) == {1: 1, 2: 2}
    jobs = _jobs(batch)
    assert len(jobs) == 5  # three, and a second attempt of two: jobs of their own
    shell.until(lambda: _all_over(batch))
    assert all(len(job.attempts) == 1 for job in jobs)  # Batch retried nothing by itself


def test_terminated_interrupted_and_cancelled(shell: Any, batch: Any) -> None:
    """Who terminates a job in the console has it resumed; so has who takes its machine away, even
    if Batch and the launcher both see to it; who cancels the run has not."""
    modes = "mode=resume:first:holds-2"  # so that none is at its end before it is its turn
    launcher = shell.start("launch", "grid.yaml", "~x", "seconds=[1,2,600]", modes, "--wait")
    shell.until(lambda: _attempts(shell))
    runs, jobs = {run.config["seconds"]: run for run in shell.runs()}, _jobs_by_run(batch)
    terminated, interrupted, cancelled = (runs[seconds].id for seconds in (1, 2, 600))
    console = batch.client("batch")
    deeds: dict[str, Callable[[str], object]] = {
        terminated: lambda job: console.terminate_job(jobId=job, reason="somebody else's wish"),
        interrupted: lambda job: batch.interrupt(job, warned=True),
    }

    def all_done() -> bool:
        for run in [run for run in deeds if (run, "1") in _attempts(shell)]:
            deeds.pop(run)(jobs[run].job_id)
        return not deeds

    shell.until(all_done)
    shell.until(lambda: {(terminated, "2"), (interrupted, "2")} <= _attempts(shell))
    assert "1 cancelled" in shell.run("cancel", "toys", runs[600].name)
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 3, output + errors
    shell.until(lambda: _all_over(batch))
    assert {jobs[run].status for run in (terminated, cancelled)} == {"FAILED"}
    assert len(jobs[interrupted].attempts) == 2
    shell.judge(expected={cancelled: State.CANCELLED})


def test_a_job_that_never_comes_to_start_its_worker(shell: Any, batch: Any) -> None:
    """What it printed is followed all the same: from CloudWatch, where it went; and though the
    queue is drained."""
    python = shell.folder.parent / "python"
    python.write_text("#!/bin/sh\necho there is no sweeper in this image\nexit 1\n")
    python.chmod(0o755)
    options = f"launch.aws_batch.python={python}"
    shell.run("launch", "grid.yaml", "~x", options)
    shell.until(lambda: shell.run_states()["planned"] == 0)
    batch.open(False)
    output = shell.run("logs", "toys", "-f")
    assert "there is no sweeper in this image" in output
    (run,) = shell.runs()
    assert (run.state, run.attempts) == (State.FAILED, 1)


def test_what_aws_will_not_have(shell: Any, batch: Any) -> None:
    """It ends a launch with AWS's words, of a definition before anything is on record; the next
    launch goes on."""
    launch = ("launch", "grid.yaml", "~x", "launch.aws_batch.memory=512", "--wait")
    batch.refused["registerjobdefinition"] = "Invalid image"
    output = shell.run(*launch, code=6)
    assert output.splitlines()[-1] == "sweeper: AWS Batch: register_job_definition: Invalid image"
    assert not list(open_store(batch.root).names("toys"))
    batch.refused = {"submitjob": "the queue is not ENABLED"}
    output = shell.run(*launch, code=6)
    assert output.splitlines()[-1] == "sweeper: AWS Batch: submit_job: the queue is not ENABLED"
    batch.refused.clear()
    assert "1/1 succeeded" in shell.run(*launch)
    shell.judge(once=True)


def test_what_is_refused(shell: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = shell.folder / "grid.yaml"
    monkeypatch.chdir(shell.folder)
    text = grid.read_text()

    def refused(error: type[Exception], match: str, grid_text: str = text, **options: Any) -> None:
        grid.write_text(grid_text)
        with pytest.raises(error, match=match):
            launch(str(grid), **options)

    refused(UsageError, "jobs cannot read the folder", root=str(shell.folder / "sweeps"))
    refused(UsageError, "--live does not work", live=True)
    missing = text.replace(batch.queue, "nope")
    refused(EnvironmentFailure, "no job queue nope in us-east-1", missing)
    batch.open(False)
    refused(EnvironmentFailure, f"{batch.queue} is DISABLED, VALID")
    batch.open(True)
    refused(UsageError, "secrets are not sent", text + "secrets: [WANDB_API_KEY]\n")
    local = text.replace("service: none", "service: local")
    refused(UsageError, "needs an engine that the jobs can reach", local)
    monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", "http://127.0.0.1:9")
    refused(EnvironmentFailure, "AWS Batch does not answer: ")
    assert not list(open_store(batch.root).names("toys"))
