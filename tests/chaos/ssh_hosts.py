"""Runs on two hosts of a real sshd while launchers are killed, hosts lose their power, and
connections are cut:

    python tests/chaos/ssh_hosts.py [--seed N] [--runs 48]

Prints what was done, and which runs were lost, executed twice or ended wrongly. Needs `make sshd`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.ledger import judge, read_ledger

from sweeper.store.opening import open_store

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support import ssh

_TOY = Path(__file__).parent / "harness" / "toy.py"
_STEPS = 10
_GRID = """
name: toys
command: [{python}, {toy}, '{ledger}', '{steps}', '6', resume, '{{log_path}}']
service: none
grid: {{x: {xs}}}
metric: {{name: loss, goal: minimize}}
launch: {{backend: ssh, max_parallel: 12, lease: 15s, retries: 0, ssh: {options}}}
"""


class Sweep:
    """A sweep on the hosts, and its launcher, which is started again when it was killed."""

    def __init__(self, folder: Path, hosts: ssh.SshHosts, runs: int) -> None:
        self.folder, self.hosts, self.ledger = folder, hosts, folder / "ledger"
        values = {"toy": _TOY, "steps": _STEPS}
        options = json.dumps(hosts.options(6))
        text = _GRID.format(
            python=sys.executable,
            ledger=self.ledger,
            xs=list(range(runs)),
            options=options,
            **values,
        )
        (folder / "grid.yaml").write_text(text)
        self.launcher = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "sweeper", "launch", "grid.yaml", "--wait"]
        environment = {**os.environ, "SWEEPER_HOME": str(self.folder / "home")}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def is_over(self) -> bool:
        """Return whether all runs have ended; start a launcher if there is none."""
        code = self.launcher.poll()
        if code in (0, 3):
            return True
        if code is not None:
            self.launcher = self._start()
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
            store = open_store(f"{name}/sweeps")
            verdict = judge(store, "toys", read_ledger(sweep.ledger), _STEPS, resumes=True)
        finally:
            hosts.close()
    seconds = time.monotonic() - begun
    print(f"{given.runs} runs in {seconds:.0f} s; launchers killed {done['kill']}, power cut "
          f"{done['cut']}, connections cut {done['unplug']}: {verdict}")  # fmt: skip
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
