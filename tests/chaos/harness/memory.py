"""Control groups with little memory, of version 2 or 1, made by root."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.real import until

__all__ = ["memory_group"]


@contextmanager
def memory_group(size: int) -> Iterator[Path]:
    """Make a control group with little memory; yields the membership file to write a pid to."""
    ours = Path("/proc/self/cgroup").read_text().splitlines()
    old = [line.split(":", 2)[2] for line in ours if line.split(":")[1] == "memory"]
    base = Path("/sys/fs/cgroup/memory" + old[0] if old else "/sys/fs/cgroup")
    group = base / f"sweeper-chaos-{os.getpid()}"
    limit = "memory.limit_in_bytes" if old else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(size))
        if not old:
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group / "cgroup.procs"
    except BaseException:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        raise
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), 20)
        group.rmdir()
