"""Runs inside a sandbox, as `python -c TEXT TOKEN FOLDER` with this file as TEXT, and sends SIGTERM
to the worker of a job. From outside, a sandbox can only be killed. The command contains this text
because the image may lack sweeper. Imports only the standard library."""

import os
import signal
import sys
from contextlib import suppress

NOBODY = 3
"""The exit code if the worker has not started yet or has already ended."""


def main(token: str, folder: str) -> int:
    """Send SIGTERM to the worker of the job `token`. Return 0, or `NOBODY` if no worker is running.
    Processes that the worker has forked have the same command line but get no signal."""
    arguments = [os.fsencode(folder), os.fsencode(token)]
    processes = {
        int(n) for n in os.listdir("/proc") if n.isdecimal() and _words(n)[-2:] == arguments
    }
    first = [pid for pid in processes if _parent(pid) not in processes]
    for pid in first:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return 0 if first else NOBODY


def _words(pid: str) -> list[bytes]:
    return _read(f"/proc/{pid}/cmdline").removesuffix(b"\0").split(b"\0")


def _parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # The process has ended meanwhile.
        return b""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
