"""Sends heartbeats, which describe the recipe and the machine, to the launcher, and looks for
requests. Must be cheap, so it uses only the standard library."""

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists, StoreError
from sweeper.recipe import stack_signal
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.states import Event, parse_name
from sweeper.sweep.usage import NO_USAGE
from sweeper.worker.output import say

if TYPE_CHECKING:
    from sweeper.common.gpus import Taken
    from sweeper.sweep.folder import SweepFolder
    from sweeper.worker.rate_limits import Pauses
    from sweeper.worker.usage import UsageFiles


class Requests:
    """The requests to the worker of one attempt, as of the last check. `superseded`: a newer
    attempt was opened. `cancelled`: a user has cancelled this attempt or removed the sweep.
    `removed`: a user has removed the sweep. `stacks`: a user has requested the stack traces of the
    recipe."""

    def __init__(self, folder: "SweepFolder", run: str, attempt: int) -> None:
        self._store, self._folder = folder.store, folder
        self._run, self._attempt = run, attempt
        self._returned = False
        self.superseded = False
        self.cancelled = False
        self.removed = False
        self.stacks = False

    def check(self) -> bool:
        """Check for requests. Return whether the worker has to stop. If the launcher has declared
        the worker lost, record that the worker is alive. If the store does not answer, return
        False."""
        attempt = self._attempt
        try:
            states = f"{self._folder.state}/{self._run}"
            names = set(self._folder.store.names(states))  # All requests share one listing.
            events = {event for name in names if (event := parse_name(os.path.basename(name)))}
            self.stacks = self._folder.stacks_request(self._run, attempt) in names
            if not events and self.look_for_sweep():
                return True
            if (attempt + 1, Event.INTENT) in events:
                self.superseded = True
                return True
            if (attempt, Event.CANCEL) in events and (attempt, Event.RETRY) not in events:
                self.cancelled = True
                return True
            if (attempt, Event.LOST) in events and not self._returned:
                returned = self._folder.event(self._run, attempt, Event.RETURNED)
                with suppress(AlreadyExists):
                    self._store.create(returned, encode({"schema": SCHEMA, "time": timestamp()}))
                self._returned = True
        except StoreError as error:
            say(f"sweeper: {error}")
        return False

    def look_for_sweep(self) -> bool:
        """Return whether the sweep was removed: the attempt's job description and the sweep's
        `sweep.json` are both missing. The worker records nothing more for a removed sweep. A folder
        on an unmounted disk does not count as removed. Raises `StoreError`."""
        described = self._folder.job(self._run, self._attempt)
        if not self.removed and not self._store.exists(described):
            self.removed = self._folder.name not in self._store.folders_with("sweep.json")
            self.cancelled |= self.removed
        return self.removed

    def look_for_cancel(self) -> None:
        """Set `cancelled` to True if a user has cancelled the attempt and has not requested a retry
        since, else to False. Ask the store for each event's file by its path, because a listing may
        be out of date. Raises `StoreError`."""
        cancel, retry = (
            self._folder.event(self._run, self._attempt, event)
            for event in (Event.CANCEL, Event.RETRY)
        )
        self.cancelled = self._store.exists(cancel) and not self._store.exists(retry)


_UNLIMITED = 1 << 60


def facts(folder: str) -> dict[str, int]:
    """Return free and total bytes: `disk_free_bytes` and `disk_total_bytes` of the disk with
    `folder`; `memory_free_bytes` and `memory_total_bytes` of the machine or the container,
    whichever has less free memory. Unknown values are omitted."""
    amounts: dict[str, int] = {}
    try:
        disk = os.statvfs(folder)
        amounts["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        amounts["disk_total_bytes"] = disk.f_blocks * disk.f_frsize
    except OSError:
        amounts = {}
    free, total = min(filter(None, (_machine(), container_memory())), default=(0, 0))
    if total:
        amounts |= {"memory_free_bytes": free, "memory_total_bytes": total}
    return amounts


def _machine() -> tuple[int, int] | None:
    """Return the machine's available and total memory in bytes; None if unknown."""
    values = _table("/proc/meminfo")
    try:
        return values["MemAvailable:"] * 1024, values["MemTotal:"] * 1024
    except KeyError:
        return None


def container_memory(
    top: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup"
) -> tuple[int, int] | None:
    """Return the available and total memory, in bytes, of the tightest control group (version 2):
    the one with the least available memory among the groups that contain this process. Return None
    if no group has a limit."""
    tightest: tuple[int, int] | None = None
    for line in _text_of(membership).splitlines():
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
    most, used = (
        _text_of(f"{folder}/memory.max").strip(),
        _text_of(f"{folder}/memory.current").strip(),
    )
    if not most.isdecimal() or not used.isdecimal() or int(most) >= _UNLIMITED:
        return None
    # The kernel frees cached files before it kills a process, so they count as free.
    spare = _table(f"{folder}/memory.stat").get("inactive_file", 0)
    return max(0, int(most) - int(used) + spare), int(most)


def _table(path: str) -> dict[str, int]:
    rows = (line.split() for line in _text_of(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


BEAT_SECONDS = 5.0
"""Seconds between two heartbeats."""


class Heartbeat:
    """The heartbeats of one attempt. The worker sets four fields when their values are known: the
    recipe's `folder`, its `usage` of the service, its `pauses`, and the run's `gpus`. `written` is
    the monotonic time of the last heartbeat."""

    def __init__(self, folder: "SweepFolder", run: str, attempt: int) -> None:
        self._store = folder.store
        self._sweep_folder, self._run, self._attempt = folder, run, attempt
        self._path = folder.heartbeat(run, attempt)
        self._counter = 0
        self._begun = time.monotonic()
        self.written = -math.inf
        self.folder = ""
        self.usage: UsageFiles | None = None
        self.pauses: Pauses | None = None
        self.gpus: Taken | None = None

    def begin(self) -> None:
        """Restart the count of `up_seconds`. Called after the claim."""
        self._begun = time.monotonic()

    def write(self) -> bool:
        """Write a heartbeat. Return whether the store accepted the heartbeat."""
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
            "pauses": self.listed_pauses(),
            "host": os.uname().nodename,
            "machine": facts(self.folder),
        } | used
        if self.gpus is not None:
            body["gpus"] = self.gpus.text
            self.gpus.touch()
        try:
            self._store.replace(self._path, encode(body), durable=False)
        except StoreError as error:  # For example, the disk is full. Requests can still be read.
            say(f"sweeper: {error}")
            return False
        return True

    def tell_stacks(self, group: int) -> None:
        """Answer the request for the stacks of the recipe, whose process group is `group`."""
        from sweeper.sweep import stacks  # imported late, since it is rarely used

        text = stacks_of(group, "" if self.usage is None else self.usage.stacks)
        try:
            stacks.answer(self._sweep_folder, self._run, self._attempt, text)
        except StoreError as error:
            say(f"sweeper: {error}")

    def up_seconds(self) -> float:
        """Return the seconds since the claim, by the monotonic clock."""
        return round(time.monotonic() - self._begun, 3)

    def paused_seconds(self) -> float:
        """Return the seconds for which the service has delayed the recipe."""
        return round(self.pauses.seconds(), 3) if self.pauses else 0.0

    def listed_pauses(self) -> list[dict[str, object]] | None:
        """Return the recipe's pauses as JSON objects, or None if there were none."""
        listed = self.pauses.listed() if self.pauses else []
        return [pause._asdict() for pause in listed] or None

    def used(self) -> dict[str, object]:
        """Return two fields of the heartbeat: `usage`, the use of the service, and `sessions`, the
        ids of the recipe's sessions at the service. Leave out empty fields. Also update `pauses`
        with the pause that the recipe's processes report."""
        usage = NO_USAGE if self.usage is None else self.usage.read()
        if self.usage is not None and self.pauses is not None:
            self.pauses.hear(self.usage.paused)
        sessions = () if self.usage is None else self.usage.sessions
        used: dict[str, object] = {} if usage == NO_USAGE else {"usage": usage.document()}
        return used | ({"sessions": list(sessions)} if sessions else {})


_STACKS_SECONDS = 3.0
_POLL_SECONDS = 0.05


def stacks_of(group: int, path: str) -> str:
    """Return the stacks of a process group's leader. The leader gets a signal, and then writes
    its stacks to the file at `path`. If the leader cannot do that, return the states of the
    group's processes."""
    if _catches(group):
        before = _size(path)
        with suppress(ProcessLookupError):
            os.kill(group, stack_signal.number())
        if text := _written(path, before):
            return text
    lines = [line for pid in _members(group) if (line := _state(pid))]
    return "\n".join(["the recipe's stacks cannot be read; its processes are:", *lines])


def _catches(pid: int) -> bool:
    """Return whether the process handles the signal that requests stacks. Without a handler, the
    signal would end the process."""
    for line in _text_of(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (stack_signal.number() - 1) & 1)
    return False


def _written(path: str, before: int) -> str:
    """Wait until the file has grown and no longer changes. Return the added text."""
    deadline, size = time.monotonic() + _STACKS_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now = _size(path)
        if now == size > before:
            break
        size = now
    with suppress(OSError), open(path, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")
    return ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _members(group: int) -> list[int]:
    members: list[int] = []
    with suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(int(name)) == group:
                    members.append(int(name))
    return sorted(members)


def _state(pid: int) -> str | None:
    """Return a line about a process: its state, the kernel function in which it waits, and its
    name. Return None if the process has ended."""
    status = dict(
        line.split(":", 1) for line in _text_of(f"/proc/{pid}/status").splitlines() if ":" in line
    )
    if not status:
        return None
    waits = _text_of(f"/proc/{pid}/wchan").strip("0\n")
    state = status.get("State", "").strip()
    return f"{pid} {status.get('Name', '').strip()}: {state}{f', in {waits}' if waits else ''}"


def _text_of(path: str) -> str:
    """Return the beginning of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
