"""Checks that cached results are right. It changes recorded files at random, and after each change
compares the reading verbs with the filled cache and with an empty one:

    python tests/chaos/caches.py [--sequences 1000] [--seed 1]

Exit code 1 when two outputs differ, or a verb fails with a bug in sweeper.
"""

import argparse
import difflib
import sys
import tempfile
import time
from pathlib import Path

from harness.readings import check


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--sequences", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--steps", type=int, default=8)
    given = options.parse_args()
    begun, wrong = time.monotonic(), 0
    for seed in range(given.seed, given.seed + given.sequences):
        with tempfile.TemporaryDirectory() as folder:
            for difference in check(Path(folder), seed, given.steps):
                wrong += 1
                print(f"--seed {seed}: {difference.question}", *difference.after, sep="\n  ")
                answers = difference.cached.splitlines(), difference.empty.splitlines()
                diff = list(difflib.unified_diff(*answers, "cached", "empty", n=1, lineterm=""))
                print(*(diff or answers[0])[:40], sep="\n", flush=True)
    took = time.monotonic() - begun
    print(f"{given.sequences} sequences of {given.steps} steps, {took:.0f} s: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
