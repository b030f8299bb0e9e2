"""Measures the cost of a grid in other tools: expanding it, and checking each configuration as
they do.

    python tests/bench/grid_peers.py [POINTS ...]          all tools, 1,000 and 10,000 points
    python tests/bench/grid_peers.py --only TOOL POINTS    one tool, in this interpreter

Each tool runs in a separate process and its own environment: sweeper in this one, SEML and Hydra in
`.venv-peers` (`make peers`), tinker-cookbook in `.venv-cookbook` (`make cookbook`), or by the
Pythons that $PEERS_PYTHON and $COOKBOOK_PYTHON name. A missing tool is skipped with a message.
Figures are processor time with that of child processes, the best of three rounds (one for Hydra),
without imports of the tools. The grid is the same for all: three axes.

sweeper    the plan: expanded, named, identified, each configuration parsed by its recipe's chz
cookbook   tinker_cookbook.recipes.chat_sl.sweep: grid, default_run_name, chz.replace of a CLIConfig
SEML       seml.experiment.config: generate_configs, check_config against a Sacred experiment
Hydra      basic sweeper: OverridesParser, split_arguments; then compose for each point, structured
           config; about 200 points, since each takes milliseconds
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST = {"hydra": 200}
_PEERS = os.environ.get("PEERS_PYTHON", str(ROOT / ".venv-peers/bin/python"))
PYTHONS = {
    "sweeper": sys.executable,
    "cookbook": os.environ.get("COOKBOOK_PYTHON", str(ROOT / ".venv-cookbook/bin/python")),
    **dict.fromkeys(("seml", "hydra"), _PEERS),
}
MAKE = {"cookbook": "cookbook", "seml": "peers", "hydra": "peers"}


def axes(points: int) -> dict[str, list[Any]]:
    """Return three axes whose product is about this many points."""
    side = round(points ** (1 / 3))
    return {
        "learning_rate": [1e-5 * (n + 1) for n in range(side)],
        "lora_rank": list(range(1, side + 1)),
        "batch_size": list(range(1, side + 1)),
    }


def seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    """Return the processor time of the quickest of some rounds."""
    taken: list[float] = []
    for _ in range(rounds):
        before = _used()
        work()
        taken.append(_used() - before)
    return min(taken)


def _used() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def sweeper(points: int) -> tuple[int, float]:
    from sweeper.planner.plan import plan

    base = {"model_name": "tiny/qwen3", "task": "sorting"}
    grid = {"name": "bench", "recipe": "sft", "base": base, "grid": axes(points)}
    return len(plan(grid).runs), seconds(lambda: plan(grid))


def cookbook(points: int) -> tuple[int, float]:
    import chz
    from tinker_cookbook.recipes.chat_sl.sweep import default_run_name, grid
    from tinker_cookbook.recipes.chat_sl.train import CLIConfig

    base = CLIConfig(model_name="Qwen/Qwen3-8B")

    def work() -> int:
        made = grid(axes(points))
        for overrides in made:
            chz.replace(base, **overrides, log_path=f"x/{default_run_name(overrides)}")
        return len(made)

    return work(), seconds(work)


SACRED = """
import sacred
ex = sacred.Experiment(save_git_info=False)

@ex.automain
def run(learning_rate: float, lora_rank: int, batch_size: int):
    pass
"""


def seml(points: int) -> tuple[int, float]:
    from seml.experiment.config import check_config, generate_configs

    grid = {key: {"type": "choice", "options": values} for key, values in axes(points).items()}

    def work(folder: str) -> int:
        configs = generate_configs({"grid": grid})
        check_config("bench_experiment.py", None, configs, folder)
        return len(configs)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_experiment.py").write_text(textwrap.dedent(SACRED))
        return work(folder), seconds(lambda: work(folder))


def hydra(points: int) -> tuple[int, float]:
    from dataclasses import dataclass

    from hydra import compose, initialize
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.config_store import ConfigStore
    from hydra.core.override_parser.overrides_parser import OverridesParser

    @dataclass
    class Config:
        learning_rate: float = 1e-4
        lora_rank: int = 8
        batch_size: int = 32

    ConfigStore.instance().store(name="config", node=Config)
    given = [f"{key}={','.join(map(str, values))}" for key, values in axes(points).items()]

    def work() -> int:
        overrides = OverridesParser.create().parse_overrides(overrides=given)
        batches = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        for point in batches[0]:
            compose(config_name="config", overrides=list(point))
        return len(batches[0])

    with initialize(version_base=None, config_path=None):
        return work(), seconds(work, 1)


TOOLS = {"sweeper": sweeper, "cookbook": cookbook, "seml": seml, "hydra": hydra}


def row(tool: str, points: int) -> str | None:
    """Return a line of the table; None if the tool is missing."""
    python = PYTHONS[tool]
    if not Path(python).exists():
        print(f"SKIPPED: {tool} is not there ({python}): `make {MAKE[tool]}`", file=sys.stderr)
        return None
    points = min(points, MOST.get(tool, points))
    done = subprocess.run(
        [python, __file__, "--only", tool, str(points)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"SKIPPED: {tool}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    count, taken = done.stdout.split()[-2:]
    return (
        f"| {tool} | {int(count):,} | {float(taken):.2f} | {float(taken) / int(count) * 1e6:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("points", nargs="*", type=int, default=[1_000, 10_000])
    parser.add_argument("--only", choices=TOOLS)
    given = parser.parse_args()
    if given.only:
        count, taken = TOOLS[given.only](given.points[0])
        print(count, taken)
        return
    print("| tool | points | processor time, s | us per point |\n|---|---|---|---|")
    for points in given.points:
        for tool in TOOLS:
            if points == given.points[0] or tool not in MOST:
                line = row(tool, points)
                if line is not None:
                    print(line, flush=True)


if __name__ == "__main__":
    main()
