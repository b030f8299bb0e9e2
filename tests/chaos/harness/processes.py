"""The processes of a home, and their memory."""

from contextlib import suppress
from pathlib import Path

import psutil


def private(pid: int) -> int:
    """Return the private bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def of_home(home: str) -> list[psutil.Process]:
    """Return the processes of this home."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            same_home = process.environ().get("SWEEPER_HOME") == home
            if same_home or any(part.startswith(home) for part in process.cmdline()):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def end_all_of_home(home: str) -> None:
    """Kill the processes of this home; one may have ended by itself meanwhile."""
    for process in of_home(home):
        with suppress(psutil.NoSuchProcess):
            process.kill()
