"""Runs thousands of quick runs on `local` while watching the launcher's children:

    python tests/chaos/crowd.py --runs 2000

Part of `make chaos`. Exit code 1 when a run is lost or done twice, or when more of the launcher's
children were zombies at a time than twice the jobs at once: these can be jobs that ended since its
last poll, and jobs that had recorded their outcome before it but not yet exited.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from harness.real import Sweep
from harness.zombies import Sampled

AT_ONCE = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(
            Path(folder),
            runs=arguments.runs,
            seconds=0,
            launch={"max_parallel": AT_ONCE},
            lease=60,
            spec={"poll": 0.5},  # as shipped: most jobs end between two polls
        )
        try:
            began = time.monotonic()
            launching = sweep.start()
            with Sampled(launching.pid) as sampled:
                code = launching.wait(7200)
            seconds = time.monotonic() - began
            sweep.rest()
            verdict = sweep.verdict(once=True)
        finally:
            sweep.clean()
    print(f"{arguments.runs} runs, {AT_ONCE} at once, {seconds:.0f} s; exit code {code}")
    print(f"zombies: {sampled.most} at most in {sampled.looks} looks, {sampled.last} at the last")
    print(f"lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, wrong {len(verdict.wrong)}")
    return 0 if code == 0 and verdict.good and sampled.most <= 2 * AT_ONCE else 1


if __name__ == "__main__":
    sys.exit(main())
