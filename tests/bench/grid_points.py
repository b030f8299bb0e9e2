"""Measures the cost of planning a grid of many points: expanding, naming, identifying, validating.

    python tests/bench/grid_points.py [POINTS]

For each grid it prints: microseconds of processor time per run for planning (this interpreter and
the recipe's together) and for a bare loop that constructs the same configs with chz, in turns, the
best of each, and their ratio; bytes per run that the plan holds, and the maximum during planning;
and milliseconds until the first point of a grid of 10^30.
"""

import gc
import itertools
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from sweeper.fields.nodes import Problems
from sweeper.grid import grid_from_mapping
from sweeper.planner.plan import plan
from sweeper.planner.product import Product
from sweeper.recipes.sft import Config
from sweeper.sweep.plan import Plan

LIMIT = 100_000
ROUNDS = 3


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    gc.collect()
    before = processor_seconds()
    work()
    return processor_seconds() - before


def grids(points: int) -> dict[str, dict[str, Any]]:
    """Return the measured grids, of about this many points each."""
    side = round(points ** (1 / 5))
    rates = [1e-5 * (n + 1) for n in range(side)]
    axes = {
        "learning_rate": rates,
        "lora_rank": list(range(1, side + 1)),
        "batch_size": list(range(1, side + 1)),
        "max_steps": list(range(1, side + 1)),
        "eval_every": list(range(1, side + 1)),
    }
    four = {key: values for key, values in axes.items() if key != "eval_every"}
    base = {"model_name": "tiny/qwen3", "task": "sorting"}
    return {
        "five axes": {"base": base, "grid": axes},
        "four axes, seeds": {"base": base, "grid": four, "seeds": side},
        "random": {
            "base": base,
            "random": {
                "samples": points // 20,
                "axes": {
                    "learning_rate": {"log_uniform": [1e-6, 1e-2]},
                    "batch_size": {"integers": [1, 99]},
                },
            },
            "seeds": 20,
        },
        "when, references": {
            "base": base | {"length": "${lora_rank}"},
            "grid": four,
            "when": [
                {
                    "if": {"lora_rank": list(range(1, side // 2 + 1))},
                    "grid": {"eval_every": list(range(1, side * 2))},
                }
            ],
        },
    }


def construct(made: Plan) -> None:
    """Run the bare loop."""
    for run in made.runs:
        Config(log_path="x", **run.config)


def memory(grid: dict[str, Any]) -> tuple[float, float]:
    """Return bytes per point that a plan holds, and the maximum while it is made."""
    gc.collect()
    tracemalloc.start()
    made = plan(grid)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(made.runs), peak / len(made.runs)


def measure(name: str, grid: dict[str, Any]) -> None:
    grid = {"name": "bench", "recipe": "sft", **grid}
    made = [plan(grid)]
    count = len(made[0].runs)
    rounds = [
        (seconds(lambda: plan(grid)), seconds(lambda: construct(made[0]))) for _ in range(ROUNDS)
    ]
    planning, bare = (min(times) * 1e6 / count for times in zip(*rounds, strict=True))
    made.clear()
    held, peak = memory(grid)
    row = (planning, bare, planning / bare, held, peak)
    print(f"| {name} | {count:,} | {' | '.join(f'{value:,.1f}' for value in row)} |", flush=True)


def first_point() -> float:
    """Return milliseconds until the first of 10^30 points."""
    axes = {f"a{n}": list(range(10)) for n in range(30)}
    grid = grid_from_mapping({"name": "g", "command": ["x"], "grid": axes})
    before = time.perf_counter()
    assert len(list(itertools.islice(Product(grid, Problems(), []).points(), 1))) == 1
    return (time.perf_counter() - before) * 1e3


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else LIMIT
    print("| grid | runs | plan, us per run | bare chz, us | ratio | bytes held | bytes at most |")
    print("|---|---|---|---|---|---|---|")
    for name, grid in grids(min(points, LIMIT)).items():
        measure(name, grid)
    print(f"\nthe first of 10^30 points: {first_point():.2f} ms")


if __name__ == "__main__":
    main()
