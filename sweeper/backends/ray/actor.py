"""Runs a job on a node of a Ray cluster: an actor that starts the worker, stores the worker's exit
code and last output, and ends when the worker has ended. Imports only the standard library and
Ray."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module

ENDS = b"sweeper"
"""The namespace, in Ray's key-value store, of the workers' exit codes and last output."""
_LINES = 50
_GIVEN = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("NEURON_RT_VISIBLE_CORES", "ONEAPI_DEVICE_SELECTOR", "TPU_VISIBLE_CHIPS"),
)
"""Variables that Ray sets for a job and that its recipe gets."""
_TIED = (
    "import ctypes, os, sys\n"
    # Make the kernel kill the worker when the actor ends.
    "getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 9)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "try:\n    os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error:\n"
    "    sys.exit(f'cannot start {sys.argv[2]}: {error.strerror}')\n"
)


class Job:
    """The actor of one job. The exit code and the last output of the worker are stored under `key`,
    the job's name in Ray."""

    def __init__(self, key: str, argv: Sequence[str], cwd: str, secrets: Mapping[str, str]) -> None:
        ray = import_module("ray")
        self._key = key.encode()
        self._me = ray.get_runtime_context().current_actor
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._process: subprocess.Popen[str] | None = None
        # If the job was submitted twice, remove the recorded end of the earlier actor.
        with suppress(Exception):
            import_module("ray.experimental.internal_kv")._internal_kv_del(
                self._key, namespace=ENDS
            )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv],
                cwd=cwd,
                env=_environment(secrets),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except (OSError, LookupError) as error:
            self._lines.append(str(error))
        threading.Thread(target=self._attend, daemon=True).start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def tail(self) -> list[str]:
        """Return the worker's last output."""
        return list(self._lines)

    def leave(self) -> None:
        """End this process, which releases the job's resources on the node."""
        import_module("ray.actor").exit_actor()

    def _read(self) -> None:
        for line in (self._process and self._process.stdout) or ():
            self._lines.append(line.rstrip("\n")[:500])

    def _attend(self) -> None:
        code: int | None = None
        if self._process is not None:
            reading = threading.Thread(target=self._read, daemon=True)
            reading.start()
            code = self._process.wait()
            reading.join(1.0)  # Processes that the worker left behind may hold its output open.
        end = json.dumps({"code": code, "tail": list(self._lines)}).encode()
        store = import_module("ray.experimental.internal_kv")
        while True:  # The head may be unreachable.
            with suppress(Exception):
                store._internal_kv_put(self._key, end, namespace=ENDS)
                break
            time.sleep(1.0)
        with suppress(Exception):
            self._me.leave.remote()
            time.sleep(10.0)
        os._exit(0)


def _environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment: the secrets, and the node's variables except those that
    begin with RAY_. SWEEPER_KEEP and SWEEPER_DROP tell the worker which variables the recipe
    gets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {name: resolved(name, where) for name, where in secrets.items()}
    names = [name for name in (*_GIVEN, *secrets) if name in environment]
    return environment | {"SWEEPER_KEEP": "\n".join(names), "SWEEPER_DROP": "RAY_"}


def resolved(name: str, reference: str) -> str:
    """Return a secret's value from this node. `reference` is `env:NAME` or `file:/path`. Raises
    `LookupError` if the variable is not set or the file cannot be read."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        if where not in os.environ:
            raise LookupError(
                f"the secret {name}: the environment variable {where} is not set on this node"
            )
        return os.environ[where]
    try:
        with open(where, encoding="utf-8") as file:
            return file.read().rstrip("\n")
    except (OSError, UnicodeError) as error:
        raise LookupError(f"the secret {name}: {where} cannot be read: {error}") from error
