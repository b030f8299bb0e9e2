"""Start, find and stop the engine. Standard library only at import: the command line uses it.

An engine that serves a home holds a lock on `<home>/engine/lock` and, once it answers, has a
record in `<home>/engine/engine.json`. The record may outlive the engine: who reads it asks the
address whether the engine is there, and the same one.
"""

import contextlib
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sweeper.engine import home as homes
from sweeper.errors import EngineError

__all__ = ["SERVICE", "EngineInfo", "command", "find", "log_path", "record_path", "serve", "stop",
           "wait"]  # fmt: skip

SERVICE = "sweeper-engine"
_ASK_SECONDS = 5.0
_STOP_SECONDS = 20.0
_LOG_LINES = 8


class EngineInfo(NamedTuple):
    """An engine that runs: its address, process, and when it started (ISO 8601)."""

    url: str
    pid: int
    started: str
    version: str
    home: str


def record_path(home: str | None = None) -> str:
    """Where a running engine is recorded."""
    return os.path.join(homes.engine(home), "engine.json")


def log_path(home: str | None = None) -> str:
    """Where an engine logs what it does."""
    return os.path.join(homes.engine(home), "engine.log")


def command(home: str | None = None, port: int = 0) -> list[str]:
    """The argv that serves a home in the foreground, with this interpreter."""
    argv = [sys.executable, "-P", "-m", "sweeper.engine", "serve", "--port", str(port)]
    return [*argv, "--home", os.path.abspath(home)] if home else argv


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    home: str | None = None,
    models: Mapping[str, str] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; a hangup is survived. Port 0 is a free one.

    `models` gives directories in Hugging Face's layout to names, beside the built-in
    `tiny/qwen3`. Raises EngineError if another engine serves the home, the address cannot be
    had, or a model cannot be read.
    """
    # Before numpy is imported: its threads cost more than they bring at these sizes.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from sweeper.engine.server import serve as run

    run(host, port, os.path.abspath(home or homes.home()), dict(models or {}))


def _ask(url: str, timeout: float) -> dict[str, Any] | None:
    """What `healthz` says; None if nobody answers."""
    # http.client, because urllib would go through a proxy that the environment names
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", "/api/v1/healthz")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownVariableType]  # JSON


def find(home: str | None = None) -> EngineInfo | None:
    """The engine that serves a home; None if none does, whatever is recorded."""
    path = os.path.abspath(home or homes.home())
    try:
        with open(record_path(path), encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
        info = EngineInfo(record["url"], record["pid"], record["started"], record["version"], path)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    answer = _ask(info.url, _ASK_SECONDS) or {}
    expected = {"service": SERVICE, "home": path, "pid": info.pid, "started": info.started}
    return info if expected.items() <= answer.items() else None


def _last_words(home: str | None) -> str:
    with contextlib.suppress(OSError), open(log_path(home), encoding="utf-8") as file:
        lines = [line.strip() for line in file.readlines()[-_LOG_LINES:]]
        if lines:
            return f"; {log_path(home)} ends with: " + " | ".join(lines)
    return f"; it wrote no {log_path(home)}"


def wait(home: str | None = None, timeout: float = 30.0) -> EngineInfo:
    """Wait until an engine serves the home. EngineError, with the end of its log, if none does."""
    deadline = time.monotonic() + timeout
    while True:
        if (info := find(home)) is not None:
            return info
        if time.monotonic() > deadline:
            raise EngineError(f"no engine within {timeout:.0f} s{_last_words(home)}")
        time.sleep(0.05)


def stop(home: str | None = None) -> bool:
    """Stop the engine that serves a home; False if there is none.

    Only a process that answers as this home's engine, with the recorded pid, is signalled.
    EngineError if it is not gone in time, or is another user's.
    """
    info = find(home)
    if info is None:
        return False
    try:
        os.kill(info.pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise EngineError(f"the engine (pid {info.pid}) is another user's") from None
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        if not os.path.exists(record_path(home)) and _ask(info.url, 1.0) is None:
            return True
        time.sleep(0.05)
    raise EngineError(
        f"the engine (pid {info.pid}) has not stopped in {_STOP_SECONDS:.0f} s{_last_words(home)}"
    )
