"""What every backend must do, whatever it starts jobs with."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sweeper.backends import backend_names, open_backend
from sweeper.backends.base import Backend, JobSpec, JobState
from sweeper.errors import UsageError
from sweeper.testing import Faults, FaultyBackend

# A launcher leaves its jobs behind; Popen would rather it waited.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

# Says that it runs, with its arguments, and ends when told to by a file or by SIGTERM.
JOB = """
import json, os, sys, time
folder, token = sys.argv[-2:]
with open(f"{folder}/{token}.tmp", "w") as file:
    json.dump(sys.argv[1:-2], file)
os.rename(f"{folder}/{token}.tmp", f"{folder}/{token}.started")
while not os.path.exists(f"{folder}/{token}.end"):
    time.sleep(0.02)
sys.exit(3)
"""
HOSTILE = [
    "$(touch pwned)",
    "; touch pwned",
    "a\nb",
    "a\\\n  b",
    "\n# c",
    "--flag",
    "'\"`\\",
    "#{pid} #S %H",
    "ä 本",
    "",
]


@pytest.fixture(params=["local", "tmux", "slurm", "aws-batch", "faulty"])
def opened(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmux_socket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], Backend]]:
    """Opens the backend anew, as another launcher would, for a sweep by its name."""
    folders: list[Path] = []
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    options: dict[str, object] = {}
    if request.param == "aws-batch":
        options = request.getfixturevalue("batch").options()
        # No launcher that was killed has left anything here.
        monkeypatch.setattr("sweeper.backends.aws_batch.backend._DOUBT_SECONDS", 0.0)

    def open_again(sweep: str = "sweep") -> Backend:
        folder = tmp_path / "root" / sweep
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(folder)
        if request.param == "faulty":
            return FaultyBackend(open_backend("local", sweep, str(folder)), Faults())
        return open_backend(request.param, sweep, str(folder), options)

    open_again.options = options  # type: ignore[attr-defined]
    yield open_again
    for folder in folders:
        for started in folder.glob("*.started"):
            started.with_suffix(".end").touch()


def _job(tmp_path: Path, token: str, *, sweep: str = "sweep", extra: Sequence[str] = ()) -> JobSpec:
    folder = str(tmp_path / "root" / sweep)
    argv = [sys.executable, "-c", JOB, *extra, folder, token]
    return JobSpec(token, f"lr=1e-4,#{token}", argv, folder, {})


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        time.sleep(0.02)


def _started(tmp_path: Path, token: str, sweep: str = "sweep") -> Path:
    path = tmp_path / "root" / sweep / f"{token}.started"
    _until(path.exists)
    return path


def test_a_job_from_start_to_end(opened: Callable[..., Backend], tmp_path: Path) -> None:
    backend, token = opened(), "aaaaaaaaaaaa-a1"
    assert backend.find([token]) == {}
    backend.submit([_job(tmp_path, token)])
    started = _started(tmp_path, token)
    assert set(backend.find([token, "bbbbbbbbbbbb-a1"])) == {token}
    assert backend.poll([token])[token].state is JobState.RUNNING
    started.with_suffix(".end").touch()
    _until(lambda: backend.poll([token])[token].state is JobState.ENDED)
    # Only a backend that waits for its jobs itself knows how they ended.
    assert backend.poll([token])[token].code == (None if backend.name == "tmux" else 3)


def test_tokens_it_does_not_know_are_absent(opened: Callable[..., Backend]) -> None:
    backend = opened()
    assert backend.poll(["cccccccccccc-a1"])["cccccccccccc-a1"].state is JobState.ABSENT
    assert backend.poll([]) == {}
    backend.cancel(["cccccccccccc-a1"])
    assert list(backend.logs("cccccccccccc-a1")) == []


def test_arguments_arrive_as_they_are(opened: Callable[..., Backend], tmp_path: Path) -> None:
    token = "dddddddddddd-a1"
    opened().submit([_job(tmp_path, token, extra=HOSTILE)])
    assert json.loads(_started(tmp_path, token).read_text()) == HOSTILE
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()


def test_another_launcher_finds_running_jobs(
    opened: Callable[..., Backend], tmp_path: Path
) -> None:
    tokens = [f"eeeeeeeeeee{index}-a2" for index in range(5)]
    opened().submit([_job(tmp_path, token) for token in tokens])
    for token in tokens:
        _started(tmp_path, token)
    other = opened()
    assert set(other.find(tokens)) == set(tokens)
    assert {status.state for status in other.poll(tokens).values()} == {JobState.RUNNING}


def test_jobs_that_are_to_be_shown_together(opened: Callable[..., Backend], tmp_path: Path) -> None:
    """More of them than fit into one window, in two submissions, beside one that stands alone."""
    backend = opened()
    tokens = [f"ababababab{index:02d}-a1" for index in range(16)]
    jobs = [_job(tmp_path, token)._replace(window="lr=0.1: a.b") for token in tokens]
    backend.submit([*jobs[:14], _job(tmp_path, "cdcdcdcdcdcd-a1")])
    backend.submit(jobs[14:])
    for token in tokens:
        _started(tmp_path, token)
    assert set(backend.find(tokens)) == set(tokens)
    backend.cancel(tokens[3:4])
    _until(lambda: backend.poll(tokens)[tokens[3]].state is not JobState.RUNNING)
    states = {token: status.state for token, status in backend.poll(tokens).items()}
    assert {states[token] for token in tokens if token != tokens[3]} == {JobState.RUNNING}


def test_the_same_run_in_another_sweep_is_another_job(
    opened: Callable[..., Backend], tmp_path: Path
) -> None:
    token = "ffffffffffff-a1"
    opened("one").submit([_job(tmp_path, token, sweep="one")])
    _started(tmp_path, token, "one")
    assert opened("two").find([token]) == {}
    assert opened("two").poll([token])[token].state is JobState.ABSENT


def test_cancel_asks_the_job_to_stop(opened: Callable[..., Backend], tmp_path: Path) -> None:
    backend, token = opened(), "abababababab-a1"
    backend.submit([_job(tmp_path, token)])
    _started(tmp_path, token)
    backend.cancel([token])
    _until(lambda: backend.poll([token])[token].state is not JobState.RUNNING)


def test_jobs_outlive_the_launcher(
    opened: Callable[..., Backend], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    token = "acacacacacac-a1"
    backend = opened()
    job = _job(tmp_path, token)
    script = (
        "import json, os, sys\n"
        "from sweeper.backends import open_backend\n"
        "from sweeper.backends.base import JobSpec\n"
        "name, folder = sys.argv[1:3]\n"
        "job, options = map(json.loads, sys.argv[3:])\n"
        "open_backend(name, 'sweep', folder, options).submit([JobSpec(*job)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    options = json.dumps(opened.options)  # type: ignore[attr-defined]
    command = [sys.executable, "-c", script, backend.name, job.cwd, json.dumps(job), options]
    assert subprocess.run(command, check=False).returncode == -9
    _started(tmp_path, token)
    assert set(backend.find([token])) == {token}
    assert backend.poll([token])[token].state is JobState.RUNNING


def test_names(tmp_path: Path) -> None:
    assert {"aws-batch", "local", "slurm", "tmux"} <= set(backend_names())
    with pytest.raises(
        UsageError,
        match=r"no backend 'slrum' \(did you mean 'slurm'\?\): there is aws-batch, local, slurm",
    ):
        open_backend("slrum", "sweep", os.fspath(tmp_path))
