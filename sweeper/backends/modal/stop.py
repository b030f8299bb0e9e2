"""Inside a sandbox: this text, by `python -c TEXT TOKEN FOLDER`, tells the worker of a job to stop,
by SIGTERM. It is brought along, since the image may have no sweeper; standard library only. What a
sandbox is told from outside is to die."""

import os
import signal
import sys
from contextlib import suppress

__all__ = ["NOBODY", "main"]

NOBODY = 3
"""The exit code where no such worker is there, yet or any more."""


def main(token: str, folder: str) -> int:
    """Tell it, and none of the processes below it. A worker's command line ends in its folder and
    its token, and so does that of what it forks."""
    told = [os.fsencode(folder), os.fsencode(token)]
    found = {int(n) for n in os.listdir("/proc") if n.isdecimal() and _words(n)[-2:] == told}
    first = [pid for pid in found if _parent(pid) not in found]
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
    except OSError:  # it has ended meanwhile
        return b""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
