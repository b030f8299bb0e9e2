"""Compares sweeper's registry with tinker-cookbook's in reading the records of runs.

    python tests/bench/registry.py [--runs 10 100 1000] [--small 10000] [--rounds 3]
        [--cookbook .venv-cookbook/bin/python]

Both read the same files: N runs of 1,000 steps with 20 keys, and 10 iterations of 64 trajectories;
then the number `--small` of small runs (20 steps, no rollouts). Both sides run in turns, each round
in new processes; times are medians without imports. tinker-cookbook returns lists of dicts, sweeper
a DataFrame. "First" starts with an empty cache and fills it.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEYS = [f"train/metric_{i:02}/mean" for i in range(20)]
KEY = KEYS[7]
DISTINCT = 20
"""Number of runs with different records; the others repeat them."""


def metrics(rng: random.Random, steps: int) -> str:
    rows = ({"step": s, **{key: rng.gauss(0, 1) for key in KEYS}} for s in range(steps))
    return "".join(json.dumps(row) + "\n" for row in rows)


def summaries(rng: random.Random, iteration: int, count: int = 64) -> str:
    records = []
    for index in range(count):
        metrics = {"correct": float(rng.random() < 0.5), "format": 1.0}
        logs = {"question": "2 + 2 = ?", "response": "4", "reference_answer": "4"}
        step = {"step_idx": 0, "ob_len": 24, "ac_len": rng.randrange(1, 90), "reward": rng.random()}
        step |= {"episode_done": True, "metrics": metrics, "logs": logs}
        records.append(
            {
                "schema_version": 1,
                "split": "train",
                "iteration": iteration,
                "group_idx": index // 8,
                "traj_idx": index % 8,
                "tags": ["sums"],
                "sampling_client_step": iteration,
                "total_reward": step["reward"],
                "final_reward": 0.0,
                "trajectory_metrics": {},
                "steps": [step],
                "final_ob_len": 0,
            }
        )
    return "".join(json.dumps(record) + "\n" for record in records)


def generate(folder: Path, count: int, steps: int, iterations: int) -> None:
    """Write a sweep of `count` succeeded runs, old enough for a cache to trust their files."""
    rng = random.Random(0)
    texts = [metrics(rng, steps) for _ in range(DISTINCT)]
    sampled = [[summaries(rng, i) for i in range(iterations)] for _ in range(DISTINCT)]
    planned = []
    top = folder / "many"
    for number in range(count):
        run, config = f"{number:012x}", {"learning_rate": number / 1e6, "lora_rank": 8, "seed": 0}
        name = f"lr={number / 1e6:g},seed=0"
        planned.append({"id": run, "name": name, "cell": name, "seed": 0, "config": config})
        log = top / "runs" / f"{run}.1"
        log.mkdir(parents=True)
        (log / "metrics.jsonl").write_text(texts[number % DISTINCT])
        (log / "config.json").write_text(json.dumps(config))
        for iteration, text in enumerate(sampled[number % DISTINCT]):
            inner = log / f"iteration_{iteration:06}"
            inner.mkdir()
            (inner / "train_rollout_summaries.jsonl").write_text(text)
        state = top / "state" / run
        state.mkdir(parents=True)
        body = {"schema": 1, "time": "2026-11-21T01:02:03Z", "started": "2026-11-21T01:02:03Z"}
        ended = {"ended": "2026-11-21T01:03:03Z", "code": 0, "wall_s": 60.0, "reason": None}
        for event in ("intent", "submitted", "claimed", "succeeded"):
            (state / f"1.{event}.json").write_text(json.dumps(body | ended))
    metric = {"name": KEY, "goal": "minimize", "at": "last"}
    plan = {"schema": 1, "name": "many", "recipe": {"reference": "x"}, "metric": metric}
    plan |= {"launch": {"retries": 0}, "axes": {}, "runs": planned}
    (top / "sweep.json").write_text(json.dumps(plan))
    for path in sorted(top.rglob("*"), reverse=True):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    time.sleep(2.5)  # a file's ctime cannot be set


def run(python: str, side: str, folder: Path, cases: list[str]) -> dict[str, float]:
    command = [python, str(HERE / "registry_sides.py"), side, str(folder), KEY, json.dumps(cases)]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ["SWEEPER_HOME"] = str(folder / "home")
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environ, text=True, check=True)
    return json.loads(done.stdout)


OURS = [
    ["one key, first"],
    ["last values, cold", "last values, later"],
    ["all keys, first", "all keys, later", "one key, later", "one key, SQL, later",
     "last values, first", "rollouts, first", "rollouts, later", "new lines"],
    ["one key, without a cache"],
    ["all keys, without a cache"],
]  # fmt: skip
THEIRS = ["all keys", "one key", "one key, same objects", "last values", "rollouts", "new lines"]
ROWS = [
    ("all keys, first (this read fills the cache)", "all keys, first", "all keys"),
    ("all keys, without a cache", "all keys, without a cache", "all keys"),
    ("one key, first (this read fills the cache)", "one key, first", "one key"),
    ("one key, without a cache", "one key, without a cache", "one key"),
    ("all keys, later", "all keys, later", "all keys"),
    ("one key, later", "one key, later", "one key"),
    (
        "one key, later, compared with tinker-cookbook's objects already in memory",
        "one key, later",
        "one key, same objects",
    ),
    ("one key, minimum per run, by SQL, later", "one key, SQL, later", "one key"),
    ("last values and configuration, nothing cached", "last values, cold", "last values"),
    ("last values and configuration, first, metrics cached", "last values, first", "last values"),
    ("last values and configuration, later", "last values, later", "last values"),
    ("mean reward per run over all rollouts, first", "rollouts, first", "rollouts"),
    ("mean reward per run over all rollouts, later", "rollouts, later", "rollouts"),
    ("10 new lines in one run, followed", "new lines", "new lines"),
]


def measure(folder: Path, cookbook: str | None, rounds: int) -> tuple[dict[str, float], ...]:
    sides: tuple[dict[str, list[float]], ...] = ({}, {})
    for _ in range(rounds):
        for cases in OURS:
            if "without" not in cases[0]:
                shutil.rmtree(folder / "home", ignore_errors=True)
            for name, value in run(sys.executable, "ours", folder, cases).items():
                key = f"peak MB, {cases[0]}" if name == "peak MB" else name
                sides[0].setdefault(key, []).append(value)
        if cookbook is not None:
            for name, value in run(cookbook, "cookbook", folder, THEIRS).items():
                sides[1].setdefault(name, []).append(value)
    return tuple({k: statistics.median(v) for k, v in side.items()} for side in sides)


def tell(title: str, ours: dict[str, float], theirs: dict[str, float]) -> None:
    print(f"\n{title}\n\n| what | sweeper, ms | tinker-cookbook, ms | ratio |\n|---|---|---|---|")
    for title_, own, other in ROWS:
        if own not in ours:
            continue
        mine, yours = ours[own] * 1e3, theirs.get(other, float("nan")) * 1e3
        print(f"| {title_} | {mine:.1f} | {yours:.1f} | {yours / mine:.1f} |")
    bottom = ours["new lines, floor"] * 1e3
    ratio = ours["new lines"] / ours["new lines, floor"]
    print(
        f"\nthe floor of new lines (scandir, stat, pread): {bottom:.2f} ms; ours is {ratio:.1f} x"
    )
    print(f"one key of all runs again after new lines: {ours['new lines, one key of all']:.3f} s")
    peak = ours["peak MB, one key, first"]
    print(
        f"peak memory: one key {peak:.0f} MB; theirs {theirs.get('peak MB', 0):.0f} MB", flush=True
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, nargs="*", default=[10, 100, 1000])
    options.add_argument("--small", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=3)
    usual = os.environ.get("COOKBOOK_PYTHON") or str(ROOT / ".venv-cookbook" / "bin" / "python")
    options.add_argument("--cookbook", default=usual)
    given = options.parse_args()
    cookbook = given.cookbook if Path(given.cookbook).exists() else None
    if cookbook is None:
        print(f"NO COMPARISON: {given.cookbook} is missing; `make cookbook` gets it")
    sizes = [(count, 1000, 10) for count in given.runs]
    sizes += [(given.small, 20, 0)] if given.small else []
    for count, steps, iterations in sizes:
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), count, steps, iterations)
            if not iterations:
                OURS[2] = [case for case in OURS[2] if not case.startswith("rollouts")]
                THEIRS.remove("rollouts")
            ours, theirs = measure(Path(folder), cookbook, given.rounds)
        tell(f"{count} runs x {steps} steps x {len(KEYS)} keys", ours, theirs)


if __name__ == "__main__":
    main()
