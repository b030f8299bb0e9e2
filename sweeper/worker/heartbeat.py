"""Writes a worker's heartbeat: that it lives, and the state of its recipe and machine. It must be
cheap, and uses only the standard library."""

import math
import os
import time
from typing import TYPE_CHECKING

from sweeper.common.codec import SCHEMA
from sweeper.errors import StoreError
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.usage import NO_USAGE
from sweeper.worker.output import say

if TYPE_CHECKING:
    from sweeper.sweep.folder import SweepFolder
    from sweeper.worker.rate_limits import Pauses
    from sweeper.worker.usage import UsageFiles


_UNLIMITED = 1 << 60


def facts(folder: str) -> dict[str, int]:
    """Return free and total bytes: `disk_free_bytes` and `disk_total_bytes` of the disk with
    `folder`; `memory_free_bytes` and `memory_total_bytes` of the machine, or of the container if
    that has less left. Unknown values are omitted."""
    amounts: dict[str, int] = {}
    try:
        disk = os.statvfs(folder)
        amounts["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        amounts["disk_total_bytes"] = disk.f_blocks * disk.f_frsize
    except OSError:
        amounts = {}
    free, total = min(filter(None, (_machine(), _container())), default=(0, 0))
    if total:
        amounts |= {"memory_free_bytes": free, "memory_total_bytes": total}
    return amounts


def _machine(path: str = "/proc/meminfo") -> tuple[int, int] | None:
    """Return the machine's memory in bytes: available, and total."""
    values = _table(path)
    try:
        return values["MemAvailable:"] * 1024, values["MemTotal:"] * 1024
    except KeyError:
        return None


def _container(
    top: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup"
) -> tuple[int, int] | None:
    """Return available and total memory of the tightest control group (version 2) around this
    process. None if there is no limit."""
    tightest: tuple[int, int] | None = None
    for line in _text(own).splitlines():
        if line.startswith("0::/"):
            folder = line[4:]
            while True:
                limit = _group(f"{top}/{folder}".rstrip("/"))
                if limit is not None:
                    tightest = limit if tightest is None else min(tightest, limit)
                if not folder:
                    break
                folder = folder.rpartition("/")[0]
    return tightest


def _group(folder: str) -> tuple[int, int] | None:
    most, used = _text(f"{folder}/memory.max").strip(), _text(f"{folder}/memory.current").strip()
    if not most.isdecimal() or not used.isdecimal() or int(most) >= _UNLIMITED:
        return None
    # The kernel frees cached files before it kills a process, so they count as free.
    spare = _table(f"{folder}/memory.stat").get("inactive_file", 0)
    return max(0, int(most) - int(used) + spare), int(most)


def _table(path: str) -> dict[str, int]:
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


BEAT_SECONDS = 5.0
"""The interval between two heartbeats."""


class Heartbeat:
    """The heartbeat of one attempt. `folder`, `usage` and `pauses` are set once the recipe has
    them: its folder, its usage of the service, and its rate-limit pauses. `written` is the
    monotonic time of the last heartbeat."""

    def __init__(self, folder: "SweepFolder", run: str, attempt: int) -> None:
        self._store = folder.store
        self._path = folder.heartbeat(run, attempt)
        self._counter = 0
        self._begun = time.monotonic()
        self.written = -math.inf
        self.folder = ""
        self.usage: UsageFiles | None = None
        self.pauses: Pauses | None = None

    def begin(self) -> None:
        """Start the attempt's clock. Called after the claim."""
        self._begun = time.monotonic()

    def write(self) -> bool:
        """Write a heartbeat. Return whether the store took it. An unreachable store does not stop
        the run."""
        self._counter, self.written = self._counter + 1, time.monotonic()
        used = self.used()
        pause = self.pauses.current() if self.pauses else None
        body = {
            "schema": SCHEMA,
            "counter": self._counter,
            "time": timestamp(),
            "up_s": self.up_seconds(),
            "pid": os.getpid(),
            "paused": None if pause is None else pause._asdict(),
            "paused_s": self.paused_seconds(),
            "host": os.uname().nodename,
            "machine": facts(self.folder),
        } | used
        try:
            self._store.replace(self._path, encode(body), durable=False)
        except StoreError as error:  # such as a full disk; requests can still be read
            say(f"sweeper: {error}")
            return False
        return True

    def up_seconds(self) -> float:
        """Return the seconds since the claim, by the monotonic clock."""
        return round(time.monotonic() - self._begun, 3)

    def paused_seconds(self) -> float:
        """Return the seconds for which the service has held the recipe back."""
        return round(self.pauses.seconds(), 3) if self.pauses else 0.0

    def used(self) -> dict[str, object]:
        """Return the recipe's usage of its service so far; an empty dict if there is none."""
        usage = NO_USAGE if self.usage is None else self.usage.read()
        if self.usage is not None and self.pauses is not None:
            self.pauses.hear(self.usage.paused)
        return {} if usage == NO_USAGE else {"usage": usage.document()}
