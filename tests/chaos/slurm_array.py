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
from contextlib import suppress
from pathlib import Path

import psutil
from harness.toys import Toys

from sweeper.errors import EnvironmentFailure

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.slurm import Cluster

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
AWAY_AT = 60.0
"""Time when the controller is stopped."""


class Outage:
    """One absence of the controller, for this many seconds, and the observations meanwhile."""

    def __init__(self, cluster: Cluster, sweep: Toys, seconds: float) -> None:
        self._cluster, self._sweep, self._seconds = cluster, sweep, seconds
        self._from = time.monotonic() + AWAY_AT
        self._still: list[psutil.Process] = []
        self._rows = 0
        self.unreachable: str | None = None
        self.away = self.over = False

    def check(self) -> None:
        """Begin or end the absence when it is time."""
        now = time.monotonic()
        if self.over or now < self._from:
            return
        if not self.away:
            self.away = True
            self._cluster.kill("slurmctld", signal.SIGTERM)
            self._rows = len(self._sweep.rows())
            self._still = self._cluster.steps()[0].children(recursive=True)
            for process in self._still:
                process.suspend()
        self.unreachable = self._sweep.unreachable() or self.unreachable
        if now > self._from + self._seconds:
            rows = len(self._sweep.rows()) - self._rows
            print(f"controller away for {now - self._from:.0f} s, {rows} rows meanwhile")
            print(f"the launcher: {self.unreachable}")
            self._cluster.start_controller()
            for process in self._still:
                with suppress(psutil.Error):
                    process.resume()
            self.away, self.over = False, True


class Driver:
    """Launches the sweep until it is over, and disturbs it meanwhile."""

    def __init__(self, cluster: Cluster, sweep: Toys, outage: Outage, kills: list[float]) -> None:
        self.cluster, self.sweep, self.outage = cluster, sweep, outage
        self.due = sorted(time.monotonic() + seconds for seconds in kills)
        self.most = self.kills = 0

    def drive(self) -> None:
        """Launch until a launcher ends by itself."""
        refused = 0
        while True:
            launcher = self.sweep.launch()
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
            self.outage.check()
            if self.due and time.monotonic() > self.due[0] and self._submitted():
                del self.due[0]
                launcher.kill()
                launcher.wait()
                self.kills += 1
            time.sleep(0.5)

    def _submitted(self) -> bool:
        """Return whether everything is recorded as submitted: from then on there is one array."""
        submitted = list((self.sweep.sweep_path / "state").glob("*/1.submitted.json"))
        return len(submitted) >= json.loads((self.sweep.folder / "grid.yaml").read_text())["seeds"]


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
        slurm = {"throttle": options.throttle}
        launch = {"backend": "slurm", "max_parallel": options.runs, "slurm": slurm}
        size = {"steps": options.steps, "seconds": options.seconds, "seeds": options.runs}
        sweep = Toys(folder, cluster.environment, launch=launch, **size)
        begun = time.monotonic()
        outage = Outage(cluster, sweep, options.outage)
        driver = Driver(cluster, sweep, outage, kills)
        driver.drive()
        took = time.monotonic() - begun
        print(f"{options.runs} runs, throttle {options.throttle}, {took:.0f} s")
        print(f"launcher killed {driver.kills} times")
        print(f"at most {driver.most} jobs at work at once")
        arrays = len(list((sweep.sweep_path / "slurm").glob("*.json")))
        print(f"{arrays} submissions, {options.steps * options.runs} rows due")
        good = sweep.agreed(once=True)
        disturbed = outage.over and (outage.unreachable or not options.outage)
        disturbed = disturbed and driver.kills == options.kills
        return 0 if good and disturbed and driver.most <= options.throttle else 1


if __name__ == "__main__":
    sys.exit(main())
