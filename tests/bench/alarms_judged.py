"""Measures how good the alarms are, on healthy and misconfigured runs of sweeper's recipes on its
engine.

    python tests/bench/alarms_judged.py tune      seeds by which the defaults were chosen
    python tests/bench/alarms_judged.py judge     the held-out half: seeds not used for the rules
    python tests/bench/alarms_judged.py judge --seeds 40000     other seeds, after a change
    python tests/bench/alarms_judged.py replay tune     the current rules, over the recorded runs

Each kind of run is a sweep, launched as a user does it; the result is what its launcher recorded. A
run of a faulty kind counts as caught if one of the rules expected for its kind raised an alarm; a
healthy run is a false alarm if any rule did. Runs and their observations stay below --out. No seed
is in both halves: the seeds of a half begin at FIRST_SEEDS, or at --seeds, and each kind has a
separate thousand.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.alarms import alarms
from sweeper.alarms.watcher import Criteria, Seen, Watcher
from sweeper.common.alarm_thresholds import resolve
from sweeper.engine import lifecycle
from sweeper.engine.lifecycle import Settings
from sweeper.engine.limits import Limits
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

WARM = {"task": "sorting", "length": 3, "letters": 4, "test_size": 16, "max_steps": 25}
SFT = {"max_steps": 60, "batch_size": 16, "eval_every": 20, "test_size": 16}
RL: dict[str, Any] = {
    **{"task": "sorting", "length": 3, "letters": 4, "test_size": 16, "num_groups_to_log": 0},
    **{"groups_per_batch": 8, "group_size": 16, "max_tokens": 6, "max_steps": 25},
    **{"learning_rate": 1e-3, "eval_every": 0, "reward": "dense"},
}
LONG: dict[str, Any] = {"task": "sorting", "length": 3, "letters": 4, "max_steps": 20000}
FIRST_SEEDS = {"tune": 0, "judge": 20_000}
ANY = ("nan", "divergence", "spike", "collapse", "entropy", "no_signal", "truncation", "length")


NOT_STALLED: dict[str, Any] = {"alarms": {"stalled": "off"}}
NEVER_SECONDS = 180
"""How long to watch for a rule that must not raise an alarm."""
MOST_SECONDS = 300
"""How long to wait for a rule that should."""


class Kind(NamedTuple):
    """A kind of run: its recipe, its configurations, the rules that should raise an alarm (none:
    no alarm is expected), its `share` of the healthy runs if it is healthy, the settings of its
    engine and its faults, rules that must `never` raise an alarm, and sections of the grid."""

    recipe: str
    configs: list[dict[str, Any]]
    rules: tuple[str, ...] = ()
    share: float = 0.0
    limits: Limits = Limits()
    accident: signal.Signals | None = None
    never: tuple[str, ...] = ()
    sections: dict[str, Any] = {}  # noqa: RUF012 - never changed
    warm: bool = False


KINDS = {
    "healthy SFT": Kind(
        "sft",
        [
            SFT | {"task": "sorting", "length": 3, "letters": 4},
            SFT | {"task": "sorting", "length": 5, "letters": 8, "learning_rate": 2e-3},
            SFT | {"task": "reversal", "length": 4, "letters": 6, "lora_rank": 4},
            SFT | {"task": "addition", "digits": 1, "learning_rate": 4e-3},
            SFT | {"task": "sorting", "length": 4, "letters": 4, "wrong_share": 0.2},
        ],
        share=0.6,
    ),
    "healthy RL": Kind(
        "rl",
        [
            RL,
            RL | {"learning_rate": 2e-3},
            RL | {"reward": "sparse"},
            RL | {"loss_fn": "ppo"},
            RL | {"normalize_std": True, "num_substeps": 2},
        ],
        share=0.4,
        warm=True,
    ),
    "SFT, learning rate too high": Kind(
        "sft",
        [
            SFT | {"task": "sorting", "length": 3, "letters": 4, "learning_rate": r}
            for r in (0.2, 0.5, 1.0, 5.0)
        ],
        ("divergence", "spike", "nan"),
    ),
    "RL, learning rate too high": Kind(
        "rl", [RL | {"learning_rate": rate} for rate in (0.05, 0.2, 1.0)], ANY, warm=True
    ),
    "a reward without signal": Kind(
        "rl",
        # From random weights no answer is ever right.
        [
            RL | {"reward": "sparse", "length": n, "letters": 12, "max_tokens": n + 2}
            for n in (5, 6)
        ],
        ("no_signal",),
    ),
    "max_tokens too short": Kind(
        "rl",
        [
            RL | {"max_tokens": n, "reward": reward}
            for n in (2, 3)
            for reward in ("dense", "sparse")
        ],
        ("truncation",),
        warm=True,
    ),
    "a temperature that is not the model's": Kind(
        "rl", [RL | {"temperature": heat} for heat in (1.7, 2.0, 3.0)], ("kl",), warm=True
    ),
    "no such checkpoint": Kind(  # the runs fail, although the service answers
        "sft", [SFT | {"load_checkpoint_path": "tinker://none/weights/final"}]
    ),
    "the engine is killed": Kind(
        "sft", [SFT | LONG], ("stalled", "service"), accident=signal.SIGKILL
    ),
    "the engine is killed, SFT, `stalled: off`": Kind(
        "sft", [SFT | LONG], ("service",), accident=signal.SIGKILL, sections=NOT_STALLED
    ),
    "the engine is killed, RL, `stalled: off`": Kind(
        "rl", [RL | LONG], ("service",), accident=signal.SIGKILL, sections=NOT_STALLED
    ),
    "the engine hangs": Kind("sft", [SFT | LONG], ("stalled",), accident=signal.SIGSTOP),
    "a rate limit": Kind(
        "sft",
        [SFT | LONG],
        ("paused",),
        limits=Limits(rate_limit=0.1),
        never=("stalled", "heartbeat"),
        # If the rule `stalled` ignored that the runs wait, it would soon raise an alarm.
        sections={
            "alarms": {
                "paused": {"after": "10s"},
                "stalled": {"after": "20s", "factor": 1, "first": "60s"},
            }
        },
    ),
}


def seeds(first: int, name: str, count: int) -> list[int]:
    """Return the seeds of a kind: a thousand each, from `first` on."""
    start = first + 1000 * list(KINDS).index(name)
    return list(range(start, start + count))


class Bench:
    """The engines and sweeps of one half."""

    def __init__(self, out: Path, first: int, healthy: int, wrong: int, parallel: int) -> None:
        self.out, self.first, self.parallel = out, first, parallel
        self.kinds = KINDS
        self.healthy, self.wrong = healthy, wrong
        self.out.mkdir(parents=True, exist_ok=True)
        self.warm = str(self.out / "warm")

    def run(self) -> None:
        """Run everything, one kind after the other."""
        os.nice(10)
        with self.engine("plain", Limits()) as (home, info):
            command = [sys.executable, "-m", "sweeper.recipes.sft", f"log_path={self.warm}"]
            given = WARM | {"base_url": info.url, "eval_every": 0, "batch_size": 16}
            given["seed"] = self.first + 999
            subprocess.run(
                [*command, *(f"{k}={v}" for k, v in given.items())],
                check=True,
                env={**os.environ, **lifecycle.client_environment(info)},
                stdout=subprocess.DEVNULL,
            )
            for name, kind in self.kinds.items():
                if kind.accident is None and kind.limits == Limits():
                    self.sweep(name, kind, home)
        for name, kind in self.kinds.items():
            if kind.accident is not None or kind.limits != Limits():
                with self.engine(slug(name), kind.limits) as (home, info):
                    self.sweep(name, kind, home, info)

    def engine(self, name: str, limits: Limits) -> "Engine":
        return Engine(str(self.out / f"home-{name}"), limits)

    def sweep(
        self, name: str, kind: Kind, home: str, info: lifecycle.EngineInfo | None = None
    ) -> None:
        """Launch the runs of a kind and wait; each configuration gets its share of the seeds."""
        total = round(self.healthy * kind.share) if kind.share else self.wrong
        drawn = seeds(self.first, name, total)
        warm = {"load_checkpoint_path": self.warm} if kind.warm else {}
        given = [
            kind.configs[n % len(kind.configs)] | warm | {"seed": seed}
            for n, seed in enumerate(drawn)
        ]
        at_once = total if kind.accident or kind.limits != Limits() else self.parallel
        grid = {
            "name": slug(name),
            "recipe": kind.recipe,
            "service": "local",
            "include": given,
            "launch": {"backend": "local", "max_parallel": at_once, "grace": "3s"},
            **kind.sections,
        }
        path = self.out / f"{slug(name)}.yaml"
        path.write_text(json.dumps(grid))
        command = [sys.executable, "-m", "sweeper", "launch", str(path), "--wait", "--live"]
        environment = os.environ | {"SWEEPER_HOME": home, "SWEEPER_ROOT": str(self.out / "sweeps")}
        begun = time.monotonic()
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as launcher:
            if kind.accident is not None and info is not None:
                self._wait_for_steps(slug(name), total)
                os.kill(info.pid, kind.accident)
            if at_once == total:
                self._wait_for_alarms(name, kind, launcher)
                if kind.never:
                    time.sleep(NEVER_SECONDS)
                cancel = [sys.executable, "-m", "sweeper", "cancel", slug(name)]
                subprocess.run(cancel, env=environment, stdout=subprocess.DEVNULL, check=False)
            launcher.wait()
        print(f"{name}: {total} runs, {time.monotonic() - begun:.0f} s", flush=True)

    def _wait_for_alarms(self, name: str, kind: Kind, launcher: "subprocess.Popen[bytes]") -> None:
        """Wait until every run has been caught, or the launcher has ended, or time is up."""
        deadline = time.monotonic() + MOST_SECONDS
        while launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(1)
            if (self.out / "sweeps" / slug(name) / "sweep.json").exists():
                by_run = recorded(self.out, name)
                if all(set(alarms) & set(kind.rules) for alarms in by_run.values()):
                    return

    def _wait_for_steps(self, sweep: str, runs: int) -> None:
        """Wait until every run has trained some steps."""
        folder = self.out / "sweeps" / sweep / "runs"
        deadline = time.monotonic() + MOST_SECONDS
        while time.monotonic() < deadline:
            sizes = [path.stat().st_size for path in folder.glob("*/metrics.jsonl")]
            if len(sizes) == runs and min(sizes) > 5000:
                return
            time.sleep(0.5)
        raise SystemExit(f"{sweep}: its runs do not train")


class Engine:
    """A temporary engine with its own home."""

    def __init__(self, home: str, limits: Limits) -> None:
        self._home, self._limits = home, limits

    def __enter__(self) -> tuple[str, lifecycle.EngineInfo]:
        self._info = lifecycle.start(home=self._home, settings=Settings(limits=self._limits))
        return self._home, self._info

    def __exit__(self, *_: object) -> None:
        try:
            os.kill(self._info.pid, signal.SIGCONT)
        except ProcessLookupError:
            return  # it was killed
        lifecycle.stop(self._home)


def slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).lower().split())


def recorded(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return run -> rule -> the alarm, as recorded by the launcher."""
    store = open_store(str(out / "sweeps"))
    sweep = Registry(store.root).sweep(slug(name))
    by_run: dict[str, dict[str, Any]] = {run.id: {} for run in sweep.runs}
    for alarm in alarms(SweepFolder(store, slug(name))):
        by_run[alarm.run][alarm.rule] = alarm
    return by_run


def replayed(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the alarms that the current rules raise on the recorded metrics and rollouts: run ->
    rule -> alarm."""
    store = open_store(str(out / "sweeps"))
    by_run: dict[str, dict[str, Any]] = {}
    for run in Registry(store.root).sweep(slug(name)).runs:
        alarms: dict[str, Any] = {}
        watcher = Watcher(
            SweepFolder(store, slug(name)),
            Criteria(resolve(), lease=60.0, is_command=False),
            set(),
            clock=lambda: 0.0,
            tell=print,
        )
        over: set[tuple[str, int]] = set()
        while not over:
            seen, over = watcher.check([Seen(run.id, 1, False)])
            alarms |= {alarm.rule: alarm.evidence for alarm in seen}
        by_run[run.id] = alarms
    return by_run


def lines(
    out: Path, read: Callable[[Path, str], dict[str, dict[str, Any]]], *, details: bool
) -> Iterator[str]:
    """Return the table, in Markdown."""
    yield "| runs | number | caught | which rules said so | step, median |"
    yield "|---|---|---|---|---|"
    for name, kind in KINDS.items():
        by_clock = kind.accident is not None or kind.limits != Limits()
        if not (out / "sweeps" / slug(name)).exists() or (by_clock and read is replayed):
            continue
        by_run = read(out, name)
        if kind.rules:
            right = [alarms for alarms in by_run.values() if set(alarms) & set(kind.rules)]
            right = [alarms for alarms in right if not set(alarms) & set(kind.never)]
            summary = f"{len(right)} ({len(right) / len(by_run):.0%})"
        else:
            summary = f"false alarms: {sum(bool(alarms) for alarms in by_run.values())}"
        rules = Counter(rule for alarms in by_run.values() for rule in alarms)
        shown = ", ".join(f"{rule} {count}" for rule, count in rules.most_common())
        steps = [min((a.step for a in alarms.values() if a.step is not None), default=None)
                 for alarms in by_run.values() if alarms]  # fmt: skip
        sorted_steps = sorted(step for step in steps if step is not None)
        middle = f"{sorted_steps[len(sorted_steps) // 2]:g}" if sorted_steps else ""
        yield f"| {name} | {len(by_run)} | {summary} | {shown} | {middle} |"
        if details:
            for run, alarms in by_run.items():
                if bool(alarms) != bool(kind.rules) or (
                    kind.rules and not set(alarms) & set(kind.rules)
                ):
                    yield f"    {run}: " + (
                        "; ".join(f"{r}: {a.message}" for r, a in alarms.items())
                    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("half", choices=("tune", "judge", "replay"))
    parser.add_argument("of", nargs="?", choices=("tune", "judge"), default="tune")
    parser.add_argument("--out", type=Path, default=Path("build/alarms"), help="where runs stay")
    parser.add_argument("--healthy", type=int, default=100, help="healthy runs")
    parser.add_argument("--wrong", type=int, default=12, help="runs of each kind that is wrong")
    parser.add_argument("--seeds", type=int, help="the first seed, if not that of the half")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind; repeatable")
    parser.add_argument("--table", action="store_true", help="only the table, of what was run")
    given = parser.parse_args()
    half = given.of if given.half == "replay" else given.half
    out = given.out.resolve() / half
    if given.half != "replay" and not given.table:
        first = FIRST_SEEDS[half] if given.seeds is None else given.seeds
        bench = Bench(out, first, given.healthy, given.wrong, given.parallel)
        bench.kinds = {name: KINDS[name] for name in given.only} if given.only else KINDS
        bench.run()
    read = replayed if given.half == "replay" else recorded
    print("\n".join(lines(out, read, details=given.half == "replay")))


if __name__ == "__main__":
    main()
