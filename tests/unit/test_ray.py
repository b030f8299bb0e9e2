"""Ray's backend without Ray: options of a grid, statuses of jobs, and a driver that does not
answer."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.backends import backend_type, capabilities_of
from sweeper.backends.base import JobState, JobStatus
from sweeper.backends.helper import Helper
from sweeper.backends.ray.actor import ENDS, resolved
from sweeper.backends.ray.backend import RayBackend, lacking, status_of
from sweeper.backends.ray.driver import Cluster
from sweeper.backends.ray.messages import About, Node
from sweeper.errors import EnvironmentFailure, GridError, Unreachable, UsageError
from sweeper.grid import parse_grid
from sweeper.sweep.process import began
from sweeper.testing import FakeClock

ENDED = JobState.ENDED
STATUSES: list[tuple[About, JobStatus]] = [
    ({"state": "PENDING_CREATION"}, JobStatus(JobState.PENDING, None, "resources")),
    ({"state": "ALIVE", "node": "n1"}, JobStatus(JobState.RUNNING, node="n1")),
    (
        {"state": "DEAD", "end": {"code": 3, "tail": ["sweeper: failed after 2 s"]}},
        JobStatus(ENDED, 3),
    ),
    (  # the actor is about to exit and no longer holds its resources
        {"state": "ALIVE", "node": "n1", "end": {"code": 0, "tail": ["sweeper: succeeded"]}},
        JobStatus(ENDED, 0, node="n1"),
    ),
    # Killed by a signal, perhaps because the node goes down, which Ray reports later.
    (
        {"state": "ALIVE", "node": "n1", "end": {"code": -9, "tail": []}},
        JobStatus(JobState.RUNNING, node="n1"),
    ),
    (
        {"state": "DEAD", "end": {"code": -9, "tail": []}, "death": {"reason": "NODE_DIED"}},
        JobStatus(ENDED, None, "its node is gone", preempted=True),
    ),
    ({"state": "DEAD", "end": {"code": -9, "tail": []}}, JobStatus(ENDED, -9)),
    (
        {"state": "DEAD", "end": {"code": 1, "tail": ["No module named sweeper", ""]}},
        JobStatus(ENDED, 1, "start: No module named sweeper"),
    ),
    (
        {"state": "DEAD", "node": "n1", "death": {"kind": "actor_died_error_context",
                                                  "reason": "NODE_DIED", "message": "x"}},
        JobStatus(ENDED, None, "its node is gone", preempted=True, node="n1"),
    ),
    (
        {"state": "DEAD", "death": {"kind": "actor_died_error_context", "reason": "RAY_KILL"}},
        JobStatus(ENDED),
    ),
    ({"state": "DEAD", "death": {"kind": "oom_context"}}, JobStatus(ENDED, None, "oom")),
    (
        {"state": "DEAD", "death": {"kind": "creation_task_failure_context",
                                    "message": "ModuleNotFoundError:\n No module: sweeper"}},
        JobStatus(ENDED, None, "start: ModuleNotFoundError: No module: sweeper"),
    ),
    ({"state": "DEAD"}, JobStatus(ENDED)),
]  # fmt: skip


@pytest.mark.parametrize(("about", "expected"), STATUSES)
def test_what_becomes_of_an_actor(about: About, expected: JobStatus) -> None:
    assert status_of(about) == expected


NODES: list[Node] = [
    {"name": "a", "id": "1", "labels": {}, "has": {"CPU": 8.0, "memory": 16.0 * 2**30}},
    {
        "name": "b",
        "id": "2",
        "labels": {},
        "has": {"CPU": 2.0, "GPU": 4.0, "memory": 4.0 * 2**30, "disk": 2.0},
    },
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"num_cpus": 8.0}, None),
        ({"num_gpus": 1.0, "resources": {"disk": 2.0}, "memory": 4096}, None),
        ({"num_cpus": 9.0}, "a job asks for CPU 9, but the largest node has 8"),
        ({"memory": 20000}, "a job asks for memory 20000, but the largest node has 16384"),
        ({"resources": {"tape": 1.0}}, "a job asks for tape 1, but the largest node has 0"),
        # Each node has one of them, none has both.
        (
            {"num_cpus": 4.0, "num_gpus": 1.0},
            "a job asks for CPU 4, but the largest node has 8; "
            "a job asks for GPU 1, but the largest node has 4",
        ),
    ],
)
def test_what_no_node_has(options: dict[str, Any], message: str | None) -> None:
    assert lacking(options, NODES) == message


MISTAKES = {
    "address: ray://head:10001": "'ray://head:10001' is not the address of a head",
    "address: 10.0.0.1": "'10.0.0.1' is not the address of a head",
    "adress: auto": "unknown key 'adress' in launch.ray; did you mean 'address'?",
    "num_cpus: many": "launch.ray.num_cpus is a string; it takes a number",
    "num_cpus: -1": "launch.ray.num_cpus is -1; it takes a number",
    "num_gpus: .inf": "launch.ray.num_gpus is inf; it takes a number",
    "memory: 8G": "launch.ray.memory is a string; it takes an integer",
    "memory: 0": "launch.ray.memory must be 1 to",
    "resources: [disk]": "launch.ray.resources is a list; it takes a mapping of names to amounts",
    "resources: {disk: 0}": "launch.ray.resources.disk is 0; it takes a number above 0",
    "resources: {disk: much}": "launch.ray.resources.disk is a string; it takes a number",
    "labels: {zone: ''}": "launch.ray.labels.zone takes a label's value",
    "labels: {zone: 'in(a b)'}": "launch.ray.labels.zone takes a label's value",
    "placement: random": "'random' is not one of pack, spread",
    "files: maybe": "launch.ray.files is a string; it takes true or false",
    "wait_for_nodes: 1": "launch.ray.wait_for_nodes is an integer; it takes true or false",
    "python: ''": "launch.ray.python is empty",
    "secrets: {KEY: hunter2hunter2}": "launch.ray.secrets.KEY takes env:NAME or file:/path",
    "secrets: {KEY: 'file:relative'}": "launch.ray.secrets.KEY takes env:NAME or file:/path",
    "secrets: {KEY-1: 'env:A'}": "'KEY-1' cannot name a variable",
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.items())
def test_mistakes(line: str, message: str, tmp_path: Path) -> None:
    text = f"recipe: r\nlaunch: {{backend: ray, ray: {{{line}}}}}"
    with pytest.raises(GridError) as caught:
        parse_grid(text, str(tmp_path / "g.yaml"))
    (error,) = str(caught.value).splitlines()
    assert message in error and error.startswith(f"{tmp_path}/g.yaml:2:")
    assert "hunter2" not in error


def test_what_jobs_can_do() -> None:
    capabilities = capabilities_of("ray", {})
    assert (capabilities.here, capabilities.files, capabilities.python) == (False, True, None)
    assert "RAY_AUTH_TOKEN" in capabilities.credentials
    capabilities = capabilities_of("ray", {"files": False, "secrets": {"KEY": "env:KEY"}})
    assert (capabilities.files, capabilities.python, capabilities.secrets) == (
        False,
        "python",
        {"KEY"},
    )
    with pytest.raises(UsageError, match="address must be the same for all runs"):
        capabilities_of("ray", {"overrides": [{"if": {"x": [1]}, "address": "auto"}]})


def test_where_a_secret_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "one")
    (tmp_path / "key").write_text("two\n")
    assert resolved("KEY", "env:HELD") == "one"
    assert resolved("KEY", f"file:{tmp_path}/key") == "two"
    for reference in ("env:NOT_HELD", f"file:{tmp_path}/gone"):
        with pytest.raises(LookupError, match="the secret KEY: "):
            resolved("KEY", reference)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install .*\[ray\]"):
        backend_type("ray").open("s", str(tmp_path), {})


DRIVER = """
import json, os, sys, time
with open(os.environ["PID"], "w") as file:
    file.write(str(os.getpid()))
for line in sys.stdin:
    do = json.loads(line)["do"]
    reply = {"answer": {"address": "h:1", "version": "2"}}
    if do == "find":
        break
    if do == "poll":
        time.sleep(600)
    if do == "submit":
        reply = {"refused": "no such thing"}
    if do == "cancel":
        reply = {"silent": "who knows"}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def driven(tmp_path: Path, clock: FakeClock) -> Iterator[Helper]:
    """Yield a helper whose process is a stand-in for the driver."""
    (tmp_path / "stand_in.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PID": str(tmp_path / "pid")}
    helper = Helper("ray", "stand_in", {"address": "h:1"}, environment, clock)
    yield helper
    helper.end()


def test_a_driver_that_is_silent_is_ended_and_left_alone(
    driven: Helper, clock: FakeClock, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    assert driven.ask("location") == {"address": "h:1", "version": "2"}
    process = int(pid.read_text())
    driven.seconds = 0.2
    for _ in range(2):  # the second call starts no driver
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
            driven.ask("poll")
    assert not began(process) and int(pid.read_text()) == process
    clock.sleep(60)
    driven.seconds = 60.0
    with pytest.raises(EnvironmentFailure, match="ray: no such thing"):
        driven.ask("submit")
    with pytest.raises(Unreachable, match="ray: who knows"):
        driven.ask("cancel")
    with pytest.raises(Unreachable, match="ended before it answered"):
        driven.ask("find")


class Table:
    """A stand-in for Ray: actors, one of which ends after the second look, and the store of
    ends."""

    def __init__(self) -> None:
        self.kept = {name.encode(): b'{"code": 0, "tail": []}' for name in ("leaving", "gone")}
        self.looks = 0

    def actors(self) -> dict[str, dict[str, Any]]:
        self.looks += 1
        states = {"going": "ALIVE", "leaving": "ALIVE" if self.looks < 3 else "DEAD"}
        about = {
            "Address": {"NodeID": "n"},
            "DeathCause": SimpleNamespace(WhichOneof=lambda _: None),
        }
        return {name: {"Name": name, "State": state, **about} for name, state in states.items()}

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def internal_kv_multi_get(
        self, keys: list[bytes], namespace: bytes, timeout: float
    ) -> dict[bytes, bytes]:
        assert namespace == ENDS
        return {key: self.kept[key] for key in keys if key in self.kept}

    def internal_kv_del(self, key: bytes, by_prefix: bool, namespace: bytes) -> None:
        assert namespace == ENDS and not by_prefix and self.looks >= 3
        del self.kept[key]


def test_what_jobs_left_of_their_ends_is_removed_once_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table()
    nothing = {"init": lambda *_, **__: None, "remote": lambda kind: kind}
    modules: dict[str, Any] = {
        "ray": SimpleNamespace(nodes=table.nodes, **nothing),
        "ray._private.state": table,
        "ray.experimental.internal_kv": SimpleNamespace(internal_kv_get_gcs_client=lambda: table),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    cluster = Cluster("auto", "s")
    table.kept[b"another"] = b"{}"
    cluster.forget(["going", "leaving", "gone", "never was"])
    assert set(table.kept) == {b"another"}


def test_a_head_that_is_not_there(tmp_path: Path) -> None:
    """The driver reports this itself, before Ray tries to connect."""
    backend = RayBackend(str(tmp_path), {"address": "127.0.0.1:1"})
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 does not answer: .*refused"):
        backend.location()
    backend.driver.end()
