"""What Slurm's accounting remembers of jobs that slurmctld has forgotten (`make sacct`)."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper.backends import open_backend
from sweeper.backends.base import JobSpec, JobState

pytestmark = pytest.mark.e2e


@pytest.fixture
def accounted(
    slurm_support: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """A cluster with slurmdbd that forgets a job seconds after its end."""
    missing = slurm_support.missing("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
    if missing:
        pytest.skip(f"no accounting for Slurm here ({', '.join(missing)}): `make sacct` gets it")
    with slurm_support.Cluster(nodes=1, cpus=8, accounting=True, remembered=2) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.config))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield cluster


def test_jobs_that_slurmctld_has_forgotten(accounted: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()

    def job(token: str, code: int) -> JobSpec:
        argv = [sys.executable, "-c", f"raise SystemExit({code})", str(folder), token]
        return JobSpec(token, "a title", argv, str(folder), {})

    backend = open_backend("slurm", "sweep", str(folder))
    backend.submit([job("aaaaaaaaaaaa-a1", 3), job("bbbbbbbbbbbb-a1", 0)])
    backend.submit([job("cccccccccccc-a1", 5)])
    tokens = ["aaaaaaaaaaaa-a1", "bbbbbbbbbbbb-a1", "cccccccccccc-a1"]
    deadline = time.monotonic() + 120
    while accounted.run("squeue", "-h", "-t", "all"):  # MinJobAge, looked at now and then
        assert time.monotonic() < deadline
        time.sleep(0.5)
    other = open_backend("slurm", "sweep", str(folder))
    found = other.poll([*tokens, "dddddddddddd-a1"])
    assert [found[token].state for token in tokens] == [JobState.ENDED] * 3
    assert [found[token].code for token in tokens] == [3, 0, 5]
    assert found["dddddddddddd-a1"].state is JobState.ABSENT
    assert set(other.find(tokens)) == set(tokens)
    # Where it does not answer, what slurmctld says stands alone.
    accounted.kill("slurmdbd")
    late = open_backend("slurm", "sweep", str(folder))
    assert late.poll(tokens)[tokens[0]].state is JobState.ABSENT
