"""Contract tests of the built-in backends."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import backend_names, open_backend
from sweeper.errors import UsageError
from sweeper.testing import Fault, Faults, FaultyBackend
from sweeper.testing.contract import BackendContract, Site

# A launcher exits without waiting for its jobs; Popen would warn about that.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
MANY = int(os.environ.get("SWEEPER_TEST_MANY", "60"))
_SILENT = """#!/bin/sh
echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2
exit 1
"""


@pytest.fixture(
    params=["local", "tmux", "slurm", "aws-batch", "kubernetes", "beaker", "modal", "ssh", "faulty"]
)
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmux_socket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    made = {
        "slurm": _slurm,
        "aws-batch": _batch,
        "kubernetes": _kubernetes,
        "beaker": _beaker,
        "modal": _modal,
        "ssh": _ssh,
        "faulty": _faulty,
    }
    with made.get(request.param, _plain)(request, tmp_path, monkeypatch) as opened:
        yield opened


def _plain(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # Only a backend that waits for its own processes knows their exit codes.
    if request.param == "local":
        return Site("local", folder, parallel=60)
    return Site("tmux", folder, parallel=60, many=MANY, knows_codes=False)


def _faulty(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    failing = False

    def opener(sweep: str, where: str) -> FaultyBackend:
        faults = Faults(lambda *_: Fault.FAIL if failing else None)
        return FaultyBackend(open_backend("local", sweep, where), faults)

    @contextmanager
    def silence() -> Iterator[None]:
        nonlocal failing
        failing = True
        yield
        failing = False

    return Site("local", folder, opener=opener, silence=silence, many=20)


def _slurm(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    cluster = request.getfixturevalue("slurm")

    @contextmanager
    def hold() -> Iterator[Mapping[str, object]]:
        yield {"extra": ["--begin=now+1hour"]}

    @contextmanager
    def silence() -> Iterator[None]:
        shims = folder / "shims"
        shims.mkdir()
        for name in ("squeue", "sbatch", "scancel", "scontrol", "sacct"):
            (shims / name).write_text(_SILENT)
            (shims / name).chmod(0o755)
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
            yield

    @contextmanager
    def preempt(job: str) -> Iterator[None]:
        urgent = ["-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
        cluster.run("sbatch", *urgent)
        yield
        cluster.until_idle()

    @contextmanager
    def lose_node(job: str) -> Iterator[None]:
        (name,) = cluster.run("squeue", "-h", "-j", job, "-o", "%N").split()
        node, where = int(name.removeprefix("n")), f"nodename={name}"
        cluster.kill_node(node)
        # Slurm itself would mark the node as down only after a while.
        cluster.run("scontrol", "update", where, "state=down", "reason=silent")
        try:
            yield
        finally:
            cluster.start_node(node)
            cluster.run("scontrol", "update", where, "state=resume", check=False)
            cluster.until_idle()

    return Site(
        "slurm",
        folder,
        parallel=300,
        many=MANY,
        hold=hold,
        silence=silence,
        preempt=preempt,
        lose_node=lose_node,
        fragile={"requeue": False},
    )


def _batch(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    batch = request.getfixturevalue("batch")
    # No killed launcher has left jobs here, so the listing is complete from the start.
    monkeypatch.setattr("sweeper.backends.aws_batch.backend._DOUBT_SECONDS", 0.0)

    @contextmanager
    def hold() -> Iterator[Mapping[str, object]]:
        batch.held = True
        yield {}
        batch.release()

    @contextmanager
    def preempt(job: str) -> Iterator[None]:
        batch.grace = 5.0
        batch.interrupt(job, warned=True)
        yield

    @contextmanager
    def lose_node(job: str) -> Iterator[None]:
        batch.interrupt(job)
        yield

    return Site(
        "aws-batch",
        folder,
        batch.options(retries_on_interruption=0),
        parallel=100,
        many=MANY,
        hold=hold,
        preempt=preempt,
        lose_node=lose_node,
    )


def _stand_in(
    name: str,
    place: Any,
    folder: Path,
    nowhere: Mapping[str, object],
    shut_down: Callable[[str], None],
) -> Site:
    """Return a site of a stand-in. No node fits jobs with the options `nowhere`."""

    @contextmanager
    def hold() -> Iterator[Mapping[str, object]]:
        yield nowhere

    @contextmanager
    def silence() -> Iterator[None]:
        place.silent = True
        yield
        place.silent = False

    @contextmanager
    def preempt(job: str) -> Iterator[None]:
        shut_down(job)
        yield

    @contextmanager
    def lose_node(job: str) -> Iterator[None]:
        node = place.lose(job)
        yield
        node.alive = True

    return Site(
        name,
        folder,
        place.options(),
        parallel=100,
        many=MANY,
        hold=hold,
        silence=silence,
        preempt=preempt,
        lose_node=lose_node,
    )


def _kubernetes(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    kube = request.getfixturevalue("kube")
    nowhere = {"node_selector": {"there": "is-none"}}
    return _stand_in("kubernetes", kube, folder, nowhere, kube.shut_down)


def _beaker(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    beaker = request.getfixturevalue("beaker")
    nowhere = {"hostnames": ["nowhere.lab.org"]}
    return _stand_in("beaker", beaker, folder, nowhere, beaker.preempt)


def _modal(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    modal = request.getfixturevalue("modal")
    site = _stand_in("modal", modal, folder, {}, modal.terminate)
    # No job waits, and Modal does not report how a node was lost.
    return replace(site, hold=None, lose_node=None)


@contextmanager
def _ssh(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    hosts = request.getfixturevalue("ssh_hosts")

    @contextmanager
    def lose_node(job: str) -> Iterator[None]:
        host = hosts.hosts[job.partition(":")[0]]
        host.cut()
        host.start()
        yield

    site = Site(
        "ssh",
        folder,
        hosts.options(30),
        parallel=60,
        many=MANY,
        knows_codes=False,
        silence=hosts.unplugged,
        lose_node=lose_node,
    )
    with site:
        yield site


class TestBackends(BackendContract):
    """The contract tests for all built-in backends and the faulty wrapper."""


def test_an_unknown_backend_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    assert {"aws-batch", "beaker", "local", "ray", "slurm", "ssh", "tmux"} <= set(backend_names())
    with pytest.raises(
        UsageError, match=r"no backend 'slrum': use aws-batch, beaker, .*; did you mean 'slurm'\?"
    ):
        open_backend("slrum", "sweep", os.fspath(tmp_path))
