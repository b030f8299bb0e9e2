"""Runs on two hosts of a real sshd while launchers are killed, hosts lose their power, and
connections are cut:

    python tests/chaos/ssh_hosts.py [--seed N] [--runs 48]

Prints what was done, and which runs were lost, executed twice or ended wrongly. Needs `make sshd`.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from harness.toys import Toys

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support import ssh


class Sweep:
    """A sweep on the hosts, and its launcher, which is started again when it was killed."""

    def __init__(self, folder: Path, hosts: ssh.SshHosts, runs: int) -> None:
        self.hosts = hosts
        launch = {"backend": "ssh", "max_parallel": 12, "lease": "15s", "retries": 0}
        grid = {"grid": {"x": list(range(runs))}, "launch": launch | {"ssh": hosts.options(6)}}
        self.toys = Toys(folder, os.environ, steps=10, seconds=6, mode="resume", **grid)
        self.launcher = self.toys.launch()

    def is_over(self) -> bool:
        """Return whether all runs have ended; start a launcher if there is none."""
        code = self.launcher.poll()
        if code in (0, 3):
            return True
        if code is not None:
            self.launcher = self.toys.launch()
        return False

    def disturb(self, what: str, chosen: random.Random) -> None:
        """Do something to the launcher, or to one of the hosts."""
        name = chosen.choice("ab")
        if what == "kill":
            self.launcher.kill()
        elif what == "cut":
            self.hosts.hosts[name].cut()
            time.sleep(chosen.uniform(0, 3))
            self.hosts.hosts[name].start()
        else:
            with self.hosts.unplugged(name):
                time.sleep(chosen.uniform(1, 5))


def main() -> int:
    """Run the sweep to its end. Return 1 if a run was lost, executed twice or ended wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--runs", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=120, help="how long things go wrong")
    given = parser.parse_args()
    if (why := ssh.missing()) is not None:
        print(why)
        return 0
    chosen, done = random.Random(given.seed), {"kill": 0, "cut": 0, "unplug": 0}
    with tempfile.TemporaryDirectory() as name:
        hosts = ssh.SshHosts(Path(name) / "ssh", "a", "b")
        try:
            sweep, begun = Sweep(Path(name), hosts, given.runs), time.monotonic()
            due = begun + 6
            while not sweep.is_over():
                time.sleep(0.1)
                if due < time.monotonic() < begun + given.seconds:
                    what = chosen.choice(["kill", "cut", "cut", "unplug"])
                    sweep.disturb(what, chosen)
                    done[what] += 1
                    due = time.monotonic() + chosen.uniform(3, 7)
            good = sweep.toys.agreed(once=False)
        finally:
            hosts.close()
    seconds = time.monotonic() - begun
    print(f"{given.runs} runs in {seconds:.0f} s; launchers killed {done['kill']}, power cut "
          f"{done['cut']}, connections cut {done['unplug']}")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
