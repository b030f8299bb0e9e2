"""What Slurm's accounting remembers of jobs that slurmctld has forgotten (`make sacct`)."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness.real import until

from sweeper.backends import open_backend
from sweeper.backends.base import JobSpec, JobState
from sweeper.backends.slurm import doctor as slurm_doctor
from sweeper.backends.slurm.commands import Full
from sweeper.errors import Unreachable

pytestmark = pytest.mark.e2e


@pytest.fixture
def accounted(
    slurm_support: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Any]:
    """Yield a cluster with slurmdbd that forgets jobs seconds after their end."""
    missing = slurm_support.missing("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
    if missing:
        pytest.skip(f"no accounting for Slurm here ({', '.join(missing)}): `make sacct` gets it")
    with slurm_support.Cluster(nodes=1, cpus=8, accounting=True, remembered=2) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.config))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sweep").mkdir()
    return tmp_path / "sweep"


def _job(folder: Path, token: str, code: int, **options: object) -> JobSpec:
    argv = [sys.executable, "-c", f"raise SystemExit({code})", str(folder), token]
    return JobSpec(token, "a title", argv, str(folder), options)


def _forgotten(cluster: Any) -> None:
    """Wait until slurmctld has forgotten the jobs."""
    until(lambda: not cluster.run("squeue", "-h", "-t", "all"))


def test_jobs_that_slurmctld_has_forgotten(accounted: Any, folder: Path) -> None:
    backend = open_backend("slurm", "sweep", str(folder))
    backend.submit([_job(folder, "aaaaaaaaaaaa-a1", 3), _job(folder, "bbbbbbbbbbbb-a1", 0)])
    backend.submit([_job(folder, "cccccccccccc-a1", 5)])
    tokens = ["aaaaaaaaaaaa-a1", "bbbbbbbbbbbb-a1", "cccccccccccc-a1"]
    _forgotten(accounted)
    other = open_backend("slurm", "sweep", str(folder))
    observed = other.poll([*tokens, "dddddddddddd-a1"])
    assert [observed[token].state for token in tokens] == [JobState.ENDED] * 3
    assert [observed[token].code for token in tokens] == [3, 0, 5]
    assert observed["dddddddddddd-a1"].state is JobState.ABSENT
    assert set(other.find(tokens)) == set(tokens)
    # Without slurmdbd the jobs are unknown: slurmctld has none of these tokens.
    accounted.kill("slurmdbd")
    late = open_backend("slurm", "sweep", str(folder))
    for ask in (late.poll, late.find):
        with pytest.raises(Unreachable, match="Problem talking to the database"):
            ask(tokens)


def test_without_comments_it_is_no_help(accounted: Any, folder: Path) -> None:
    looks = {name: look for name, _, look in slurm_doctor.checks({}, dict)}
    assert looks["accounting"]() == "slurmdbd"
    text = accounted.config.read_text()
    accounted.config.write_text(text.replace("AccountingStoreFlags=job_comment\n", ""))
    accounted.run("scontrol", "reconfigure")
    looks = {name: look for name, _, look in slurm_doctor.checks({}, dict)}
    with pytest.raises(LookupError, match="AccountingStoreFlags=job_comment"):
        looks["accounting"]()
    token = "aaaaaaaaaaaa-a1"
    open_backend("slurm", "sweep", str(folder)).submit([_job(folder, token, 3)])
    _forgotten(accounted)
    assert token not in accounted.run("sacct", "-X", "-n", "-P", "-o", "Comment")
    late = open_backend("slurm", "sweep", str(folder))
    assert late.poll([token])[token].state is JobState.ABSENT


def test_as_many_jobs_as_a_user_may_have(accounted: Any, folder: Path) -> None:
    """Jobs below the limit are submitted, then submissions back off; the preflight still passes."""
    with accounted.config.open("a") as file:
        file.write("AccountingStorageEnforce=associations,limits\n")
    accounted.kill("slurmctld")
    accounted.start_controller()
    accounted.until_idle()
    accounted.run("sacctmgr", "-i", "add", "account", "lab")
    accounted.run("sacctmgr", "-i", "add", "user", accounted.user, "account=lab", "MaxSubmitJobs=3")
    jobs = [_job(folder, f"{n:012x}-a1", 0, account="lab", extra=["--hold"]) for n in range(8)]
    backend = open_backend("slurm", "sweep", str(folder))
    with pytest.raises(Full, match="AssocMaxSubmitJobLimit"):
        backend.submit(jobs)
    jobs_found = backend.find([job.token for job in jobs])
    assert len(jobs_found) == 3 and len(list(folder.glob("slurm/*.json"))) == 2
    backend.preflight([{"account": "lab"}])
    accounted.run("scancel", "--me")
    with pytest.raises(Full):
        backend.submit(jobs[3:4])
    open_backend("slurm", "sweep", str(folder)).submit(jobs[3:4])
