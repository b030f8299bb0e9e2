"""Shared parts of the stand-ins for cloud services: containers that are processes of this machine,
an HTTP server, and a loop that does the work of schedulers and nodes.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


class _Limited(Protocol):
    times: int


_Fault = TypeVar("_Fault", bound=_Limited)


def take(faults: Iterable[_Fault]) -> _Fault | None:
    """Return the first fault that is not used up, and use it once."""
    fault = next((fault for fault in faults if fault.times), None)
    if fault is not None:
        fault.times -= 1
    return fault


def node_variables() -> dict[str, str]:
    """Return the variables of this machine that containers get."""
    return {key: os.environ[key] for key in _PASSED if key in os.environ}


def start(
    command: list[str], folder: Path | str, environment: Mapping[str, str], output: Any, **more: Any
) -> subprocess.Popen[bytes]:
    """Start a container's process, in a new session."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, **more}
    return subprocess.Popen(
        command, cwd=folder, env=dict(environment), start_new_session=True, **streams
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a container's processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to a container's first process."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


class StandIn:
    """A service that runs while its `with` block does."""

    handler: type[BaseHTTPRequestHandler]
    """Answers the requests; finds the stand-in as `self.server.stand_in`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.environment: dict[str, str] = {}  # variables that nodes give to their containers
        self.over = threading.Event()

    def __enter__(self) -> Self:
        self._server: Any = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self._server.daemon_threads = True
        self._server.stand_in = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,)),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self.containers():
            kill(process)
            process.wait()

    def containers(self) -> Iterable[subprocess.Popen[bytes]]:
        """Return the processes of all containers."""
        raise NotImplementedError

    def work(self) -> None:
        """Do what is due in the scheduler and on the nodes."""
        raise NotImplementedError

    def _control(self) -> None:
        while not self.over.wait(0.02):
            with self.lock:
                try:
                    self.work()
                except Exception as error:  # noqa: BLE001 - a thread: nobody would hear of it
                    print(f"the stand-in: {error!r}", flush=True)

    def log(self, name: str) -> Path:
        """Return the path of a container's log."""
        return self.folder / "containers" / f"{name}.log"

    def run(
        self, name: str, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a container in a new folder. Raises `OSError`."""
        folder = self.folder / "containers" / name
        folder.mkdir(parents=True)
        with self.log(name).open("wb") as log:
            return start(command, folder, {**environment, "HOME": str(folder)}, log)
