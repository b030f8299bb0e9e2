"""Runs a sweep of 200 runs on tmux while its launcher and the tmux server are killed.

    python tests/chaos/big_sweep.py [--seed N]

The sweep has `max_parallel: 8`, and is launched as a user does it. During the sweep, the launcher
is killed ten times, and the tmux server once.

Everything is as shipped (a lease of 60 s, heartbeats every 5 s), except the recipe, a toy of about
a second. Exit code 1 unless everything is complete after relaunching and the ledger agrees.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from harness.ledger import judge, read_ledger
from harness.real import HERE

from sweeper.backends.tmux.server import socket_name
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

RUNS, STEPS, KILLS = 200, 3, 10
GRID = """
name: big
service: none
command: [{python}, -I, -S, {toy}, "{{ledger}}", "{steps}", "1.0", plain, "{{log_path}}"]
base: {{ledger: {ledger}}}
grid: {{x: [{values}]}}
launch: {{backend: tmux, max_parallel: 8, retries: 0}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    chance = random.Random(parser.parse_args().seed)
    folder = Path(tempfile.mkdtemp(prefix="sweeper-big-"))
    ledger = folder / "ledger"
    values = ", ".join(map(str, range(RUNS)))
    (folder / "grid.yaml").write_text(
        GRID.format(
            python=sys.executable, toy=HERE / "toy.py", ledger=ledger, steps=STEPS, values=values
        )
    )
    os.environ["SWEEPER_HOME"] = str(folder / "home")
    command = [sys.executable, "-m", "sweeper", "launch", "grid.yaml", "--wait"]

    def start() -> subprocess.Popen[bytes]:
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    began, killed, server = time.monotonic(), 0, 0
    with own_tmux():
        # Kill a launcher after each equal share of the steps, and the server after half of them.
        while True:
            launcher = start()
            share = int(RUNS * STEPS * (killed + 1) / (KILLS + 2))
            while launcher.poll() is None and (killed == KILLS or _rows(ledger) < share):
                if not server and _rows(ledger) > RUNS * STEPS / 2:
                    subprocess.run(["tmux", "-L", socket_name(), "kill-server"], check=True)
                    server = 1
                time.sleep(0.05)
            if launcher.poll() is not None:
                break
            time.sleep(chance.uniform(0, 0.5))
            launcher.kill()
            launcher.wait()
            killed += 1
        code = launcher.returncode
        verdict = judge(LocalStore(str(folder / "sweeps")), "big", read_ledger(ledger), STEPS)
        attempts = Counter(
            max(number for number, _ in events)
            for events in SweepFolder(LocalStore(str(folder / "sweeps")), "big")
            .read_events()
            .values()
        )
        print(
            f"{RUNS} runs on tmux, max_parallel 8, {time.monotonic() - began:.0f} s\n"
            f"launcher killed {killed} times, tmux server {server}; last exit code {code}\n"
            f"rows in the ledger {_rows(ledger)} of {RUNS * STEPS}; "
            f"runs by number of attempts {dict(attempts)}\n"
            f"lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, wrong {len(verdict.wrong)}",
            flush=True,
        )
        good = verdict.good and code == 0 and killed == KILLS and server == 1
        if not good:
            print(verdict, (folder / "log").read_text()[-3000:], sep="\n", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return 0 if good else 1


def _rows(ledger: Path) -> int:
    return len(read_ledger(ledger))


if __name__ == "__main__":
    sys.exit(main())
