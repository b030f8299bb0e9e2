"""Compares the estimates of `sweeper plan` for the example grids with their actual usage:

    python tests/bench/estimates.py [--grids quickstart pipeline reward grpo eval]

Each grid is launched twice on its own engine: first without earlier runs, when the recipes make the
estimate, and again with other seeds, when the estimate uses the first launch.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

GRIDS = Path(__file__).resolve().parents[2] / "grids"


class Case(NamedTuple):
    """Overrides of a grid, for fewer and shorter runs, and its seeds in the first and the second
    launch."""

    overrides: tuple[str, ...] = ()
    first: str = "seeds=[0]"
    second: str = "seeds=[1,2]"


CASES = {
    "quickstart": Case(),
    "pipeline": Case((), "sft.seeds=[0,1,2]", "sft.seeds=[3,4,5]"),
    "reward": Case(("max_steps=60", "eval_every=20")),
    "grpo": Case(("max_steps=40", "eval_every=10")),
    "eval": Case((), "seed=0", "seed=1"),
}


def sweeper(folder: Path, *arguments: str) -> str:
    """Return the output of `sweeper`, in its own folder with its own home."""
    ours = {"SWEEPER_HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "config")}
    command = [sys.executable, "-m", "sweeper", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **ours}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"sweeper {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def once(folder: Path, grid: str, name: str, settings: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return the estimate of a launch, and the tokens that it used."""
    text = (GRIDS / f"{grid}.yaml").read_text()
    (folder / f"{name}.yaml").write_text(re.sub(r"(?m)^name: .*$", f"name: {name}", text))
    given = [f"{name}.yaml", *settings]
    planned = json.loads(sweeper(folder, "plan", *given, "--json"))["estimate"]
    sweeper(folder, "launch", *given, "--backend", "local", "--max-parallel", "2", "--wait")
    costs = json.loads(sweeper(folder, "costs", name, "--json"))["total"]
    used = sum(costs[kind] for kind in ("prefill", "cached", "sample", "train"))
    return planned, used


def report(grid: str, knowledge: str, planned: dict[str, Any], used: int) -> None:
    """Print a line of the table."""
    wrong = planned["tokens"] / used - 1
    runs = f"{planned['runs']} of {planned['wanted']}"
    print(
        f"| {grid} | {knowledge} | {runs} | {planned['tokens']:,} | {used:,} | {wrong:+.1%} |",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--grids", nargs="+", default=list(CASES), choices=list(CASES))
    print("| grid | known by | runs | estimated tokens | used tokens | difference |")
    print("|---|---|--:|--:|--:|--:|")
    for grid in options.parse_args().grids:
        case = CASES[grid]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                report(grid, "recipe", *once(folder, grid, "one", (*case.overrides, case.first)))
                report(grid, "runs", *once(folder, grid, "two", (*case.overrides, case.second)))
            finally:
                sweeper(folder, "engine", "stop", "--force")


if __name__ == "__main__":
    main()
