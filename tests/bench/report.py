"""Compares the time and size of a report with those of a plain script with pandas and plotly.

    python tests/bench/report.py [--runs 1000] [--steps 1000] [--rounds 3]

The plain script is a researcher's ten lines: `pandas.read_json` for each run, a trace for each
curve, `write_html`. It draws the metric and the training curve of every run. sweeper draws the same
two, and does the rest of a report (statistics, tables, other curves, JSON); pictures for Markdown,
which the script lacks, are timed separately. Both run as separate processes, imports included, in
turns; the figures are medians.
"""

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.written import Written

PLAIN = """
import json, sys
from pathlib import Path
import pandas, plotly.graph_objects as go
from plotly.subplots import make_subplots
root, out = Path(sys.argv[1]), sys.argv[2]
plan = json.loads((root / "sweep.json").read_text())
keys = ["test/nll", "train/nll"]
figure = make_subplots(rows=2, cols=1, subplot_titles=keys)
for run in plan["runs"]:
    frame = pandas.read_json(root / "runs" / f"{run['id']}.1" / "metrics.jsonl", lines=True)
    for row, key in enumerate(keys, start=1):
        trace = go.Scatter(x=frame["step"], y=frame[key], name=run["name"])
        figure.add_trace(trace, row=row, col=1)
figure.write_html(out)
"""

OURS = """
import sys
from sweeper import analysis
analysis.analyze(sys.argv[1], "bench", out=sys.argv[2], pictures=sys.argv[3] == "pictures")
"""

FLOOR = "import numpy"

TITLES = {
    "floor": "`import numpy`, and nothing else",
    "plain": "pandas and plotly, `write_html`",
    "first": "`report.html` and `report.json`",
    "again": "again, metrics cached",
    "pictures": "again, with `report.md` and its PNGs",
}


def generate(root: Path, runs: int, steps: int) -> None:
    """Write a sweep of `runs` runs, five seeds per cell, each with `steps` lines of 20 keys."""
    rng, sweep = random.Random(1), Written(root, "bench")
    noise = [rng.gauss(0, 1) for _ in range(4096)]
    for number in range(runs):
        rate, rank, seed = number // 5 % 20, number // 100, number % 5
        final = 0.3 + 0.05 * abs(rate - 7) + 0.02 * rank + 0.01 * noise[number]
        config = {"learning_rate": 1e-4 * 1.5**rate, "lora_rank": 4 * (rank + 1)}
        rows = []
        for step in range(steps):
            level = final + 2 * math.exp(-5 * step / steps)
            row = {
                "step": step,
                "test/nll": level + 0.02 * noise[(7 * step + number) % 4096],
                "train/nll": level + 0.1 * noise[(3 * step + number) % 4096],
                "test/accuracy": 1 / (1 + level),
                "unclipped_grad_l2:mean": 1 + abs(noise[(step + number) % 4096]),
                "learning_rate": config["learning_rate"] * (1 - step / steps),
                "num_tokens": 1024,
                "time/total": 0.25,
            }
            row |= {f"time/part_{part}": noise[(step + part) % 4096] for part in range(12)}
            rows.append(row)
        cell = f"lr={config['learning_rate']:.3g},rank={config['lora_rank']}"
        sweep.run(config, seed, rows, cell=cell)
    sweep.save()


def seconds(cache: Path, code: str, *arguments: str) -> tuple[float, float]:
    """Return the wall and processor seconds of a Python process that runs `code`; the registry's
    cache is in `cache`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["XDG_CACHE_HOME"] = str(cache)
    used, begun = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, check=True)
    passed, after = time.perf_counter() - begun, os.times()
    children = after.children_user - used.children_user
    return passed, children + after.children_system - used.children_system


def warm_up(root: Path) -> None:
    """Run both once on a sweep of two runs, so that neither pays for compiling the imports."""
    generate(root, 2, 3)
    out = str(root / "out")
    seconds(root / "cache", PLAIN, str(root / "bench"), f"{out}.html")
    seconds(root / "cache", OURS, str(root), out, "pictures")


def parse_options(doc: str) -> argparse.Namespace:
    """Parse the size of the sweep and the number of rounds."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    given = parse_options(__doc__)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        warm_up(root / "small")
        generate(root, given.runs, given.steps)
        os.sync()  # or the first reader waits for the disk
        plain, out = root / "plain.html", root / "out"
        taken: dict[str, list[tuple[float, float]]] = {
            "floor": [],
            "plain": [],
            "first": [],
            "again": [],
            "pictures": [],
        }
        for number in range(given.rounds):
            cache = root / f"cache-{number}"  # empty: nothing was read before
            report = (str(root), str(out))
            taken["floor"].append(seconds(cache, FLOOR))
            taken["plain"].append(seconds(cache, PLAIN, str(root / "bench"), str(plain)))
            taken["first"].append(seconds(cache, OURS, *report, "none"))
            taken["again"].append(seconds(cache, OURS, *report, "none"))
            taken["pictures"].append(seconds(cache, OURS, *report, "pictures"))
        middle = {
            name: tuple(statistics.median(part) for part in zip(*values, strict=True))
            for name, values in taken.items()
        }
        sizes = {"plain": plain.stat().st_size, "first": (out / "report.html").stat().st_size}
    print(f"{given.runs} runs x {given.steps} steps, medians of {given.rounds} rounds in turns")
    print("| | seconds | processor seconds | MB |")
    print("|---|---|---|---|")
    for name, title in TITLES.items():
        size = f"{sizes[name] / 1e6:.1f}" if name in sizes else ""
        print(f"| {title} | {middle[name][0]:.2f} | {middle[name][1]:.2f} | {size} |")
    faster = [plain / ours for plain, ours in zip(middle["plain"], middle["first"], strict=True)]
    print(
        f"\nours, first time: {faster[0]:.1f} times as fast ({faster[1]:.1f} by the processor), ",
        end="",
    )
    print(f"{sizes['plain'] / sizes['first']:.1f} times smaller")


if __name__ == "__main__":
    main()
