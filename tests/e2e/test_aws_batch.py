"""Sweeps on an emulated AWS Batch (moto's control plane, real processes) with a store on S3."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import shell as shells
from support.typed import Typed

from sweeper.backends.aws_batch.backend import AwsBatchBackend, open_backend
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

pytestmark = pytest.mark.e2e
CANARY = "tml-canary-5f0c1d2e3b4a"
ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:wandb-AbCdEf"
MANY = 300 if "SWEEPER_TEST_WHOLE" in os.environ else 6


@pytest.fixture
def shell(tmp_path: Path, batch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWEEPER_ROOT", batch.root)
    return shells.ShellElsewhere(tmp_path, "aws-batch", batch.options(array=3), batch.root)


def _backend(batch: Any) -> AwsBatchBackend:
    return open_backend("toys", f"{batch.root}/toys", batch.options())


def _jobs(batch: Any) -> list[Any]:
    """Return the jobs of this test's sweep: single jobs and children of arrays."""
    prefix = _backend(batch).names.prefix
    return [j for j in batch.jobs() if j.job_name.startswith(prefix) and not j._child_jobs]


def _jobs_by_run(batch: Any) -> dict[str, Any]:
    """Return the first job of each run."""
    names = _backend(batch).names
    jobs: dict[str, Any] = {}
    for job in _jobs(batch):
        token = names.tokens(job.job_name)[job.array_properties.get("index", 0)]
        jobs.setdefault(token.rpartition("-")[0], job)
    return jobs


def _all_over(batch: Any) -> bool:
    """Return whether the processes of all jobs have ended."""
    return all(job.status in ("SUCCEEDED", "FAILED") for job in _jobs(batch))


def _at_step(shell: Any, step: int) -> int:
    """Return the number of executions that have reached this step."""
    return sum(int(at) == step for _, _, at in shell.executed())


def _attempts(shell: Any) -> set[tuple[str, str]]:
    """Return (run, attempt) of each attempt that has executed a step."""
    return {(run, attempt) for run, attempt, _ in shell.executed()}


def test_a_sweep_from_start_to_end(shell: Any, batch: Any) -> None:
    """Requests fail and the checkout is gone. Jobs have their code; no file has the secret."""
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
    assert batch.requests.count("submitjob") == 4  # three were throttled
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
    # The backend has the worker's output.
    backend, (run, job) = _backend(batch), _jobs_by_run(batch).popitem()
    # The last lines come after the outcome.
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
    """Batch restarts the job as the next attempt; the next launcher adopts all jobs."""
    given = ("launch", "grid.yaml", "mode=resume:first:holds-3", "--wait")
    launcher = shell.start(*given)
    shell.until(lambda: len(_attempts(shell)) == 3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    run = [run for run, _, step in shell.executed() if step == "0"][-1]  # the last run that started
    job = _jobs_by_run(batch)[run]
    saved = f"toys/runs/{run}.1/checkpoints.jsonl.parts"
    shell.until(lambda: list(open_store(batch.root).names(saved)))
    batch.interrupt(job.job_id)
    shell.until(lambda: (run, "2") in _attempts(shell))
    Path(f"{shell.ledger}.go").touch()
    assert "3/3 succeeded" in shell.run(*given)
    shell.judge()
    assert batch.requests.count("submitjob") == 1  # no new submission
    happened = SweepFolder(open_store(batch.root), "toys").read_events()
    again = happened.pop(run)
    assert {(1, Event.PREEMPTED), (2, Event.CLAIMED), (2, Event.SUCCEEDED)} <= again
    assert all((1, Event.SUCCEEDED) in events for events in happened.values())
    # The second attempt resumed from a checkpoint of the first.
    assert min(int(step) for _, attempt, step in shell.executed() if attempt == "2") > 0
    shell.until(lambda: _all_over(batch))
    assert sorted(len(job.attempts) for job in _jobs(batch)) == [1, 1, 2]
    assert len(job.attempts) == 2
    streams = "\n".join(_backend(batch).logs(f"{run}-a1"))
    assert "attempt 1, in" in streams
    assert "attempt 2, in" in streams


@pytest.mark.timeout(600)
def test_a_host_is_lost_and_batch_does_not_answer(shell: Any, batch: Any) -> None:
    """Only Batch's reason shows that the job was lost. Batch may not restart it."""
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
    """A launcher is killed while they run."""
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
    assert len(_jobs(batch)) == MANY  # none was submitted twice


TRUST = json.dumps(
    {
        "Statement": [
            {"Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ]
    }
)


def _checks(folder: Path, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    given = ("doctor", "--backend", "aws-batch", *arguments)
    checks = Typed(folder).json(*given, code=code)["checks"]
    return {check["name"]: check for check in checks}


def test_the_doctor(batch: Any, tmp_path: Path) -> None:
    iam, ecr = batch.client("iam"), batch.client("ecr")
    role = iam.create_role(RoleName="runs", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    stranger = iam.create_role(RoleName="stranger", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    ecr.create_repository(repositoryName="sweeper")
    secret = batch.client("secretsmanager").create_secret(Name="tinker", SecretString="tml-hush")
    options = {
        "queue": batch.queue,
        "image": "sweeper:latest",
        "role": role,
        "secrets": {"TINKER_API_KEY": secret["ARN"]},
    }
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"command: [a]\nlaunch: {{aws_batch: {json.dumps(options)}}}\n")
    root = ("--root", batch.root)
    checks = _checks(tmp_path, "--grid", "grid.yaml", *root)
    assert all(check["good"] for check in checks.values() if check["needed"]), checks
    assert "123456789012" in checks["AWS identity"]["found"]
    assert "ENABLED, VALID" in checks["compute environments"]["found"]
    assert checks["job definition"]["found"] == "made from the image at the first launch"
    assert checks["secret TINKER_API_KEY"]["found"] == "tinker"
    refused = _checks(tmp_path, "--grid", "grid.yaml", "--root", "sweeps", code=6)
    assert "cannot read the folder" in refused["what jobs reach"]["found"]
    # The same with options from the configuration file, and one mistake each.
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "sweeper" / "config.toml"
    config.parent.mkdir(parents=True)
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/sweeper:nope"
    nothing = secret["ARN"].replace(":tinker", ":nothing")
    config.write_text(
        f'[aws_batch]\nqueue = "nope"\nimage = "{image}"\nrole = "{stranger}"\n'
        f'secrets = {{TINKER_API_KEY = "{nothing}"}}\n'
    )
    checks = _checks(tmp_path, *root, code=6)
    wrong = {name: check["found"] for name, check in checks.items() if not check["good"]}
    assert wrong["job queue"] == "there is no queue nope in us-east-1"
    assert wrong["image"] == f"{image}: no such image"
    assert "add ecs-tasks.amazonaws.com to the" in wrong["job role"]
    assert wrong["secret TINKER_API_KEY"] == f"{nothing} does not exist"
    assert "tml-hush" not in json.dumps(checks)
    Typed(tmp_path).run("doctor", "--backend", "nope", code=2)
