"""Three sweeps share the quota of a real engine, while launchers are killed and the cap changes:

    python tests/chaos/quota.py --runs 90 --cap 10 --seconds 12 --kills 12

There are two trials. In the first sweeper is given the cap, which is constant, and launchers are
killed. In the second it must learn the cap, which changes to a fifth and to 1.6 times of its value.
Part of `make chaos`. Weights are 1, 1 and 2. With `--xmux .venv-cookbook/bin/python`
tinker-cookbook's xmux starts the same number of runs on an engine of the same cap, for comparison.

A ledger checks the runs, and the engine's records check the seats. Exit code 1 when a run is lost,
done twice or failed, when the engine gets more requests than the given cap, or when slots stay idle
or are not shared by weight.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness.processes import private
from harness.real import HERE, Launching, Sweep, until

from sweeper.engine import lifecycle
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

WEIGHTS = (1, 1, 2)
BUSY = 0.95
"""The least share of the slots in use while there is work."""
FOLLOWED = 0.75
"""The same for seats, when a changed cap must be learned: seconds, in a trial of minutes."""
FAIR = 0.2
"""Allowed difference of a share from its weight."""


class Size(NamedTuple):
    """The size of a trial. `seconds`: how long a run has its seat."""

    runs: int
    cap: int
    seconds: float
    kills: int
    seed: int


class Engine:
    def __init__(self, home: Path) -> None:
        self.home = home

    def cap(self, number: int) -> None:
        """Set the number of seats from now on."""
        partial = self.home / "cap.new"
        partial.write_text(str(number))
        partial.replace(self.home / "cap")

    def record(self) -> list[dict[str, Any]]:
        """Return the engine's record of its seats."""
        lines = (self.home / "seats.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def sessions(self) -> list[tuple[str, str]]:
        """Return the run and the attempt of each session."""
        info = lifecycle.find(str(self.home))
        assert info is not None
        meter = lifecycle.meter(info)
        assert meter is not None
        sessions = [metadata["user_metadata"] for metadata in meter["sessions"]]
        return [
            (f"{metadata['root']} {metadata['run']}", metadata["attempt"]) for metadata in sessions
        ]


@contextmanager
def engine(home: Path, cap: int) -> Iterator[Engine]:
    home.mkdir()
    made = Engine(home)
    made.cap(cap)
    command = [sys.executable, "-P", "-m", "harness.capped", str(home)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        until(lambda: lifecycle.find(str(home)) is not None, 60, f"no engine: {home}/log")
        yield made
    finally:
        process.terminate()
        process.wait(30)


class Trial:
    """Three sweeps on one engine. `cap_given`: sweeper knows the cap and never exceeds it."""

    def __init__(self, folder: Path, size: Size, engine: Engine, *, cap_given: bool) -> None:
        self.size, self.engine, self.cap_given = size, engine, cap_given
        settings = folder / "config" / "sweeper"
        settings.mkdir(parents=True)
        if cap_given:
            (settings / "config.toml").write_text(f"[quota]\nslots = {size.cap}\n")
        environment = {"SWEEPER_HOME": str(engine.home), "XDG_CONFIG_HOME": str(settings.parent)}
        self.sweeps = [self._sweep(folder / str(n), w) for n, w in enumerate(WEIGHTS)]
        for sweep in self.sweeps:
            sweep.environment.update(environment)
        self.launching: list[Launching | None] = [None] * len(WEIGHTS)
        self.done = [False] * len(WEIGHTS)
        self.kills = 0

    def _sweep(self, folder: Path, weight: int) -> Sweep:
        folder.mkdir()
        seat = [sys.executable, "-I", "-S", str(HERE / "seat.py"), "{ledger}"]
        sweep = Sweep(
            folder,
            runs=self.size.runs * weight // sum(WEIGHTS),
            steps=1,
            command=[*seat, str(self.size.seconds), "{log_path}"],
            lease=30.0,
            launch={"max_parallel": self.size.cap, "priority": weight},
            spec={"poll": 0.5, "window": 3.0, "worker": {"beat": 2.0}},
        )
        sweep.spec["grid"]["service"] = "local"
        sweep.spec["grid"]["base"].pop("mode")
        return sweep

    def run(self) -> float:
        """Launch, kill and launch again until all is done. Returns the seconds that it took."""
        chance, began = random.Random(self.size.seed), time.monotonic()
        work = self.size.runs * self.size.seconds / self.size.cap
        kills = [began + chance.uniform(0.1, 0.9) * work for _ in range(self.size.kills)]
        moves = (
            [] if self.cap_given else [(1 / 3, self.size.cap // 5), (0.6, self.size.cap * 8 // 5)]
        )
        while not all(self.done):
            assert time.monotonic() - began < 20 * work + 300, "stuck"
            for number, sweep in enumerate(self.sweeps):
                self._see_to(number, sweep)
            if kills and time.monotonic() >= min(kills):
                kills.remove(min(kills))
                self._kill(chance.randrange(len(self.sweeps)))
            done = sum(len(sweep.rows()) for sweep in self.sweeps) / self.size.runs
            if moves and done >= moves[0][0]:
                self.engine.cap(moves.pop(0)[1])
            time.sleep(0.2)
        for sweep in self.sweeps:
            sweep.rest()
        return time.monotonic() - began

    def _see_to(self, number: int, sweep: Sweep) -> None:
        now = self.launching[number]
        if self.done[number] or (now is not None and now.poll() is None):
            return
        if now is not None and now.code == 0:
            self.done[number] = True
            return
        assert now is None or now.code in (-9, 6), sweep.log.read_text()[-2000:]
        self.launching[number] = sweep.start()

    def _kill(self, number: int) -> None:
        now = self.launching[number]
        if now is not None and now.poll() is None:
            now.kill()
            self.kills += 1

    def wrong(self) -> list[str]:
        """Return errors found by the ledgers and the engine's sessions."""
        errors: list[str] = []
        ran: list[tuple[str, str]] = []
        for sweep in self.sweeps:
            verdict = sweep.verdict(once=True)
            errors += [
                f"{kind} {line}" for kind, lines in verdict._asdict().items() for line in lines
            ]
            for run, happened in SweepFolder(sweep.store, "toys").read_events().items():
                ran += [(f"{sweep.root} {run}", str(n)) for n, e in happened if e is Event.CLAIMED]
        if sorted(ran) != sorted(self.engine.sessions()):
            errors.append("the engine had other sessions than there were attempts")
        return errors

    def record(self) -> list[dict[str, Any]]:
        """Return the engine's record while each sweep has runs to start: from the time when all
        have running runs until the first has started its last run."""
        roots = {str(sweep.root) for sweep in self.sweeps}
        ends = min(max(_begun(sweep)) for sweep in self.sweeps)
        lines = [line for line in self.engine.record() if line["time"] <= ends]
        first = next((n for n, line in enumerate(lines) if roots <= _seen(line)), 0)
        return lines[first:]

    def held(self, lines: list[dict[str, Any]]) -> float:
        """Return the share of the slots that attempts held, from their intent to their end, over a
        part of the engine's record. Times are those of the files."""
        spans: list[tuple[float, float]] = []
        for sweep in self.sweeps:
            for folder in (sweep.root / "toys" / "state").iterdir():
                times = {path.name: path.stat().st_mtime for path in folder.iterdir()}
                spans.append((times["1.intent.json"], times["1.succeeded.json"]))
        taken = sum(begun <= line["time"] < ended for line in lines for begun, ended in spans)
        return taken / max(1, sum(line["cap"] for line in lines))


def _begun(sweep: Sweep) -> list[float]:
    """Return the times when the attempts of a sweep were opened."""
    state = sweep.root / "toys" / "state"
    return [path.stat().st_mtime for path in state.glob("*/1.intent.json")]


def _seen(line: dict[str, Any]) -> set[str]:
    return {*line["inside"], *line["waiting"]}


def _demand(line: dict[str, Any]) -> int:
    return sum(line["inside"].values()) + sum(line["waiting"].values())


XMUX = """
import json, sys, time
from harness.seat import job
from tinker_cookbook.xmux import JobSpec, SwarmConfig, launch_swarm
jobs = [JobSpec(main_fn=job, log_relpath=given[0], entrypoint_config=given)
        for given in json.load(sys.stdin)]
launch_swarm(jobs, SwarmConfig(sweep_name="s", control_window_cmd="sleep 3600"))
"""


def beside(folder: Path, python: str, size: Size) -> None:
    """Print the results of tinker-cookbook's xmux with the same number of runs."""
    ledger, began = folder / "ledger", time.monotonic()
    with own_tmux(), engine(folder / "home", size.cap) as served:
        info = lifecycle.find(str(folder / "home"))
        assert info is not None
        environment = {**os.environ, "HOME": str(folder)}
        environment |= lifecycle.client_environment(info) | {"PYTHONPATH": str(HERE.parent)}
        jobs = []
        for number in range(size.runs):
            log_path = folder / "runs" / str(number)
            log_path.mkdir(parents=True)
            jobs.append([f"r{number}", str(ledger), str(size.seconds), str(log_path)])
        most = 0
        subprocess.run(
            [python, "-c", XMUX], input=json.dumps(jobs), text=True, env=environment, check=True
        )
        least = time.monotonic() + 20 * size.runs * size.seconds / size.cap + 300
        while time.monotonic() < least and len(_rows(ledger)) < size.runs:
            most = max(most, sum(map(private, _of_folder(str(folder)))))
            time.sleep(1)
        over = max((_demand(line) - line["cap"] for line in served.record()), default=0)
    print(f"xmux: {size.runs} runs of {size.seconds:g} s, {size.cap} at once, "
          f"{time.monotonic() - began:.0f} s; most asked for beyond the cap: {over}; "
          f"without a seat to the end: {size.runs - len(_rows(ledger))}; at most "
          f"{most / 1e6:,.0f} MB of private memory", flush=True)  # fmt: skip


def _rows(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _of_folder(folder: str) -> Iterator[int]:
    """Return the processes whose home is this folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == folder:
                yield process.pid


def judged(trial: Trial, *, seconds: float) -> list[str]:
    """Print the results. Returns the errors."""
    lines, size = trial.record(), trial.size
    taken = sum(sum(line["inside"].values()) for line in lines)
    seats = taken / max(1, sum(line["cap"] for line in lines))
    busy = trial.held(lines) if trial.cap_given else seats
    errors = trial.wrong()
    over = max((_demand(line) - line["cap"] for line in trial.engine.record()), default=0)
    shares = [
        sum(line["inside"].get(str(sweep.root), 0) for line in lines) / max(1, taken)
        for sweep in trial.sweeps
    ]
    kind = "known" if trial.cap_given else "learned, and moved"
    print(f"the cap is {kind}: {size.runs} runs of {size.seconds:g} s, {size.cap} at once, "
          f"{seconds:.0f} s; {trial.kills} launchers killed")  # fmt: skip
    print(f"  while all sweeps had more to start: slots held {trial.held(lines):.1%}, seats taken "
          f"{seats:.1%}; shares "
          f"{', '.join(f'{share:.3f}' for share in shares)} (due 0.25, 0.25, 0.5)")  # fmt: skip
    print(
        f"  most asked for beyond the cap: {over}; lost, doubled, wrong: {len(errors)}", flush=True
    )
    least = BUSY if trial.cap_given else FOLLOWED
    if busy < least:
        errors.append(f"only {busy:.1%} of the slots were in use, and {least:.0%} should be")
    for share, weight in zip(shares, WEIGHTS, strict=True):
        due = weight / sum(WEIGHTS)
        if trial.cap_given and abs(share - due) > FAIR * due:
            errors.append(f"a share is {share:.3f}, and should be {due:.3f}")
    if trial.cap_given and over > 0:
        errors.append(f"{over} more were asked for than the cap")
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=90)
    parser.add_argument("--cap", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("known", "moved", "xmux"), help="one of them")
    parser.add_argument("--xmux", help="a Python that has tinker-cookbook")
    given = vars(parser.parse_args())
    only, xmux = given.pop("only"), given.pop("xmux")
    size, wrong = Size(**given), list[str]()
    if xmux is not None:
        with tempfile.TemporaryDirectory() as folder:
            beside(Path(folder), os.path.abspath(xmux), size)
    for cap_given in (True, False):
        if only is not None and cap_given is not (only == "known"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            trials = Path(folder)
            with engine(trials / "home", size.cap) as served:
                trial = Trial(trials, size, served, cap_given=cap_given)
                try:
                    wrong += judged(trial, seconds=trial.run())
                finally:
                    for sweep in trial.sweeps:
                        sweep.clean()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
