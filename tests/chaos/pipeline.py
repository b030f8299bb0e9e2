"""Runs `grids/pipeline.yaml` while its launcher is killed:

    python tests/chaos/pipeline.py --kills 20 --seed 1
    python tests/chaos/pipeline.py --kills 5 --small

It is launched twice, each time with its own engine and tmux server: once undisturbed, once with the
launcher killed (SIGKILL) repeatedly, at random moments over its whole length, and launched again.
The engine independently counts the requests of every session; a session carries its run and
attempt. Exit code 1 when the runs, their parents, their records or their requests to the engine
differ, or a run was started twice.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.processes import end_all_of_home

from sweeper.engine import lifecycle
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

GRID = Path(__file__).parents[2] / "grids" / "pipeline.yaml"
SOCKET = "sweeper-pipeline"
SMALL = (
    *("sft.max_steps=4", "sft.seeds=2", "sft.test_size=8", "sft.eval_every=2"),
    *("dpo.max_steps=4", "dpo.test_size=8", "dpo.warmup_steps=0", "dpo.eval_every=2"),
    *("rl.max_steps=2", "rl.test_size=8", "rl.warmup_steps=0", "rl.eval_every=1"),
    "eval.max_items=8",
)
_COUNTS = (
    *("trained_tokens", "forward_tokens", "prompt_tokens", "sampled_tokens", "steps", "samples"),
)
_BY_THE_CLOCK = "time/"
"""Prefix of the metrics that no two runs have alike."""


class Outcome(NamedTuple):
    """The result of a launch: each run as recorded, and its attempts' requests as counted by the
    engine."""

    runs: Mapping[str, Mapping[str, Any]]
    requests: Mapping[str, Mapping[str, int]]
    sessions: Mapping[str, int]
    events: int
    seconds: float


class Trial:
    """One launch of the grid from start to end, in its own folder."""

    def __init__(self, folder: Path, changes: tuple[str, ...]) -> None:
        self.folder, self.changes = folder, changes
        self.home, self.socket = str(folder / "home"), f"{SOCKET}-{folder.name}"
        self.state = folder / "sweeps" / "pipeline" / "state"
        folder.mkdir()
        variables = {"SWEEPER_HOME": self.home, "SWEEPER_ROOT": str(folder / "sweeps")}
        variables |= {"SWEEPER_TMUX_SOCKET": self.socket, "XDG_CONFIG_HOME": str(folder / "config")}
        self.environment = {**os.environ, **variables}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def launch(self, until: int | None = None) -> bool:
        """Launch, or launch again, and kill the launcher when this many events are recorded.
        Returns whether it was killed."""
        with (self.folder / "launcher.log").open("ab") as log:
            process = subprocess.Popen(
                [*(sys.executable, "-m", "sweeper", "launch"), str(GRID), *self.changes, "--wait"],
                env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        while process.poll() is None:
            if until is not None and self.events() >= until:
                os.kill(process.pid, signal.SIGKILL)
                return process.wait() == -signal.SIGKILL
            time.sleep(0.02)
        if process.returncode:
            log_end = (self.folder / "launcher.log").read_text()[-2000:]
            raise SystemExit(f"the launcher ended with {process.returncode}:\n{log_end}")
        return False

    def events(self) -> int:
        return sum(not path.name.startswith(".") for path in self.state.glob("*/*"))

    def outcome(self, seconds: float) -> Outcome:
        """Return the result when everything has ended."""
        runs = Registry(str(self.folder / "sweeps")).sweep("pipeline").runs
        names = {run.id: run.name for run in runs}
        engine = lifecycle.find(self.home)
        meter = None if engine is None else lifecycle.meter(engine, lifecycle.client_key(self.home))
        if meter is None:
            raise SystemExit("the engine that counted is gone")
        requests: dict[str, dict[str, int]] = {}
        sessions: dict[str, int] = {}
        for line in meter["sessions"]:
            attempt = next((t[4:] for t in line["tags"] if t.startswith("run:")), "nobody")
            sessions[attempt] = sessions.get(attempt, 0) + 1
            counts = requests.setdefault(attempt, dict.fromkeys(_COUNTS, 0))
            for key in _COUNTS:
                counts[key] += line[key]
        left = {run.id: _left(run, names) for run in runs}
        return Outcome(left, requests, sessions, self.events(), seconds)

    def end(self) -> None:
        """End everything that was started."""
        stop = [sys.executable, "-m", "sweeper", "engine", "stop", "--force"]
        subprocess.run(stop, env=self.environment, capture_output=True, check=False)
        tmux = ["tmux", "-L", self.socket, "kill-server"]
        subprocess.run(tmux, capture_output=True, check=False)
        end_all_of_home(self.home)


def _left(run: RecordedRun, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of a run's files that may not depend on time."""
    lines = (Path(run.path) / "metrics.jsonl").read_text().splitlines()
    rows = [
        {key: value for key, value in row.items() if not key.startswith(_BY_THE_CLOCK)}
        for row in (json.loads(line, parse_constant=str) for line in lines)
    ]
    return {
        "name": run.name,
        "state": run.state.value,
        "attempts": run.attempts,
        "parents": [names[parent] for parent in run.parents],
        "rows": rows,
    }


def differences(whole: Outcome, killed: Outcome) -> list[str]:
    """Return the differences from the undisturbed launch, a line each."""
    errors: list[str] = []
    for run in dict.fromkeys((*whole.runs, *killed.runs)):
        undisturbed, disturbed = whole.runs.get(run), killed.runs.get(run)
        if undisturbed is None or disturbed is None:
            present = undisturbed or disturbed or {}
            errors.append(
                f"{present.get('name')}: only {'undisturbed' if undisturbed else 'when killed'}"
            )
            continue
        errors += [
            f"{undisturbed['name']}: {key} differ"
            for key in undisturbed
            if undisturbed[key] != disturbed[key]
        ]
        if (disturbed["state"], disturbed["attempts"]) != ("succeeded", 1):
            errors.append(
                f"{disturbed['name']}: {disturbed['state']}, {disturbed['attempts']} attempts"
            )
    for attempt in dict.fromkeys((*whole.requests, *killed.requests)):
        before, after = whole.requests.get(attempt), killed.requests.get(attempt)
        if before != after:
            errors.append(f"{attempt}: requested {after}, undisturbed {before}")
        if whole.sessions.get(attempt) != killed.sessions.get(attempt):
            errors.append(f"{attempt}: {killed.sessions.get(attempt)} sessions")
    return errors


def summary(what: str, outcome: Outcome) -> str:
    """Return a line of figures."""
    sums = {key: sum(counts[key] for counts in outcome.requests.values()) for key in _COUNTS}
    trained = f"{sums['trained_tokens']:,} tokens trained on in {sums['steps']:,} steps"
    values = sum(len(row) for run in outcome.runs.values() for row in run["rows"])
    return (
        f"{what}: {len(outcome.runs)} runs, {len(outcome.requests)} attempts known to the engine, "
        f"{trained}, {sums['sampled_tokens']:,} sampled; {values:,} values on record; "
        f"{outcome.events} events; {outcome.seconds:.0f} s"
    )


def main() -> int:
    """Run both launches. Exit code 1 if something differs."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--small", action="store_true", help="few steps, for a quick look")
    options.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="as for launch")
    given = options.parse_args()
    changes = (*(SMALL if given.small else ()), *given.changes)
    with tempfile.TemporaryDirectory() as place, own_tmux():
        trials = [Trial(Path(place) / name, changes) for name in ("whole", "killed")]
        try:
            begun = time.monotonic()
            trials[0].launch()
            whole = trials[0].outcome(time.monotonic() - begun)
            print(summary("undisturbed", whole), flush=True)
            trials[0].end()
            chance = random.Random(given.seed)
            moments = sorted(chance.sample(range(1, math.floor(whole.events * 0.97)), given.kills))
            begun = time.monotonic()
            kills = sum(trials[1].launch(moment) for moment in moments)
            trials[1].launch()
            killed = trials[1].outcome(time.monotonic() - begun)
            print(summary(f"killed {kills} times", killed), flush=True)
        finally:
            for trial in trials:
                trial.end()
    wrong = differences(whole, killed)
    wrong += [f"killed {kills} times, not {given.kills}"] if kills != given.kills else []
    print(f"load {os.getloadavg()[0]:.0f}")
    print(*(wrong or ["nothing differs"]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
