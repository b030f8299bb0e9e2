"""Forks recipes from a process that has imported the SDK, which is most of their startup time.

    python recipe_forks.py DESCRIPTOR       a Unix socket; each message requests a recipe

`Forks` is the tests' client. Differences between a forked recipe and a new interpreter are tested
by `tests/e2e/test_fork_client.py`, for the program's own fork server.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

_LARGEST = 1 << 20


class Forked:
    """A recipe's process, like `subprocess.Popen`: `stdout` is read line by line, `pid`."""

    def __init__(
        self, pid: int, ended: socket.socket, output: int, errors: IO[str], holding: int | None
    ) -> None:
        self.pid = pid
        self._holding = holding
        self.returncode: int | None = None
        self.stdout = os.fdopen(output, encoding="utf-8")
        self._ended = ended
        self._errors = errors

    def send_signal(self, number: int) -> None:
        """Send a signal, as `Popen` does."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = json.loads(self._ended.recv(_LARGEST))["code"]
        return self.returncode

    def let_go(self) -> None:
        """Release the process if it is held at a line."""
        if self._holding is not None:
            os.close(self._holding)
            self._holding = None

    def communicate(self) -> tuple[str, str]:
        """Return the rest of its output, and its errors, when it has ended."""
        self.let_go()
        with self.stdout, self._ended, self._errors:
            output = self.stdout.read()
            if self.returncode is None:
                self.returncode = json.loads(self._ended.recv(_LARGEST))["code"]
            self._errors.seek(0)
            return output, self._errors.read()


class Forks:
    """A process that has imported the recipes' modules, and forks recipes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        held_at: str | None = None,
    ) -> Forked:
        """Start `python -m MODULE ARGUMENTS`, without standard input. After printing a line that
        begins with `held_at`, it waits until it is released."""
        request = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
        request |= {"cwd": os.getcwd(), "held_at": held_at}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, writing = os.pipe()
        held, holding = os.pipe()
        errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - `Forked` closes it
        with theirs:
            passed = [theirs.fileno(), writing, errors.fileno(), held]
            socket.send_fds(self._socket, [json.dumps(request).encode()], passed)
        os.close(writing)
        os.close(held)
        pid = json.loads(ours.recv(_LARGEST))["pid"]
        return Forked(pid, ours, output, errors, holding)

    def close(self) -> None:
        """End the process that forks, with its children."""
        self._socket.close()
        self._process.wait()


class _Held:
    """A text stream. After a line that begins with the given text, it waits until the other end of
    `descriptor` is closed."""

    def __init__(self, stream: IO[str], begins: str, descriptor: int) -> None:
        self._stream, self._begins, self._descriptor = stream, begins, descriptor
        self._due = False

    def write(self, text: str) -> int:
        self._due |= text.startswith(self._begins)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()
        if self._due:
            self._due = False
            os.read(self._descriptor, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork on request until the socket is closed. In a fork, returns the request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([connection, *running], [], [])
        for ended in set(ready) & set(running):
            pid, teller = running.pop(ended)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(ended)
            with teller:
                teller.send(json.dumps({"code": code}).encode())
        if connection not in ready:
            continue
        text, passed, _, _ = socket.recv_fds(connection, _LARGEST, 4)
        if not text:
            for pid, _ in running.values():
                os.kill(pid, signal.SIGKILL)
            return None
        teller = socket.socket(fileno=passed[0])
        pid = os.fork()
        if not pid:
            os.dup2(passed[1], 1)
            os.dup2(passed[2], 2)
            for descriptor in (*passed[:3], *running, connection.fileno()):
                os.close(descriptor)
            for _, other in running.values():
                os.close(other.fileno())
            return json.loads(text) | {"held": passed[3]}
        running[os.pidfd_open(pid)] = pid, teller
        os.close(passed[1])
        os.close(passed[2])
        os.close(passed[3])
        teller.send(json.dumps({"pid": pid}).encode())


def _main() -> None:
    import gc
    import runpy

    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # here, not in the forks
    import httpcore  # noqa: F401
    import numpy  # noqa: F401
    import pyqwest  # noqa: F401
    import tinker  # noqa: F401
    import transformers
    import wandb  # noqa: F401

    _ = transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast  # imported when named

    import sweeper
    from sweeper.recipes import rl, sft  # noqa: F401  - for what they import in their turn

    for name in [name for name in sys.modules if name.startswith("sweeper.recipes")]:
        del sys.modules[name]  # each run has its own
    del sweeper.recipes
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]
        if request["held_at"] is not None:
            sys.stdout = _Held(sys.stdout, request["held_at"], request["held"])
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
