"""Runs on a host: starts workers, each in its own session, and reports which of them still run. The
launcher sends this file over the connection, to any Python from 3.8 on. Imports only the standard
library."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

_LOG_BYTES = 1 << 20
_DAYS = 30
_CHANGED_SIGNALS = (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # The folder is a file, or was removed meanwhile.
        return []


def _began(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot; "" if the process has
    ended."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in ("Z", "X") else fields[19]


def _boot() -> str:
    """Return an id that changes with each start of the machine or container."""
    return _text("/proc/sys/kernel/random/boot_id").strip() + " " + _began(1)


class Host:
    """The workers of one sweep on this host. `folder` has the records of all sweeps, in a subfolder
    for each sweep. `sweep` is the name of this sweep's subfolder."""

    def __init__(self, folder: str, sweep: str) -> None:
        self.top = os.path.expanduser(folder)
        self.folder = os.path.join(self.top, sweep)
        self.boot = _boot()
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def state(self, path: str) -> int | str | None:
        """Return the state of the worker that the file `path` records: `lost` if the machine was
        restarted after the worker started, else the worker's pid if the worker is alive, else
        `ended`. A damaged record counts as `ended`. Return None if there is no record."""
        try:
            record: dict[str, Any] | None = json.loads(_text(path) or "null")
            if record is None:
                return None
            if record["boot"] != self.boot:
                return "lost"
            pid: int = record["pid"]
            return pid if _began(pid) == record["began"] else "ended"
        except (ValueError, KeyError, TypeError):
            return "ended"

    def path(self, token: str, kind: str = "json") -> str:
        return os.path.join(self.folder, f"{token}.{kind}")

    def busy(self) -> int:
        """Return the number of running workers of all sweeps. Also remove the records and logs of
        ended workers 30 days after their start."""
        count, old = 0, time.time() - _DAYS * 86400
        for sweep in os.listdir(self.top):
            folder = os.path.join(self.top, sweep)
            for name in _names(folder):
                path = os.path.join(folder, name)
                if not name.endswith(".json"):
                    continue
                if isinstance(self.state(path), int):
                    count += 1
                    continue
                with contextlib.suppress(OSError):
                    if os.stat(path).st_mtime < old:
                        for kind in ("json", "log"):
                            os.unlink(path[: -len("json")] + kind)
        return count

    def start(self, jobs: list[dict[str, Any]], slots: int) -> list[str]:
        """Start jobs while slots are free, and return the tokens of the jobs that got no slot. Skip
        jobs that already run. A lock prevents two launchers from using the same slot."""
        with open(os.path.join(self.top, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.makedirs(self.folder, mode=0o700, exist_ok=True)  # `forget` may have removed it
            free = slots - self.busy()
            rejected: list[str] = []
            for job in jobs:
                if isinstance(self.state(self.path(job["token"])), int):
                    continue
                if free <= 0:
                    rejected.append(job["token"])
                    continue
                self.spawn(job)
                free -= 1
            return rejected

    def spawn(self, job: dict[str, Any]) -> None:
        """Start a worker. Raises `OSError` if the worker's folder or program cannot be used."""
        reading, writing = os.pipe()
        first = os.fork()
        if first == 0:
            try:
                os.setsid()
                # The worker gets init as its parent, so that it never becomes a zombie.
                if os.fork():
                    os._exit(0)
                self.become(job, writing)
            finally:
                os._exit(127)
        os.close(writing)
        os.waitpid(first, 0)
        with os.fdopen(reading, "rb") as file:
            message = file.read().decode("utf-8", "replace")
        if message:
            raise OSError(message)

    def become(self, job: dict[str, Any], failing: int) -> None:
        """Replace this process by the worker, which writes its output to the log. On an error,
        write the reason to the file descriptor `failing`."""
        path: str = job["cwd"]
        try:
            if job["makes"]:
                os.makedirs(path, exist_ok=True)
            os.chdir(path)
            null = os.open(os.devnull, os.O_RDONLY)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            log = os.open(self.path(job["token"], "log"), flags, 0o600)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            for number in _CHANGED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            record = {"pid": os.getpid(), "began": _began(os.getpid()), "boot": self.boot}
            scratch = self.path(job["token"], f"tmp{os.getpid()}")
            with open(scratch, "w") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(scratch, self.path(job["token"]))
            path = job["argv"][0]
            os.execvpe(path, job["argv"], {**os.environ, **job["env"]})
        except OSError as error:
            os.write(failing, f"{path[:200]}: {error.strerror}".encode())

    def states(self, tokens: list[str]) -> dict[str, int | str]:
        """Return the state of each job that was started here."""
        states = {token: self.state(self.path(token)) for token in tokens}
        return {token: state for token, state in states.items() if state is not None}

    def cancel(self, tokens: list[str]) -> None:
        for pid in self.states(tokens).values():
            if isinstance(pid, int):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def log(self, token: str) -> str:
        """Return the last output of a worker."""
        try:
            with open(self.path(token, "log"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def forget(self, tokens: list[str]) -> None:
        """Remove the records and logs of the `tokens` whose jobs have ended. Then remove the
        sweep's folder if it is empty."""
        with open(os.path.join(self.top, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for token, state in self.states(tokens).items():
                if not isinstance(state, int):
                    for kind in ("log", "json"):
                        with contextlib.suppress(OSError):
                            os.unlink(self.path(token, kind))
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Execute a request of the launcher and return the answer."""
    host = Host(request["folder"], request["sweep"])
    action, tokens = request["do"], request.get("tokens", [])
    result: dict[str, Any] = {}
    if action == "start":
        result["left"] = host.start(request["jobs"], request["slots"])
    elif action == "cancel":
        host.cancel(tokens)
    elif action == "log":
        result["log"] = host.log(tokens[0])
    elif action == "forget":
        host.forget(tokens)
    elif action == "states":
        result["states"] = host.states(tokens)
    return {**result, "busy": host.busy(), "python": sys.version.split()[0]}


def main(text: str) -> None:
    """Execute a request in JSON and print the answer as a line of JSON."""
    document: dict[str, Any]
    try:
        document = {"answer": answer(json.loads(text))}
    except OSError as error:
        document = {"refused": str(error)}
    except Exception:  # noqa: BLE001 - the launcher shows any error
        document = {"refused": traceback.format_exc().strip().splitlines()[-1]}
    print("\nsweeper:" + json.dumps(document), flush=True)
