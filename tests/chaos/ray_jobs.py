"""Many runs on a real Ray of two nodes, compared with `local`; then runs while launchers are
killed, the head is unresponsive for a minute, a node is lost and one is drained; afterwards the
ledger is checked. `make ray` makes the environment.

    python tests/chaos/ray_jobs.py [--runs 300] [--outage 60] [--kills 3]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.toys import Toys

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.ray_cluster import TOKEN, Cluster

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
MOST_TIMES = 10.0
"""How much longer than on `local` quick runs may take, on an otherwise idle machine."""
PATIENCE = 900.0
LAUNCHERS: list["subprocess.Popen[bytes]"] = []
"""All launchers that were started, to be ended with this process."""
ROWS = 60
"""Rows of the ledger between two disturbances."""


def _toys(top: Path, name: str, cluster: Cluster, **grid: Any) -> Toys:
    return Toys(top / name, cluster.environment, name=name, **grid)


def _launch(sweep: Toys) -> "subprocess.Popen[bytes]":
    LAUNCHERS.append(sweep.launch())
    return LAUNCHERS[-1]


def quick(top: Path, cluster: Cluster, runs: int) -> bool:
    """Run quick runs on `local` and on Ray, with the same number at once."""
    took: dict[str, float] = {}
    good = True
    for backend in ("local", "ray"):
        launch = {"backend": backend, "max_parallel": 8, "ray": cluster.options}
        grid = {"steps": 1, "seconds": 0.1, "mode": "plain", "seeds": runs, "launch": launch}
        sweep = _toys(top, f"quick-{backend}", cluster, **grid)
        begun = time.monotonic()
        code = _launch(sweep).wait()
        took[backend] = time.monotonic() - begun
        good = sweep.agreed(once=True) and code == 0 and good
    times = took["ray"] / took["local"]
    print(
        f"{runs} runs: local {took['local']:.0f} s, ray {took['ray']:.0f} s, {times:.1f} times; "
        f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors",
        flush=True,
    )
    return good and times <= MOST_TIMES


class Trouble:
    """Disturbs a sweep, one disturbance after the other."""

    def __init__(self, sweep: Toys, cluster: Cluster, outage: float, kills: int) -> None:
        self.sweep, self.cluster, self.outage = sweep, cluster, outage
        self.kills, self.unreachable = 0, ""
        self._left: list[Callable[[], None]] = [self._lost, self._drained, self._away]
        self._rows = 0
        self._most = kills
        self._launcher = _launch(sweep)

    def drive(self, chance: random.Random) -> int:
        """Launch until a launcher ends by itself; returns its exit code."""
        deadline, due = time.monotonic() + PATIENCE, 0.0
        while time.monotonic() < deadline:
            time.sleep(0.5)
            code = self._launcher.poll()
            if code is not None and code != -signal.SIGKILL:
                return code
            if code is not None or (self.kills < self._most and due and time.monotonic() > due):
                self._kill()
                due = time.monotonic() + chance.uniform(5, 20)
            due = due or time.monotonic() + chance.uniform(1, 5)
            if self._left and len(self.sweep.rows()) >= self._rows + ROWS:
                self._left.pop(0)()
                self._rows = len(self.sweep.rows())
        self._launcher.kill()
        return -1

    def _kill(self) -> None:
        self._launcher.kill()
        self._launcher.wait()
        self.kills += 1
        self._launcher = _launch(self.sweep)

    def _away(self) -> None:
        rows = len(self.sweep.rows())
        with self.cluster.head_away():
            until = time.monotonic() + self.outage
            while time.monotonic() < until:
                self.unreachable = self.sweep.unreachable() or self.unreachable
                time.sleep(0.5)
        print(f"head away for {self.outage:.0f} s, {len(self.sweep.rows()) - rows} rows meanwhile")
        print(f"the launcher: {self.unreachable}", flush=True)

    def _lost(self) -> None:
        with self.cluster.without_second():
            time.sleep(5)
        print("a node lost", flush=True)

    def _drained(self) -> None:
        with self.cluster.without_second("drain"):
            time.sleep(5)
        print("a node drained", flush=True)


def trouble(top: Path, cluster: Cluster, options: argparse.Namespace) -> bool:
    launch = {"backend": "ray", "max_parallel": 8, "grace": "5s"}
    second = {"if": {"a": 2}, "resources": {"second": 1}}
    launch |= {"ray": {**cluster.options, "overrides": [second]}}
    grid = {"steps": 40, "seconds": 40.0, "mode": "resume:say-{a}", "seeds": 8, "launch": launch}
    grid |= {"grid": {"a": [2, 1]}}
    sweep = _toys(top, "trouble", cluster, **grid)
    done = Trouble(sweep, cluster, options.outage, options.kills)
    begun = time.monotonic()
    code = done.drive(random.Random(options.seed))
    print(f"{time.monotonic() - begun:.0f} s, launcher killed {done.kills} times, code {code}")
    attempts = max(attempt for _, attempt, _ in sweep.rows())
    disturbed = attempts > 1 and bool(done.unreachable or not options.outage)
    return sweep.agreed(once=False) and code == 0 and disturbed


def canaries(top: Path, cluster: Cluster) -> bool:
    """Return whether no file of a sweep contains the cluster's token."""
    hits = [
        str(path)
        for path in top.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    print(f"the cluster's token: {len(hits)} hits {hits[:3]}")
    return not hits


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--outage", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder, Cluster(cpus=8) as cluster:
        top = Path(folder)
        try:
            good = [quick(top, cluster, options.runs)] if options.runs else []
            good.append(trouble(top, cluster, options))
            good.append(canaries(top, cluster))
        finally:
            for launcher in LAUNCHERS:
                launcher.kill()
                launcher.wait()
        return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
