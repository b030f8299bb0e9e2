"""A real Ray cluster on loopback with its own token: a head, and nodes that are added and removed.

    with Cluster() as cluster: ...        # from a test, in an interpreter that has Ray
    python tests/support/ray_cluster.py   # the cluster's process: reads verbs on standard input

Ray's own `cluster_utils` starts and ends all processes; none is ended by its name.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "a-token-of-the-test-which-must-be-seen-nowhere"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Nodes use only the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise other load on the machine slows down its jobs, which are compared with `local`.
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
SECONDS = 120


def missing() -> bool:
    """Return whether this interpreter has no Ray."""
    return importlib.util.find_spec("ray") is None


class Cluster:
    """A head with `cpus`, and a node `second` with as many CPUs and the resource `second`.
    `options` are the backend's options for it, `environment` the variables for access."""

    def __init__(self, cpus: int = 16, **environment: str) -> None:
        self.cpus = cpus
        self.environment = {**os.environ, **ENVIRONMENT, **environment}

    def __enter__(self) -> "Cluster":
        # Sockets are below it; their paths have at most 107 characters.
        self._top = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(self.cpus), self._top.name],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._heard()["address"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._top.cleanup()

    @property
    def options(self) -> dict[str, Any]:
        return {"address": self.address}

    def do(self, verb: str) -> dict[str, Any]:
        """Send a verb to the cluster's process, and wait until it is done."""
        assert self._process.stdin is not None
        print(verb, file=self._process.stdin, flush=True)
        return self._heard()

    @contextmanager
    def without_second(self, verb: str = "lose") -> Iterator[None]:
        """Lose the node `second`, or drain it like a spot machine (`drain`), and add another."""
        self.do(verb)
        try:
            yield
        finally:
            self.do("add")

    @contextmanager
    def head_away(self) -> Iterator[None]:
        """Make the head's address unresponsive."""
        self.do("stop")
        try:
            yield
        finally:
            self.do("continue")

    def everything_shown(self) -> str:
        """Return everything that the platform shows of its jobs and keeps in its logs."""
        shown = json.dumps(self.do("show"))
        logs = [path.read_text(errors="replace") for path in Path(self._top.name).rglob("*.*")
                if path.is_file() and "sock" not in path.name]  # fmt: skip
        return "\n".join([shown, *logs])

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the keeper of the Ray cluster is gone"
        return json.loads(line)


class _Keeper:
    def __init__(self, cpus: int, top: str) -> None:
        # Ray records the last started cluster there; the default folder may have a user's cluster.
        os.environ["RAY_TMPDIR"] = top
        os.makedirs(os.path.join(top, "ray"), exist_ok=True)
        from ray.cluster_utils import Cluster as Nodes

        self._given: dict[str, Any] = {
            "num_cpus": cpus,
            "node_ip_address": "127.0.0.1",
            "object_store_memory": 80 << 20,
        }
        head = {**self._given, "include_dashboard": False, "temp_dir": top}
        self.nodes: Any = Nodes(initialize_head=True, head_node_args=head)
        self.add()

    def add(self) -> None:
        self._second: Any = self.nodes.add_node(**self._given, resources={"second": 1000})

    def lose(self) -> None:
        self.nodes.remove_node(self._second, allow_graceful=False)

    def drain(self) -> None:
        """Drain the node as a spot market does: it has one second, then it is gone."""
        from ray._raylet import GcsClient

        node = self._second.node_id
        deadline = int((time.time() + 1) * 1000)
        GcsClient(address=self.nodes.address).drain_node(node, 2, "spot", deadline)
        time.sleep(1)
        self.lose()

    def stop(self) -> None:
        self._gcs().send_signal(signal.SIGSTOP)

    def _gcs(self) -> Any:
        return self.nodes.head_node.all_processes["gcs_server"][0].process

    def show(self) -> Mapping[str, Any]:
        import ray

        ray.init(self.nodes.address, log_to_driver=False, ignore_reinit_error=True)
        from ray._private.state import actors
        from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

        state = {
            key.decode(): str(_internal_kv_get(key, namespace=b"sweeper"))
            for key in _internal_kv_list(b"", namespace=b"sweeper")
        }
        return {"actors": str(actors()), "kept": state}


def main() -> int:
    keeper = _Keeper(int(sys.argv[1]), sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"address": keeper.nodes.address}), file=answers, flush=True)
    for line in sys.stdin:
        verb = line.strip()
        if verb == "continue":
            keeper._gcs().send_signal(signal.SIGCONT)
            answer = None
        else:
            answer = getattr(keeper, verb)()
        print(json.dumps(answer or {}), file=answers, flush=True)
    keeper._gcs().send_signal(signal.SIGCONT)
    keeper.nodes.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
