"""Many runs on a real Slurm, in a throttled array, while the launcher is killed and the controller
is away for a while; afterwards the ledger is checked.

    python tests/chaos/slurm_array.py [--runs 1000] [--throttle 16] [--kills 5]
    python tests/chaos/slurm_array.py --outage 75 --runs 32 --steps 50 --seconds 100 --kills 0

While the controller is away a worker is suspended for longer than the lease: nothing can tell
whether its job is gone.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
from harness.ledger import judge, read_ledger

from sweeper.errors import EnvironmentFailure
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import fold

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.slurm import Cluster

HERE = Path(__file__).resolve().parent
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
AWAY_AT = 60.0
"""Time when the controller is stopped."""


class Outage:
    """One absence of the controller, for this many seconds, and the observations meanwhile."""

    def __init__(self, cluster: Cluster, folder: Path, seconds: float) -> None:
        self._cluster, self._folder, self._seconds = cluster, folder, seconds
        self._from = time.monotonic() + AWAY_AT
        self._still: list[psutil.Process] = []
        self._rows = 0
        self.unreachable: str | None = None
        self.away = self.over = False

    def look(self) -> None:
        """Begin or end it when it is time."""
        now = time.monotonic()
        if self.over or now < self._from:
            return
        if not self.away:
            self.away = True
            self._cluster.kill("slurmctld", signal.SIGTERM)
            self._rows = self._done()
            self._still = self._cluster.steps()[0].children(recursive=True)
            for process in self._still:
                process.suspend()
        self._listen()
        if now > self._from + self._seconds:
            rows = self._done() - self._rows
            print(f"controller away for {now - self._from:.0f} s, {rows} rows meanwhile")
            print(f"the launcher: {self.unreachable}")
            self._cluster.start_controller()
            for process in self._still:
                with suppress(psutil.Error):
                    process.resume()
            self.away, self.over = False, True

    def _listen(self) -> None:
        """Return the state that the launcher publishes."""
        with suppress(OSError, ValueError):
            path = self._folder / "sweeps" / "toys" / "launcher" / "observations.json"
            self.unreachable = json.loads(path.read_text())["unreachable"] or self.unreachable

    def _done(self) -> int:
        return len(read_ledger(self._folder / "ledger"))


class Driver:
    """Launches the sweep in `folder` until it is over, and disturbs it meanwhile."""

    def __init__(self, cluster: Cluster, folder: Path, outage: Outage, kills: list[float]) -> None:
        self.cluster, self.folder, self.outage = cluster, folder, outage
        self.due = sorted(time.monotonic() + seconds for seconds in kills)
        self.most = self.kills = 0

    def drive(self) -> None:
        """Launch until a launcher ends by itself."""
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
                # The controller was away, or about to be; a user would try again, too.
                refused += not self.outage.away
                time.sleep(2)
            elif launcher.returncode != -signal.SIGKILL:
                return

    def _disturb(self, launcher: "subprocess.Popen[bytes]") -> None:
        while launcher.poll() is None:
            running = self.cluster.run(
                "squeue", "-h", "-r", "-t", "running", "-o", "%i", check=False
            )
            self.most = max(self.most, len(running.splitlines()))
            self.outage.look()
            if self.due and time.monotonic() > self.due[0] and self._submitted():
                del self.due[0]
                launcher.kill()
                launcher.wait()
                self.kills += 1
            time.sleep(0.5)

    def _submitted(self) -> bool:
        """Return whether everything is recorded as submitted: from then on there is one array."""
        waiting = json.loads((self.folder / "grid.yaml").read_text())["seeds"]
        state = self.folder / "sweeps" / "toys" / "state"
        return len(list(state.glob("*/1.submitted.json"))) >= waiting


def write_grid(folder: Path, options: argparse.Namespace) -> None:
    """Write a sweep of this many runs of the toy."""
    toy = [sys.executable, str(HERE / "harness" / "toy.py"), str(folder / "ledger")]
    grid = {
        "name": "toys",
        "command": [*toy, str(options.steps), str(options.seconds), "plain", "{log_path}"],
        "service": "none",
        "base": {"a": 1},
        "seeds": options.runs,
        "launch": {
            "backend": "slurm",
            "max_parallel": options.runs,
            "slurm": {"throttle": options.throttle},
        },
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--throttle", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="that a run takes")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--outage", type=float, default=0.0, help="seconds without a controller")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chance = random.Random(options.seed)
    kills = [chance.uniform(5, AWAY_AT + options.outage) for _ in range(options.kills)]
    with tempfile.TemporaryDirectory() as top, Cluster(nodes=4, cpus=8) as cluster:
        folder = Path(top)
        write_grid(folder, options)
        begun = time.monotonic()
        outage = Outage(cluster, folder, options.outage)
        driver = Driver(cluster, folder, outage, kills)
        driver.drive()
        took = time.monotonic() - begun
        print(f"{options.runs} runs, throttle {options.throttle}, {took:.0f} s")
        print(f"launcher killed {driver.kills} times")
        print(f"at most {driver.most} jobs at work at once")
        good = agreed(folder, options.steps, options.runs)
        disturbed = outage.over and (outage.unreachable or not options.outage)
        disturbed = disturbed and driver.kills == options.kills
        return 0 if good and disturbed and driver.most <= options.throttle else 1


def agreed(folder: Path, steps: int, runs: int) -> bool:
    """Return whether the ledger agrees with the events; prints the counts."""
    store = LocalStore(str(folder / "sweeps"))
    done = read_ledger(folder / "ledger")
    verdict = judge(store, "toys", done, steps, once=True)
    states = Counter(
        fold(recorded).state.value for recorded in SweepFolder(store, "toys").read_events().values()
    )
    arrays = len(list((folder / "sweeps" / "toys" / "slurm").glob("*.json")))
    print(
        f"{arrays} submissions, states {dict(states)}, rows in the ledger {len(done)} of "
        f"{steps * runs}; lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, "
        f"wrong {len(verdict.wrong)}"
    )
    return verdict.good


if __name__ == "__main__":
    sys.exit(main())
