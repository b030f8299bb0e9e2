"""Kills thousands of launchers and workers: `python tests/chaos/run.py`, or `make chaos`.

Prints a table of kills and of the runs' outcomes; exit code 1 when anything was lost, doubled or
wrong.

A count of 0 leaves that part out.

    --seed N        another seed (default 1)
    --simulated N   launcher kills in the simulated world (20000)
    --launchers N   real launchers, killed by SIGKILL (2000)
    --workers N     real workers, killed or preempted (1000)
    --keep          keep the folders of failed sweeps
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.ledger import Verdict
from harness.real import NAME, Sweep
from harness.simulation import by_seed, one_fault

import sweeper.backends.local.backend
import sweeper.launcher.launching
import sweeper.planner.plan
import sweeper.scheduler.progress
import sweeper.testing

# Forked launchers inherit these imports.
from sweeper.sweep.folder import SweepFolder
from sweeper.testing import Fault

KINDS = ("worker", "both", "recipe", "preempt")
LEASE = 2.0


class Line(NamedTuple):
    """A row of the table."""

    what: str
    sweeps: int
    kills: int
    lost: int
    doubled: int
    wrong: int
    seconds: float


class Count:
    """Adds up verdicts, and prints those that are not good."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = time.monotonic()
        self.sweeps = self.kills = 0
        self.bad: Counter[str] = Counter()

    def add(self, verdict: Verdict, kills: int, about: str) -> bool:
        self.sweeps += 1
        self.kills += kills
        for name, errors in verdict._asdict().items():
            self.bad[name] += len(errors)
        if not verdict.good:
            print(f"{self.what}, {about}: {verdict}", file=sys.stderr, flush=True)
        return verdict.good

    def line(self) -> Line:
        bad = [self.bad[name] for name in Verdict._fields]
        return Line(self.what, self.sweeps, self.kills, *bad, time.monotonic() - self.began)


def simulated(seed: int, kills: int, folder: Path) -> Iterator[Line]:
    """Try every call with every fault; then seeds until there are enough kills."""
    every = Count("simulated launcher, each call in turn")
    for fault in Fault:
        number, struck = 0, True
        while struck:
            number += 1
            result, struck = one_fault(folder / "one", number, fault)
            shutil.rmtree(folder / "one")
            every.add(result.verdict, result.launcher_kills, f"{fault} at call {number}")
    yield every.line()
    seeds, workers = Count("simulated launcher, at random"), 0
    while seeds.kills < kills:
        result = by_seed(folder / "seed", seed)
        shutil.rmtree(folder / "seed")
        seeds.add(result.verdict, result.launcher_kills, f"seed {seed}")
        workers += result.worker_kills
        seed += 1
    yield seeds.line()
    yield seeds.line()._replace(what="  and modelled workers in the same sweeps", kills=workers)


def launchers(seed: int, kills: int, folder: Path, keep: bool) -> Iterator[Line]:
    """Kill real launchers at each call in turn, before and after it; then at random, many per
    sweep."""
    every = Count("real launcher, each call in turn")
    for kind in ("kill", "kill_after"):
        number, code = 0, -9
        while code == -9:
            number += 1
            with sweeping(folder, keep) as sweep:
                code = sweep.start(faults={str(number): kind}).wait()
                sweep.finish()
                about = f"{kind} at call {number} in {sweep.folder}"
                every.add(sweep.verdict(once=True), code == -9, about)
    yield every.line()
    seeds = Count("real launcher, at random")
    while every.kills + seeds.kills < kills:
        chance, killed = random.Random(seed), 0
        with sweeping(folder, keep, runs=8, seconds=0.5) as sweep:
            for _ in range(40):
                faults = {str(chance.randint(1, 45)): chance.choice(["kill", "kill_after"])}
                if sweep.start(faults=faults).wait() != -9:
                    break
                killed += 1
            sweep.finish()
            seeds.add(sweep.verdict(once=True), killed, f"seed {seed} in {sweep.folder}")
        seed += 1
    yield seeds.line()


def workers(seed: int, kills: int, folder: Path, keep: bool) -> Iterator[Line]:
    """Kill real workers at each store call in turn, before and after it; then at any moment, in
    sweeps whose recipe saves and resumes."""
    every = Count("real worker, each store call in turn")
    for kind in ("kill", "kill_after"):
        number, killed = 0, 1
        while killed:
            number += 1
            with sweeping(folder, keep, runs=2, seconds=0.05, launch={"retries": 2}) as sweep:
                sweep.finish(worker={"beat": 0.2, "faults": {str(number): kind}})
                killed = sum(
                    state.opened > 1
                    for state in SweepFolder(sweep.store, NAME).read_states().values()
                )
                every.add(sweep.verdict(), killed, f"{kind} at call {number} in {sweep.folder}")
    yield every.line()
    kills -= every.kills
    count, kinds = Count(f"real worker, at any moment, lease {LEASE:g} s"), Counter[str]()
    while sum(kinds.values()) < kills:
        options = {"retries": 20, "max_parallel": 6}
        with sweeping(
            folder, keep, runs=30, steps=4, mode="resume", seconds=0.3, launch=options, lease=LEASE
        ) as sweep:
            strikes = {"seed": seed, "kinds": KINDS, "within": 0.6, "most": 8}
            sweep.finish(worker={"beat": 0.2, "strikes": {**strikes, "diary": str(sweep.diary)}})
            struck = sweep.strikes()
            kinds += struck
            verdict = sweep.verdict(resumes=True)
            count.add(verdict, sum(struck.values()), f"seed {seed} in {sweep.folder}")
        seed += 1
    yield count.line()
    for kind, number in sorted(kinds.items()):
        yield count.line()._replace(what=f"  of these, {kind}", kills=number)


class sweeping:  # noqa: N801 - reads like the context manager that it is
    """A sweep in a folder that is removed if it went well."""

    def __init__(self, folder: Path, keep: bool, **options: object) -> None:
        self.keep, self.options = keep, options
        self.folder = Path(tempfile.mkdtemp(dir=folder))

    def __enter__(self) -> Sweep:
        self.sweep = Sweep(self.folder, **self.options)  # type: ignore[arg-type]
        return self.sweep

    def __exit__(self, *about: object) -> None:
        self.sweep.clean()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--simulated", type=int, default=20000)
    parser.add_argument("--launchers", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    memory = Path("/dev/shm")  # noqa: S108 - a folder is made in it that nobody can guess
    bad, header = (
        0,
        f"{'what was killed':48}{'sweeps':>7}{'kills':>7}  lost  doubled  wrong  seconds",
    )
    print(f"sweeper {sweeper.__version__}, seed {given.seed}\n{header}", flush=True)
    parts: list[tuple[int, Path | None, Callable[[Path], Iterator[Line]]]] = [
        (given.simulated, memory, lambda at: simulated(given.seed, given.simulated, at)),
        (given.launchers, None, lambda at: launchers(given.seed, given.launchers, at, given.keep)),
        (given.workers, None, lambda at: workers(given.seed, given.workers, at, given.keep)),
    ]
    for count, place, part in parts:
        if not count:
            continue
        where = place if place is not None and place.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="sweeper-chaos-", dir=where))
        for line in part(folder):
            print(
                f"{line.what:48}{line.sweeps:7}{line.kills:7}{line.lost:6}{line.doubled:9}"
                f"{line.wrong:7}{line.seconds:9.0f}",
                flush=True,
            )
            bad += line.lost + line.doubled + line.wrong
        if not (bad and given.keep):
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
