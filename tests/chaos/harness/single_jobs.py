"""Jobs that a test gives to a backend directly, without a sweep."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.real import until
from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.errors import Unreachable


def a_job(number: int, *argv: str, attempt: int = 1, **resources: Any) -> JobSpec:
    """Return a job; by default it sleeps."""
    token = f"{number:012x}-a{attempt}"
    return JobSpec(token, f"x={number}", argv or ("sleep", "600"), "/", resources, grace_s=0)


def until_state(backend: Backend, token: str, state: JobState) -> JobStatus:
    """Wait until a job has a state; returns its status then."""
    until(lambda: backend.poll([token])[token].state is state)
    return backend.poll([token])[token]


def judge_earlier_sweep(opened: Callable[[Path], Backend], folder: Path, kind: str) -> None:
    """Remove a sweep whose jobs still exist, and make another in its folder: the jobs do not
    belong to the new sweep, which waits for a running one. `kind`: the backend's word for a job."""
    before, jobs = opened(folder), [a_job(1, "true"), a_job(2)]
    tokens = [job.token for job in jobs]
    before.submit(jobs)
    until_state(before, tokens[0], JobState.ENDED)
    until_state(before, tokens[1], JobState.RUNNING)
    shutil.rmtree(folder)
    later = opened(folder)
    assert later.find(tokens) == {}
    assert {s.state for s in later.poll(tokens).values()} == {JobState.ABSENT}
    with pytest.raises(Unreachable, match=f"the {kind} .* of an earlier sweep in this folder"):
        later.submit([a_job(1), a_job(2)])
    until_state(later, tokens[0], JobState.RUNNING)
    assert set(later.find(tokens)) == {tokens[0]}
    before.cancel([tokens[1]])
    until_state(before, tokens[1], JobState.ENDED)
    assert set(opened(folder).find(tokens)) == {tokens[0]}
    opened(folder).submit([a_job(2)])
    until_state(opened(folder), tokens[1], JobState.RUNNING)
    opened(folder).cancel(tokens)
