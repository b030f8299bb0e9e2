"""A thousand runs on a real Slurm, in an array of which 16 tasks are at work at once, while the
launcher is killed and the controller restarted; and the ledger afterwards.

    python tests/chaos/slurm_array.py [--runs 1000] [--throttle 16] [--kills 5]
"""

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.ledger import judge, read_ledger

from sweeper.errors import EnvironmentFailure
from sweeper.states import fold
from sweeper.store.files import LocalStore
from sweeper.store.sweeps import read_events

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
HERE = Path(__file__).resolve().parent
STEPS = 2


def support() -> ModuleType:
    path = HERE.parent / "support" / "slurm.py"
    spec = importlib.util.spec_from_file_location("slurm_support", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def store_has(folder: Path) -> bool:
    """Whether everything is on record as submitted: from then on there is one array."""
    waiting = json.loads((folder / "grid.yaml").read_text())["seeds"]
    return len(list((folder / "sweeps" / "toys" / "state").glob("*/1.submitted.json"))) >= waiting


class Driver:
    """Launches the sweep in `folder` until it is over, and disturbs it meanwhile."""

    def __init__(self, cluster: Any, folder: Path, kills: int, seed: int) -> None:
        self.cluster, self.folder = cluster, folder
        chance = random.Random(seed)
        self.due = [chance.uniform(2, 40) for _ in range(kills)]
        self.restart_at = time.monotonic() + 60
        self.most = self.kills = 0

    def drive(self) -> None:
        """Until a launcher ends by itself."""
        refused = 0
        environment = self.cluster.environment | {
            "SWEEPER_HOME": str(self.folder / "home"),
            "SWEEPER_ROOT": str(self.folder / "sweeps"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }
        command = [sys.executable, "-P", "-m", "sweeper", "launch", "grid.yaml", "--wait"]
        while True:
            launcher = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL
            )
            self._disturb(launcher)
            if launcher.returncode == EnvironmentFailure.exit_code and refused < 5:
                refused += 1  # the controller was on its way; a user would try again, too
                time.sleep(2)
            elif launcher.returncode != -signal.SIGKILL:
                return

    def _disturb(self, launcher: "subprocess.Popen[bytes]") -> None:
        kill_at = float("inf")
        while launcher.poll() is None:
            running = self.cluster.run(
                "squeue", "-h", "-r", "-t", "running", "-o", "%i", check=False
            )
            self.most = max(self.most, len(running.splitlines()))
            if time.monotonic() > self.restart_at:
                self.restart_at = float("inf")
                self.cluster.kill("slurmctld", signal.SIGTERM)
                self.cluster.start_controller()
            if self.due and store_has(self.folder) and kill_at == float("inf"):
                kill_at = time.monotonic() + self.due.pop()  # of an array that is handed in
            if time.monotonic() > kill_at:
                launcher.kill()
                launcher.wait()
                self.kills += 1
            time.sleep(0.5)


def write_grid(folder: Path, runs: int, throttle: int) -> None:
    """A sweep of so many runs of the toy."""
    rows = folder / "ledger"
    toy = [sys.executable, str(HERE / "harness" / "toy.py"), str(rows), str(STEPS), "0.2"]
    grid = {
        "name": "toys",
        "command": [*toy, "plain", "{log_path}"],
        "service": "none",
        "base": {"a": 1},
        "seeds": runs,
        "launch": {"backend": "slurm", "max_parallel": runs, "slurm": {"throttle": throttle}},
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--throttle", type=int, default=16)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as top, support().Cluster(nodes=4, cpus=8) as cluster:
        folder = Path(top)
        write_grid(folder, options.runs, options.throttle)
        begun = time.monotonic()
        driver = Driver(cluster, folder, options.kills, options.seed)
        driver.drive()
        took = time.monotonic() - begun
        print(f"{options.runs} runs, throttle {options.throttle}, {took:.0f} s")
        again = "not restarted" if driver.restart_at < float("inf") else "restarted once"
        print(f"launcher killed {driver.kills} times, controller {again}")
        good = told(folder, options.runs)
        print(f"at most {driver.most} jobs at work at once")
        return 0 if good and driver.most <= options.throttle else 1


def told(folder: Path, runs: int) -> bool:
    """Whether the ledger agrees with the events; prints how far."""
    store = LocalStore(str(folder / "sweeps"))
    done = read_ledger(folder / "ledger")
    verdict = judge(store, "toys", done, STEPS, once=True)
    states = Counter(fold(found).state.value for found in read_events(store, "toys").values())
    arrays = len(list((folder / "sweeps" / "toys" / "slurm").glob("*.json")))
    print(
        f"{arrays} submissions, states {dict(states)}, rows in the ledger {len(done)} of "
        f"{STEPS * runs}; lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, "
        f"wrong {len(verdict.wrong)}"
    )
    return verdict.good


if __name__ == "__main__":
    sys.exit(main())
