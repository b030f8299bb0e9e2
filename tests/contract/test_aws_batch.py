"""What AWS Batch in particular has to do, beside the contract: on an emulation with real
processes."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.single_jobs import a_job, judge_earlier_sweep, until, until_state

from sweeper.backends.aws_batch.backend import AwsBatchBackend, open_backend
from sweeper.backends.base import JobSpec, JobState
from sweeper.errors import Unreachable


def _long(number: int, began: Path) -> JobSpec:
    """A job that may be an array's: its last word is its token. It writes when it has begun."""
    job = a_job(number)
    text = f"import time; open({str(began)!r}, 'a').write('.'); time.sleep(600)"
    return job._replace(argv=[sys.executable, "-c", text, job.token])


@pytest.fixture(autouse=True)
def _nobody_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.backends.aws_batch.backend._DOUBT_SECONDS", 0.0)


def _open(batch: Any, folder: Path, **options: Any) -> AwsBatchBackend:
    return open_backend("sweep", str(folder), batch.options(**options))


def test_what_a_sweep_that_was_there_before_has_left(batch: Any, tmp_path: Path) -> None:
    judge_earlier_sweep(lambda folder: _open(batch, folder), tmp_path / "sweep", "job")


def test_an_array_of_a_sweep_that_was_there_before(batch: Any, tmp_path: Path) -> None:
    """Nobody knows any more whose jobs are in it: all wait for its end."""
    folder, began = tmp_path / "sweep", tmp_path / "began"
    before, jobs = _open(batch, folder, array=2), [_long(n, began) for n in (1, 2)]
    before.submit(jobs)
    until(lambda: began.exists() and len(began.read_text()) == 2)
    assert batch.jobs()[-1].array_properties
    shutil.rmtree(folder)
    later = _open(batch, folder, array=0)
    assert later.find([jobs[0].token]) == {}
    with pytest.raises(Unreachable, match="of a sweep that was in the same folder the job "):
        later.submit([a_job(3)])
    before.cancel([job.token for job in jobs])
    until_state(before, jobs[0].token, JobState.ENDED)
    until_state(before, jobs[1].token, JobState.ENDED)
    again = _open(batch, folder)
    again.submit([a_job(3)])
    until_state(again, a_job(3).token, JobState.RUNNING)
    again.cancel([a_job(3).token])


def test_jobs_that_an_older_version_has_called(batch: Any, tmp_path: Path) -> None:
    """Their names do not say of which sweep: they are found."""
    backend, token = _open(batch, tmp_path / "sweep"), a_job(1).token
    name = backend._names.single(token)
    assert name == f"{backend._names.prefix}{token}"
    backend._names.identity.made()
    assert backend._names.single(token) != name
    assert backend._names.tokens(name) == [token]
    assert backend._names.anothers(name) is None
