"""Runs a small sweep on an S3 that fails at each request in turn: `make chaos`, or by itself.
Prints a table of the faults and their results; exit code 1 when a run was lost or done twice, or a
wrong state was reported.

The story (a launch, its launcher killed, another launch, a cancel, a retry, `status`, `ls`) makes
about 400 requests. A fault recurs after a fixed number of requests, so that one story for each of
as many starting points strikes every request.

    --every N     requests between two faults of a story (60); 1.5 times as many for lasting faults:
                  otherwise a launch might never begin to read the sweep
    --kinds A,B   only these (see harness/s3_proxy.py); `error*4` lasts for four tries
    --step N      only every Nth of the starting points (1)
    --abreast N   stories at once (6)
    --keep        keep the folders of failed stories
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.s3_proxy import Fault
from harness.s3_world import Result, moto, trials

KINDS = (
    *("error", "error*4", "slowdown", "slow", "late", "late*4"),
    *("cut", "cut*4", "drop", "drop*4", "stale", "stale*3"),
)


def faults(kinds: list[str], every: int, step: int) -> Iterator[Fault]:
    """Return each kind of fault at each starting point."""
    for spec in kinds:
        kind, _, times = spec.partition("*")
        apart = every * 3 // 2 if times else every
        for index in range(1, apart + 1, step):
            yield Fault(kind, index, int(times or 1), apart)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--abreast", type=int, default=6)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    chosen = faults(given.kinds.split(","), given.every, given.step)
    folder = Path(tempfile.mkdtemp(prefix="s3-"))
    began, bad = time.monotonic(), 0
    stories: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    wrong: dict[str, Counter[str]] = {}
    with moto() as address:
        for result in trials(folder, address, chosen, given.abreast):
            name = f"{result.fault.kind}*{result.fault.times}" if result.fault else ""
            stories[name] += 1
            struck[name] += len(result.struck)
            counts = wrong.setdefault(name, Counter())
            for part, errors in result.verdict._asdict().items():
                counts[part] += len(errors)
            counts["lies"] += len(result.lies)
            if not result.good:
                bad += 1
                print(_line(result), file=sys.stderr, flush=True)
    print(
        f"{'fault':12}{'stories':>9}{'struck':>9}{'lost':>7}{'doubled':>9}{'wrong':>7}{'lies':>6}"
    )
    for name, count in stories.items():
        of = wrong[name]
        print(
            f"{name:12}{count:9}{struck[name]:9}{of['lost']:7}{of['doubled']:9}{of['wrong']:7}"
            f"{of['lies']:6}"
        )
    print(f"{time.monotonic() - began:.0f} s")
    if not (bad and given.keep):
        shutil.rmtree(folder, ignore_errors=True)
    return bool(bad)


def _line(result: Result) -> str:
    return f"{result.fault}: {result.verdict} {result.lies}; {result.folder}; {result.struck[:20]}"


if __name__ == "__main__":
    sys.exit(main())
