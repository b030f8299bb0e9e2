"""Writes small example sweeps for looking at the report: one of each common kind, in seconds.

    python tests/support/example_sweeps.py OUT [NAME ...] [--shots]

writes the sweeps and their reports into OUT, and with `--shots` pictures of the pages at widths of
1280 and 390, dark and light. `make` writes the same sweeps for a test.
"""

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support import written

ACCURACY = {"name": "test/accuracy", "goal": "maximize", "at": "last"}
REWARD = {"name": "env/all/reward/total", "goal": "maximize", "at": "best"}
LONG = "an-organisation-with-a-name/Some-Model-2507-235B-A22B-Thinking"
"""Longer than any column: 62 characters."""


def grid_text(
    name: str, axes: Mapping[str, Sequence[Any]], seeds: int, metric: Mapping[str, str]
) -> str:
    """Return a grid with exactly these cells."""
    lines = [f"name: {name}", "recipe: sft", "service: none", "grid:"]
    lines += [f"  {key}: {json.dumps(list(values))}" for key, values in axes.items()]
    return "\n".join([*lines, f"seeds: {seeds}", f"metric: {json.dumps(metric)}"]) + "\n"


def started(
    root: Path,
    name: str,
    axes: Mapping[str, Sequence[Any]],
    seeds: int,
    metric: Mapping[str, str] | None = None,
) -> Any:
    """Start writing a sweep with a grid."""
    metric = metric or written.METRIC
    grid = grid_text(name, axes, seeds, metric)
    return written.Written(root, name, axes, metric, grid=grid)


def quickstart(root: Path) -> list[str]:
    """Write learning rate by rank with three seeds, as in `grids/quickstart.yaml`."""
    means = {
        (rate, rank): {2e-3: 1.10, 8e-3: 0.62, 3e-2: 0.80}[rate] - 0.004 * rank
        for rate in (2e-3, 8e-3, 3e-2)
        for rank in (4, 16)
    }
    axes = {"learning_rate": [2e-3, 8e-3, 3e-2], "lora_rank": [4, 16]}
    grid = grid_text("quickstart", axes, 3, written.METRIC)
    written.grid_of_means(root, means, spread=0.04, name="quickstart", grid=grid)
    return ["quickstart"]


def grpo(root: Path) -> list[str]:
    """Write RL judged by its training prompts, as in `grids/grpo.yaml`: the best runs solve all of
    these, but only half of the eight held-out questions."""
    rng = random.Random(1)
    sweep = started(root, "grpo", {"entropy_coef": [0, 0.01, 0.03]}, 3, REWARD)
    tasks = [f"sort {a}{b}" for a in "abcd" for b in "abcd"]
    for coefficient, trained, held in ((0, 0.45, 2), (0.01, 0.93, 4), (0.03, 1.0, 4)):
        for seed in range(3):
            ends = [min(trained + rng.gauss(0, 0.004), 1.0), (held + (seed == 1)) / 8]
            rows = [
                {
                    "step": step,
                    "env/all/reward/total": ends[0] * (1 - math.exp(-step / 20)),
                    "env/all/correct": ends[0] ** 2 * (1 - math.exp(-step / 20)),
                    "optim/entropy": 2.0 * math.exp(-step / 40),
                    "num_tokens": 512,
                    "time/total": 0.5,
                    "time/sampling": 0.3,
                    "time/forward_backward": 0.1 + coefficient,
                }
                | (
                    {
                        "test/reward": ends[1] * (1 - math.exp(-step / 30))
                        if step < 100
                        else 0.2 + 0.8 * ends[1],
                        "test/accuracy": ends[1] if step == 100 else ends[1] * step / 100,
                    }
                    if step % 25 == 0
                    else {}
                )
                for step in range(101)
            ]
            run = sweep.run({"entropy_coef": coefficient}, seed, rows)
            for iteration in (0, 100):
                right = iteration / 100 * trained
                groups = [[float(rng.random() < right) for _ in range(8)] for _ in range(8)]
                written.rollouts(sweep, run, iteration, groups, ("ab", "ba"), tasks[:8])
                count = (held + (seed == 1)) * iteration // 100
                answered = [[float(place < count)] for place in range(8)]
                written.rollouts(
                    sweep, run, iteration, answered, ("ab",), tasks[8:], split="eval_test"
                )
    sweep.save()
    return ["grpo"]


def random60(root: Path) -> list[str]:
    """Write sixty random points of eight axes, one seed each; only three axes matter."""
    rng = random.Random(2)
    names = ("learning_rate", "lora_rank", "warmup", "weight_decay", "beta2", "clip", "dropout")
    points: list[dict[str, Any]] = [
        {
            "learning_rate": 10 ** rng.uniform(-5, -2),
            "lora_rank": rng.choice([4, 8, 16, 32, 64]),
            "warmup": rng.randrange(0, 100),
            "weight_decay": rng.uniform(0, 0.1),
            "beta2": rng.uniform(0.9, 0.999),
            "clip": rng.uniform(0.1, 2.0),
            "dropout": rng.uniform(0, 0.3),
            "schedule": rng.choice(["linear", "cosine", "constant"]),
        }
        for _ in range(60)
    ]
    axes = {name: [point[name] for point in points] for name in (*names, "schedule")}
    sweep = written.Written(root, "random60", axes)
    for number, point in enumerate(points):
        final = (
            0.6
            + 0.12 * (math.log10(point["learning_rate"]) + 3.4) ** 2
            - 0.05 * math.log2(point["lora_rank"] / 4)
            + 1.2 * point["dropout"] ** 2
            + rng.gauss(0, 0.03)
        )
        rows = written.curve(final, steps=40, every=10)
        sweep.run(point, 0, rows, cell=f"sample={number}")
    sweep.save()
    return ["random60"]


def cells184(root: Path) -> list[str]:
    """Write 23 learning rates by 8 ranks with three seeds."""
    rng = random.Random(3)
    rates = [float(f"{1e-5 * 1.35**i:.2g}") for i in range(23)]
    ranks = [1, 2, 4, 8, 16, 32, 64, 128]
    sweep = started(root, "cells184", {"learning_rate": rates, "lora_rank": ranks}, 3)
    for (i, rate), (j, rank) in itertools.product(enumerate(rates), enumerate(ranks)):
        mean = 0.9 + 0.004 * (i - 14) ** 2 - 0.02 * min(j, 5)
        for seed in range(3):
            rows = written.curve(mean + rng.gauss(0, 0.02), steps=30, every=10)
            sweep.run({"learning_rate": rate, "lora_rank": rank}, seed, rows)
    sweep.save()
    return ["cells184"]


def blocks35(root: Path) -> list[str]:
    """Write 35 models with a ragged grid each, one seed per cell; the optimum differs by model."""
    rng = random.Random(4)
    models = [LONG, *(f"org/Model-{size}B-{kind}" for size in range(1, 18) for kind in "ab")]
    rates, ranks = [3e-5, 1e-4, 3e-4, 1e-3], [1, 8, 32, 128]
    axes = {"model_name": models, "learning_rate": rates, "lora_rank": ranks}
    metric = written.METRIC | {"by": "model_name"}
    sweep = started(root, "blocks35", axes, 1, metric)
    for number, model in enumerate(models):
        best = number % 4
        for (i, rate), (j, rank) in itertools.product(enumerate(rates), enumerate(ranks)):
            if (j == 3 and number % 3 == 0) or (number % 5 == 1 and i == j == 2):
                continue
            final = 1.6 - 0.02 * number + 0.03 * (i - best) ** 2 - 0.01 * j + rng.gauss(0, 0.001)
            config = {"model_name": model, "learning_rate": rate, "lora_rank": rank}
            sweep.run(config, 0, written.curve(final, steps=12, every=6))
    sweep.save()
    return ["blocks35"]


def saturated(root: Path) -> list[str]:
    """Write an accuracy on 200 questions; several cells answer all of them."""
    rng = random.Random(5)
    sweep = started(root, "saturated", {"learning_rate": [1e-4, 3e-4, 1e-3, 3e-3]}, 3, ACCURACY)
    for rate, missed in ((1e-4, 9.0), (3e-4, 0.0), (1e-3, 0.0), (3e-3, 0.7)):
        for seed in range(3):
            end = 1 - min(round(abs(rng.gauss(missed, missed / 3))), 200) / 200
            rows = [
                {
                    "step": s,
                    "train/loss": 2 * math.exp(-s / 8) + rng.gauss(0, 0.02),
                    "test/accuracy": max(round(200 * end * s / 40 - 3 * rng.random()), 0) / 200,
                }
                for s in range(0, 41, 2)
            ]
            rows[-1]["test/accuracy"] = end
            sweep.run({"learning_rate": rate}, seed, rows)
    sweep.save()
    return ["saturated"]


def crashes(root: Path) -> list[str]:
    """Write four cells: one is best by the two of its five seeds that did not crash; one has a run
    that diverges."""
    rng = random.Random(6)
    sweep = started(root, "crashes", {"learning_rate": [1e-4, 3e-4, 1e-3, 3e-3]}, 5)
    for rate, mean in ((1e-4, 0.70), (3e-4, 0.52), (1e-3, 0.45), (3e-3, 0.60)):
        for seed in range(5):
            rows = written.curve(mean + rng.gauss(0, 0.02), steps=40, every=10)
            if rate == 1e-3 and seed in (1, 3, 4):
                log = "step 17\nRuntimeError: CUDA out of memory\n"
                sweep.run(
                    {"learning_rate": rate}, seed, rows[:18], "failed", reason="error", log=log
                )
                continue
            if rate == 3e-3 and seed == 2:
                for row in rows[25:]:
                    row.update({key: math.nan for key in row if key != "step"})
            sweep.run({"learning_rate": rate}, seed, rows)
    sweep.save()
    return ["crashes"]


def confirmation(root: Path) -> list[str]:
    """Write a sweep of eight cells, and a second one with its two best cells on fresh seeds."""
    rng = random.Random(7)
    rates = [1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    means = dict(zip(rates, (0.9, 0.8, 0.7, 0.6, 0.57, 0.65, 0.75, 0.95), strict=True))
    for name, tried, seeds in (
        ("first", rates, range(3)),
        ("first-confirm", rates[3:5], range(3, 11)),
    ):
        sweep = started(root, name, {"learning_rate": tried}, len(seeds))
        for rate in tried:
            for seed in seeds:
                rows = written.curve(means[rate] + rng.gauss(0, 0.03), steps=40, every=10)
                sweep.run({"learning_rate": rate}, seed, rows)
        sweep.save()
    return ["first", "first-confirm"]


def tasks(root: Path) -> list[str]:
    """Write five tasks with results by item, as in tinker-cookbook's EvalStore."""
    rng = random.Random(8)
    metric = {"name": "eval/gsm8k/score", "goal": "maximize", "at": "last"}
    names = ("gsm8k", "ifeval", "math500", "mbpp", "gpqa")
    sweep = started(root, "tasks", {"data": ["base", "filtered", "synthetic"]}, 2, metric)
    hard = {name: [rng.gauss(0, 1.6) for _ in range(120)] for name in names}
    for data, skill in (("base", 0.4), ("filtered", 0.9), ("synthetic", 1.1)):
        for seed in range(2):
            scores: dict[str, list[float]] = {
                name: [
                    float(rng.random() < 1 / (1 + math.exp(hardness - skill)))
                    for hardness in hard[name]
                ]
                for name in names
            }
            rows = [
                {"step": step, "train/loss": 2 - step / 30}
                | {
                    f"eval/{name}/score": sum(hardness) / len(hardness) * (0.5 + step / 60)
                    for name, hardness in scores.items()
                    if step % 10 == 0
                }
                | {f"eval/{name}/num_examples": 120 for name in names if step % 10 == 0}
                for step in range(31)
            ]
            run = sweep.run({"data": data}, seed, rows)
            for name, hardness in scores.items():
                eval_store(sweep.folder / "runs" / f"{run}.1", name, hardness)
    sweep.save()
    return ["tasks"]


def terminal(root: Path) -> list[str]:
    """Write episodes in a shell on eight tasks: one always solved, one never, two that distinguish
    cells; failed environments, and an episode abandoned because of them."""
    rng = random.Random(9)
    sweep = started(root, "terminal", {"learning_rate": [5e-4, 2e-3, 8e-3]}, 3, REWARD)
    hard = {
        **{"unpack-archive": 0.95, "count-words": 0.8, "sum-ledger": 0.6, "join-tables": 0.9},
        **{"fix-service": 0.8, "rotate-logs": 0.25, "sort-names": 0.7, "prove-the-theorem": 0.0},
    }
    for rate, skill in ((5e-4, 0.05), (2e-3, 0.95), (8e-3, 0.5)):
        for seed in range(3):
            rows = [
                {"step": s, "env/all/reward/total": skill * s / 40 + rng.gauss(0, 0.01)}
                | {"time/total": 9.0, "num_tokens": 2048}
                for s in range(41)
            ]
            run = sweep.run({"learning_rate": rate}, seed, rows)
            for iteration in (0, 20, 40):
                played = [
                    (task, share * (skill if task in ("fix-service", "join-tables") else 1))
                    for task, share in hard.items()
                ]
                episodes(sweep, run, iteration, played, rng)
    sweep.save()
    return ["terminal"]


def episodes(
    sweep: Any, run: str, iteration: int, tasks: Sequence[tuple[str, float]], rng: random.Random
) -> None:
    """Write summaries of eight episodes of each task, as the recipe `terminal` does."""
    lines: list[str] = []
    for group, (task, share) in enumerate(tasks):
        for number in range(8):
            record = {"schema_version": 1, "split": "train", "iteration": iteration}
            record |= {"group_idx": group, "traj_idx": number, "tags": ["terminal", task]}
            record |= episode(task, share * iteration / 40, rng)
            if (group, number, iteration) == (3, 0, 20):
                record["trajectory_metrics"] |= {"environment_failures": 4, "episodes_lost": 1}
            lines.append(json.dumps(record) + "\n")
    folder = sweep.folder / "runs" / f"{run}.1" / f"iteration_{iteration:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train_rollout_summaries.jsonl").write_text("".join(lines))


def episode(task: str, share: float, rng: random.Random) -> dict[str, Any]:
    """Return an episode that is solved with this probability."""
    solved = rng.random() < share
    reward = 1.0 if solved else round(share * rng.random() * 0.5, 2)
    count = rng.randint(2, 5) if solved else 8
    stop = "done" if solved else rng.choice(["max_turns", "max_turns", "context_limit"])
    steps: list[dict[str, Any]] = [
        {
            "step_idx": place,
            "ob_len": 60,
            "ac_len": 12,
            "reward": 0.0,
            "episode_done": place == count - 1,
            "metrics": {"format": 1.0},
            "logs": {"response": "ls -l", "output": "total 0"},
        }
        for place in range(count)
    ]
    steps[0]["logs"] |= {"item": task, "question": f"Please {task}."}
    steps[-1]["reward"] = reward
    about = {"solved": float(solved), "seconds": round(rng.uniform(2, 9) * count / 4, 2)}
    about |= {"environment_failures": int(rng.random() < 0.03), f"stop/{stop}": 1.0}
    record: dict[str, Any] = {"total_reward": reward, "final_reward": 0.0, "final_ob_len": 0}
    return record | {"trajectory_metrics": about, "steps": steps}


def eval_store(folder: Path, benchmark: str, rewards: Sequence[float], run: str = "last") -> None:
    """Write results by item of one benchmark, in the files and formats of tinker-cookbook's
    EvalStore."""
    place = folder / "evals" / "runs" / run / benchmark
    place.mkdir(parents=True)
    lines: list[Mapping[str, Any]] = [
        {
            "idx": index,
            "benchmark": benchmark,
            "example_id": f"{benchmark}-{index:04d}",
            "turns": [
                {"role": "user", "content": f"{benchmark} question {index}", "token_count": 9},
                {"role": "assistant", "content": "an answer", "token_count": 3},
            ],
            "reward": reward,
            "metrics": {"correct": reward},
            "logs": {},
            "error": None,
            "time_seconds": 1.0,
        }
        for index, reward in enumerate(rewards)
    ]
    (place / "trajectories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {
        "name": benchmark,
        "score": sum(rewards) / len(rewards),
        "num_examples": len(rewards),
        "num_correct": sum(reward > 0 for reward in rewards),
    }
    (place / "result.json").write_text(json.dumps(result))


MAKERS: Mapping[str, Callable[[Path], list[str]]] = {
    maker.__name__: maker
    for maker in (
        *(quickstart, grpo, random60, cells184, blocks35),
        *(saturated, crashes, confirmation, tasks, terminal),
    )
}


def make(root: Path, name: str) -> list[str]:
    """Write the sweep or sweeps of an example; returns the ones to analyze, in order."""
    return MAKERS[name](root)


def main() -> None:
    """Write the named examples, or all."""
    from support import chromium

    from sweeper import analysis

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}")
    parser.add_argument("--shots", action="store_true", help="take pictures of the pages")
    given = parser.parse_args()
    pages: dict[str, Path] = {}
    for name in given.names or MAKERS:
        root = given.out / name
        sweeps = root / "sweeps"
        truth = make(sweeps, name) if not sweeps.exists() else None
        names = truth or sorted((p.parent.name for p in sweeps.glob("*/sweep.json")), reverse=True)
        report = analysis.analyze(str(sweeps), names, out=root / "report", pictures=False)
        print(report.verdict, end="\n\n")
        pages[name] = root / "report" / "report.html"
    if given.shots:
        with chromium.Browser() as browser:
            for name, page in pages.items():
                for width, dark in itertools.product((1280, 390), (False, True)):
                    with browser.opened(page, width=width, dark=dark) as opened:
                        shot = given.out / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                        shot.write_bytes(opened.screenshot())
                        print(shot, *opened.errors, sep="\n  ")


if __name__ == "__main__":
    main()
