"""Measures environments for a model's commands: the time to start one, the cost of a command
compared with a bare shell, and many at once, which must leave nothing behind.

    python tests/bench/environments.py [--episodes 500] [--at-once 64]
"""

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sweeper.sandbox import Limits, Made, open_environment
from sweeper.sandbox.bubblewrap import below

_COMMANDS = 3


def milliseconds(act: Callable[[], object], count: int) -> list[float]:
    """Return the milliseconds of each of this many calls."""
    times: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        act()
        times.append((time.perf_counter() - begun) * 1000)
    return times


def report(what: str, times: list[float]) -> None:
    """Print a line with the median and the largest."""
    print(f"{what:44} median {statistics.median(times):7.2f} ms, most {max(times):7.2f} ms")


def measure(kind: str) -> None:
    """Measure start, a builtin and a program in an environment that is not shared."""

    def start_and_stop() -> None:
        place = open_environment(kind, Made(), unsafe=True)
        place.start()
        place.stop()

    report(f"{kind}: start and stop", milliseconds(start_and_stop, 50))
    place = open_environment(kind, Made(), unsafe=True)
    place.start()
    report(f"{kind}: exec of `true`", milliseconds(lambda: place.exec("true", 5), 300))
    report(f"{kind}: exec of /bin/true", milliseconds(lambda: place.exec("/bin/true", 5), 300))
    report(f"{kind}: reset", milliseconds(place.reset, 50))
    place.stop()


def episode(number: int) -> int:
    """Start an environment, use it for a few commands, daemons and a file, and stop it. Returns the
    number of failures."""
    place = open_environment("bubblewrap", Made(limits=Limits(256, 64, 64)))
    try:
        place.start()
        place.exec("setsid sleep 1000 & sleep 1000 & disown -a", 30)
        place.put({"/app/data": b"x" * 1000})
        codes = [place.exec(f"echo {number}; wc -c </app/data", 30).code for _ in range(_COMMANDS)]
        place.reset()
        return sum(code != 0 for code in codes) + (place.get("/app/data") is None)
    finally:
        place.stop()


def mounts() -> int:
    """Return the number of mounts on this machine."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        return len(file.readlines())


def main() -> None:
    """Print the measurements; exit 1 if something was left behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=64)
    arguments = parser.parse_args()
    bare = ["bash", "-c", "/bin/true"]
    report("a bare bash -c /bin/true", milliseconds(lambda: subprocess.run(bare, check=True), 100))
    for kind in ("bubblewrap", "process"):
        measure(kind)
    before, begun = mounts(), time.perf_counter()
    with ThreadPoolExecutor(arguments.at_once) as pool:
        failed = sum(pool.map(episode, range(arguments.episodes)))
    took = time.perf_counter() - begun
    deadline = time.monotonic() + 10
    while (left := list(below(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.05)
    print(
        f"{arguments.episodes} episodes, {arguments.at_once} at once: {took:.1f} s, "
        f"{1000 * took / arguments.episodes:.0f} ms each; {failed} commands failed; left: "
        f"{len(left)} processes, {mounts() - before} mounts"
    )
    raise SystemExit(bool(failed or left or mounts() != before))


if __name__ == "__main__":
    main()
