"""Kills launchers, and the process through which workers and launchers reach an S3 store, while
sweeps run: `python tests/chaos/remote_kills.py [--kills 200] [--seed 1]`, or `make chaos`.

Sweeps of quick runs follow each other until there were enough kills. A killed launcher is started
again. Prints the kills, and the runs' results by the ledger, which is written outside the program;
exit code 1 if a run was lost or done twice.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import s3fs
from harness.ledger import Verdict, judge, read_ledger
from harness.s3_world import moto

from sweeper.store.opening import open_store

NAME = "quick"
STEPS = 3
RUNS = 40
STEP = Path(__file__).parent / "harness" / "quick_run.py"
GRID = """\
name: quick
command: ["{python}", "{step}", "{ledger}", "{steps}"]
service: none
seeds: {runs}
launch: {{backend: local, max_parallel: 6, retries: 5}}
"""
_LONGEST_SECONDS = 1200.0
_WAITS = (1.0, 4.0, 12.0)
"""The most seconds between two kills, one of these each time: early and late in a launch."""


def serving(root: str) -> Iterator[int]:
    """Yield the processes through which this root is reached."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if words[-3:-1] == ["sweeper.store.serving", root]:
                yield int(folder.name)


def one_sweep(
    folder: Path, root: str, dice: random.Random, left: int
) -> tuple[Counter[str], Verdict]:
    """Run a sweep to its end with at most `left` kills. Return the kills of each kind."""
    ledger = folder / "ledger"
    (folder / "grid.yaml").write_text(
        GRID.format(python=sys.executable, step=STEP, ledger=ledger, steps=STEPS, runs=RUNS)
    )
    kills: Counter[str] = Counter()
    command = [sys.executable, "-m", "sweeper", "launch", "grid.yaml", "--wait", "--root", root]
    deadline = time.monotonic() + _LONGEST_SECONDS
    code: int | None = None
    with (folder / "output").open("ab") as output:
        while code not in (0, 3):  # 3: some runs have failed; the ledger is checked later
            launcher = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = launcher.wait(dice.random() * dice.choice(_WAITS))
                    break
                if time.monotonic() > deadline:
                    launcher.kill()
                    raise SystemExit(f"{folder}: the sweep does not end; see {folder}/output")
                if kills.total() >= left:
                    continue
                if dice.random() < 0.5:
                    launcher.send_signal(signal.SIGKILL)
                    kills["launchers"] += 1
                else:
                    for pid in serving(root):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            kills["store processes"] += 1
    return kills, judge(open_store(root), NAME, read_ledger(ledger), STEPS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dice, began = random.Random(given.seed), time.monotonic()
    kills: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    sweeps = 0
    with moto() as address, tempfile.TemporaryDirectory(prefix="kills-") as folder:
        os.environ |= {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos"}
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("chaos")
        while kills.total() < given.kills:
            sweeps += 1
            place = Path(folder, str(sweeps))
            place.mkdir()
            os.environ["SWEEPER_HOME"] = str(place / "home")
            root = f"s3://chaos/kills-{sweeps}"
            done, verdict = one_sweep(place, root, dice, given.kills - kills.total())
            kills += done
            for part, errors in verdict._asdict().items():
                wrong[part] += len(errors)
                for error in errors:
                    print(f"{part}: {error}", file=sys.stderr)
            print(f"sweep {sweeps}: {dict(done)}", file=sys.stderr, flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(kills.items()))
    print(
        f"{sweeps} sweeps, {sweeps * RUNS} runs; killed: {counts}; lost {wrong['lost']}, "
        f"doubled {wrong['doubled']}, wrong {wrong['wrong']}; {time.monotonic() - began:.0f} s"
    )
    return bool(wrong.total())


if __name__ == "__main__":
    sys.exit(main())
