"""Measures the free disk space and memory of the worker's machine. It is cheap, because every
heartbeat does it. Uses only the standard library."""

import os

_UNLIMITED = 1 << 60


def facts(folder: str) -> dict[str, int]:
    """Return free and total bytes: `disk_free_bytes` and `disk_total_bytes` of the disk with
    `folder`; `memory_free_bytes` and `memory_total_bytes` of the machine, or of the container if
    that has less left. Unknown values are omitted."""
    found: dict[str, int] = {}
    try:
        disk = os.statvfs(folder)
        found["disk_free_bytes"] = disk.f_bavail * disk.f_frsize
        found["disk_total_bytes"] = disk.f_blocks * disk.f_frsize
    except OSError:
        found = {}
    free, total = min(filter(None, (_machine(), _container())), default=(0, 0))
    if total:
        found |= {"memory_free_bytes": free, "memory_total_bytes": total}
    return found


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
