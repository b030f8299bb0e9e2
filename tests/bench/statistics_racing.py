"""Simulates races for seeds (`seeds: {race: 3..10}`) and sweeps whose cells all have 10 seeds.

    python tests/bench/statistics_racing.py [--trials 400] [--only PART_OF_A_ROW]

The rule is the launcher's, and the verdict is the report's. `named`: one cell is named alone;
`right`: and it is the best; `runs`: the race's share of the fixed sweep's runs. The same trials
give the same table.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from statistics_coverage import Floats, alone
from statistics_worlds import MORE, WORLDS, World, make

from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.reading.frames import SweepData
from sweeper.results.race import contenders, level, next_round
from sweeper.sweep.plan import Race

LEAST, MOST = 3, 10
CELLS = (2, 6, 12, 20)


def race(data: SweepData, sign: float) -> tuple[SweepData, bool]:
    """Return the runs of a sweep that a race starts, and whether it ends with one clear cell."""
    cells = list(dict.fromkeys(run.cell for run in data.runs))
    reached, seeds = dict.fromkeys(cells, LEAST), LEAST
    while True:
        runs = tuple(run for run in data.runs if (run.seed or 0) < reached[run.cell])
        values = {cell: [] for cell in cells}
        for run in runs:
            if run.counts and run.value is not None:
                values[run.cell].append(run.value)
        alive = contenders(values, sign, level(seeds, MOST))
        clear = alive is not None and len(alive) == 1
        if alive is None or clear or seeds == MOST:
            return replace(data, runs=runs, plan=_plan()), clear
        seeds = next_round(seeds, MOST)
        reached |= dict.fromkeys(alive, seeds)


def _plan() -> Any:
    """Return a stand-in for a plan, with the fields that a ranking reads."""
    recipe = SimpleNamespace(seed_field="seed")
    plan = {"launches": (), "recipe": recipe, "unseeded": False, "race": Race(LEAST, MOST)}
    return SimpleNamespace(**plan, grid_text="", overrides=())


def _outcome(ranking: Ranking, best: set[str]) -> tuple[bool, bool]:
    """Return whether one cell is named alone, and whether it is the only best."""
    named = alone(ranking)
    return named, named and ranking.best is not None and {ranking.best.name} == best


def row(world: World, means: Floats, trials: int) -> list[str]:
    """Return the figures of one kind of sweep; `means` are in standard deviations."""
    rng = np.random.default_rng([41, len(means), *np.abs(10 * means).astype(int).tolist()])
    best = {str(at) for at in np.flatnonzero(means == means.min())}
    raced, fixed, used, clear = np.zeros(2), np.zeros(2), 0.0, 0
    for _ in range(trials):
        data = make(rng, world, len(means), MOST, means).data
        mine, ended = race(data, data.sign)
        raced += _outcome(rank(mine), best)
        fixed += _outcome(rank(data), best)
        used += len(mine.runs) / len(data.runs)
        clear += ended
    shares = (*raced, *fixed, used, clear)
    return [f"{100 * share / trials:.1f}" for share in shares]


def kinds() -> Iterator[tuple[str, World, Floats]]:
    """Yield the kinds of sweeps: equal cells, two best among others, and one that leads."""
    for cells in CELLS:
        yield f"{cells} equal cells", WORLDS["normal"], np.zeros(cells)
    for cells in CELLS[1:]:
        means = np.ones(cells)
        means[:2] = 0
        yield f"{cells} cells, two are best, by 1 sd", WORLDS["normal"], means
    for lead in (1.0, 2.0, 3.0):
        for cells in CELLS:
            means = np.zeros(cells)
            means[-1] = -lead
            yield f"{cells} cells, one leads by {lead:g} sd", WORLDS["normal"], means
    for lead in (1.0, 2.0):
        means = np.zeros(6)
        means[-1] = -lead
        name = f"6 cells on seeds that share 0.8, one leads by {lead:g} sd"
        yield name, WORLDS["shared seeds .8"], means
    every = WORLDS | MORE
    for name in (name for name in every if name != "normal"):
        yield f"6 equal cells, {name}", every[name], np.zeros(6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    given = parser.parse_args()
    print("| | raced: named | right | fixed: named | right | runs | ended clear |")
    print("|---|---|---|---|---|---|---|")
    for name, world, means in kinds():
        if given.only in name:
            figures = row(world, means, given.trials)
            print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
