"""Measures the quality of the report's statistics by simulation.

    python tests/bench/statistics_coverage.py [--trials 400]

Prints tables, by the noise between seeds, its amount and the number of cells: false lone winners
among equal cells, whether the best is in the set that cannot be told from it, and how often
intervals contain the truth, for any cell and for the chosen one; how often a better cell is named
alone (power), also on seeds that all cells share; the effect of early looks and of added seeds;
then differences of two cells, and statements about axes and questions (`statistics_axes`,
`statistics_items`). All by the report's own functions. `statistics_worlds.py` has the kinds of
noise, and counts sentences. The same trials give the same tables.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from statistics_worlds import MORE, WORLDS, Made, World, make, shared

from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.reading.frames import SweepData
from sweeper.analysis.statistics.inference import contrast, paired, wilson
from sweeper.analysis.statistics.noise import fit_noise
from sweeper.analysis.statistics.seeds import against_best

Floats = NDArray[np.float64]

PARTS = ("noise", "power", "shared", "looks", "differences", "others")
SEEDS = (2, 3, 5)
CELLS = (2, 6, 12, 20)


class Shares(NamedTuple):
    """Shares of sweeps: a lone winner is wrong, or right; a given cell is in the set of those that
    may be the best; intervals hold, of any cell, of the chosen one, and of a lone winner."""

    wrong: float
    right: float
    best_kept: float
    any: float
    chosen: float
    lone: float


def alone(ranking: Ranking) -> bool:
    """Return whether one cell is named alone, and the report does not warn that it has too few
    runs."""
    best, apart = ranking.best, ranking.apart
    if best is None or not ranking.comparisons or ranking.tied or ranking.not_compared or not apart:
        return False
    runs = min(best.summary.n, *(cell.summary.n for cell in apart))
    return runs > 2 or (ranking.noise.shared and runs > 1)


def measure(world: World, cells: int, seeds: int, trials: int, means: Floats) -> Shares:
    """Simulate sweeps; `means` are in standard deviations, less is better."""
    rng = np.random.default_rng([cells, seeds, *np.abs(10 * means).astype(int).tolist()])
    wrong = right = best_kept = given = held = counted = every = total = lone = lone_held = 0
    for _ in range(trials):
        data, truth, _ = make(rng, world, cells, seeds, means)
        ranking = rank(data)
        best = ranking.best
        if best is None:
            continue
        true = truth[int(best.name)]
        correct = true == truth.min() and (truth == true).sum() == 1
        named = alone(ranking)
        wrong, right = wrong + (named and not correct), right + (named and correct)
        given += 1
        best_kept += "0" not in {cell.name for cell in ranking.apart}
        for cell in ranking.measured:
            low, high = cell.summary.low, cell.summary.high
            if low is not None and high is not None:
                fine = low <= abs(truth[int(cell.name)]) <= high
                every, total = every + fine, total + 1
                if cell is best:
                    held, counted = held + fine, counted + 1
                    lone, lone_held = lone + named, lone_held + (named and fine)
    parts = (best_kept, given), (every, total), (held, counted), (lone_held, lone)
    return Shares(wrong / trials, right / trials, *(a / b if b else math.nan for a, b in parts))


def _shown(*values: float) -> str:
    return " / ".join("-" if math.isnan(value) else f"{100 * value:.1f}" for value in values)


def _table(head: str, rows: Iterator[tuple[str, list[str]]], columns: list[str]) -> None:
    print(f"\n{head}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, row in rows:
        print(f"| {name} | {' | '.join(row)} |", flush=True)


def by_noise(trials: int) -> None:
    """Simulate equal cells."""

    def rows() -> Iterator[tuple[str, list[str]]]:
        for name, world in (WORLDS | MORE).items():
            for cells in CELLS:
                shares = [measure(world, cells, n, trials, np.zeros(cells)) for n in SEEDS]
                yield (
                    f"{name}, {cells} cells",
                    [
                        _shown(share.wrong, share.best_kept, share.any, share.chosen)
                        for share in shares
                    ],
                )

    head = (
        "Equal cells, %: a lone winner / the set holds a given cell / intervals hold, of any cell"
    )
    _table(f"{head} / of the chosen one", rows(), [f"n = {n}" for n in SEEDS])


def _lead(cells: int, lead: float) -> Floats:
    return -lead * (np.arange(cells) == 0)


def power(trials: int) -> None:
    """Simulate one cell ahead, with normal noise."""

    def rows() -> Iterator[tuple[str, list[str]]]:
        for cells in CELLS:
            for lead in (1.5, 2, 3, 4):
                shares = [
                    measure(WORLDS["normal"], cells, n, trials, _lead(cells, lead)) for n in SEEDS
                ]
                yield (
                    f"{cells} cells, {lead} sd ahead",
                    [_shown(share.right, share.wrong, share.lone) for share in shares],
                )

    head = "One cell ahead, normal noise, %: named alone / another is / its interval holds then"
    _table(head, rows(), [f"n = {n}" for n in SEEDS])


def on_shared_seeds(trials: int) -> None:
    """Simulate one cell ahead, and equal cells, on seeds that all cells share."""
    rhos = (0.0, 0.5, 0.8, 0.95)

    def rows() -> Iterator[tuple[str, list[str]]]:
        for cells, seeds in ((6, 5), (12, 3), (2, 5)):
            worlds = [World(shared(rho)) for rho in rhos]
            yield (
                f"{cells} cells, n = {seeds}",
                [
                    _shown(
                        measure(world, cells, seeds, trials, _lead(cells, 1)).right,
                        measure(world, cells, seeds, trials, np.zeros(cells)).wrong,
                    )
                    for world in worlds
                ],
            )

    head = "Shared seeds, one cell ahead by 1 sd, %: named alone / a lone winner among equal cells"
    _table(head, rows(), [f"correlation {rho}" for rho in rhos])


Order = Callable[[np.random.Generator, int], NDArray[np.int_]]


def _in_order(rng: np.random.Generator, count: int) -> NDArray[np.int_]:
    return np.arange(count)


def _at_random(rng: np.random.Generator, count: int) -> NDArray[np.int_]:
    return rng.permutation(count)


def _done(data: SweepData, done: set[str]) -> SweepData:
    runs = tuple(r if r.id in done else replace(r, state="running", value=None) for r in data.runs)
    return replace(data, runs=runs)


def looks(trials: int, numbers: tuple[int, ...]) -> None:
    """Simulate equal cells that are ranked after each run, and seeds that are added."""

    def while_open() -> Iterator[tuple[str, list[str]]]:
        for cells, seeds in ((c, n) for c, n in ((2, 5), (3, 5), (12, 3)) if c in numbers):
            for name, by_cell, order in (
                ("seed by seed", False, _in_order),
                ("cell by cell", True, _in_order),
                ("in random order", False, _at_random),
            ):
                rng = np.random.default_rng([31, cells, seeds])
                ever = last = 0
                for _ in range(trials):
                    data = make(rng, WORLDS["normal"], cells, seeds, np.zeros(cells)).data
                    runs = data.runs if by_cell else sorted(data.runs, key=lambda r: r.seed or 0)
                    places = order(rng, len(runs))
                    ids = [runs[place].id for place in places]
                    early = any(
                        alone(rank(_done(data, set(ids[:count]))))
                        for count in range(2 * cells - 1, len(ids))
                    )
                    end = alone(rank(data))
                    ever, last = ever + (early or end), last + end
                yield f"{cells} cells, n = {seeds}, {name}", [_shown(ever / trials, last / trials)]

    _table("Looked at after each run, equal cells, %", while_open(), ["ever named / at the end"])

    def added() -> Iterator[tuple[str, list[str]]]:
        for cells in numbers:
            rng = np.random.default_rng([32, cells])
            ever = last = 0
            for _ in range(trials):
                made = make(rng, WORLDS["normal"], cells, 10, np.zeros(cells))
                verdicts = [alone(rank(_grown(made, count))) for count in range(2, 11)]
                ever, last = ever + any(verdicts), last + verdicts[-1]
            yield f"{cells} cells", [_shown(ever / trials, last / trials)]

    _table("A seed more for all cells, from 2 to 10, equal cells, %", added(), ["ever / at 10"])

    def cost() -> Iterator[tuple[str, list[str]]]:
        for cells in numbers:
            rng = np.random.default_rng([33, cells])
            made = [make(rng, WORLDS["normal"], cells, 10, np.zeros(cells)) for _ in range(trials)]
            once, grown = (
                float(np.quantile([_least_lead(sweep, added) for sweep in made], 0.8))
                for added in (False, True)
            )
            yield f"{cells} cells, 10 seeds", [f"{once:.2f} / {grown:.2f} / {grown / once:.3f}"]

    head = "The lead found in 4 of 5 sweeps, in sd: one look / seeds added from 2 to 10 / ratio"
    _table(head, cost(), ["leads"])


def _least_lead(made: Made, added: bool) -> float:
    """Return the smallest lead, to 0.01 sd, with which the first cell is named alone."""
    data = _grown(made, 10) if added else made.data
    low, high = 0.0, 10.24
    while high - low > 0.01:
        middle = (low + high) / 2
        runs = tuple(
            replace(run, value=(run.value or 0.0) - middle) if run.cell == "0" else run
            for run in data.runs
        )
        ranking = rank(replace(data, runs=runs))
        right = alone(ranking) and ranking.best is not None and ranking.best.name == "0"
        low, high = (low, middle) if right else (middle, high)
    return high


def _grown(made: Made, seeds: int) -> SweepData:
    """Return the sweep with only its first seeds, as if all seeds after the first two had been
    added one by one."""
    runs = tuple(run for run in made.data.runs if (run.seed or 0) < seeds)
    launches = tuple({"seeds": count} for count in range(2, seeds))
    # The fields of a plan that a ranking reads.
    recipe = SimpleNamespace(seed_field="seed")
    settings = {"launches": launches, "recipe": recipe, "unseeded": False, "race": None}
    plan: Any = SimpleNamespace(**settings, grid_text="", overrides=())
    return replace(made.data, runs=runs, plan=plan)


def from_best(sweeps: int) -> None:
    """Test whether the intervals of all differences from the best contain the truth at once, with
    the real functions."""
    print("| cells | truth | n = 2 | n = 3 | n = 5 | n = 3, each its own noise |")
    print("|---|---|---|---|---|---|")
    rng = np.random.default_rng(12)
    for cells in (2, 3, 6, 12, 20):
        truths = {
            "all equal": np.zeros((sweeps, cells)),
            "one ahead by 2 sd": np.tile(2.0 * (np.arange(cells) == 0), (sweeps, 1)),
            "spread with sd 1": rng.normal(0, 1, (sweeps, cells)),
        }
        for name, truth in truths.items():
            row: list[str] = []
            for seeds, noise in ((2, "auto"), (3, "auto"), (5, "auto"), (3, "own")):
                values = rng.normal(0, 1, (sweeps, cells, seeds)) + truth[:, :, np.newaxis]
                both = zip(values, truth, strict=True)
                held = [_all_hold(drawn, real, noise == "own") for drawn, real in both]
                row.append(f"{100 * float(np.mean(held)):.1f}")
            print(f"| {cells} | {name} | {' | '.join(row)} |")


def _all_hold(values: Floats, truth: Floats, own_noise: bool) -> bool:
    groups = {str(cell): each.tolist() for cell, each in enumerate(values)}
    best = int(values.mean(axis=1).argmax())
    noise = fit_noise(groups, "own" if own_noise else "auto")
    comparisons = against_best(groups, str(best), noise, -1.0)
    ends = {int(cell): comparison.interval() for cell, comparison in comparisons.items()}
    return all(low <= truth[cell] - truth[best] <= high for cell, (low, high) in ends.items())


def differences(trials: int) -> None:
    """Simulate differences (Welch, paired), a marginal mean over four cells, and a share."""
    print("| | n = 3 | n = 5 | n = 10 |")
    print("|---|---|---|---|")
    for title, function in (
        ("difference of two cells (Welch), sd 1 and 2", _welch),
        ("the same on shared seeds (paired)", _paired),
        ("marginal mean over 4 cells, sd 1 to 4", _marginal),
    ):
        row = [f"{100 * function(n, trials):.1f}" for n in (3, 5, 10)]
        print(f"| {title} | {' | '.join(row)} |")
    held = [f"{100 * _wilson(p, trials):.1f}" for p in (0.02, 0.2, 0.5)]
    print(f"\nWilson's interval of 24 trials at 2 %, 20 %, 50 %: {', '.join(held)} %")


def _holds(trials: int, truth: float, draw: Callable[[], Any]) -> float:
    """Return how often an interval holds the truth; `draw` makes an interval from new data."""
    held = 0
    for _ in range(trials):
        interval = draw()
        if interval.low is not None and interval.high is not None:
            held += interval.low <= truth <= interval.high
    return held / trials


def _welch(n: int, trials: int) -> float:
    rng = np.random.default_rng([2, n])
    return _holds(
        trials,
        -2,
        lambda: contrast([rng.normal(1, 1, n).tolist(), rng.normal(3, 2, n).tolist()], [1, -1]),
    )


def _paired(n: int, trials: int) -> float:
    rng = np.random.default_rng([3, n])

    def draw() -> Any:
        shared = rng.normal(0, 3, n)
        first, second = shared + rng.normal(1, 1, n), shared + rng.normal(3, 2, n)
        return paired(dict(enumerate(first)), dict(enumerate(second)))

    return _holds(trials, -2, draw)


def _marginal(n: int, trials: int) -> float:
    rng = np.random.default_rng([4, n])

    def draw() -> Any:
        return contrast(
            [rng.normal(level, level, n).tolist() for level in (1, 2, 3, 4)], [0.25] * 4
        )

    return _holds(trials, 2.5, draw)


def _wilson(share: float, trials: int) -> float:
    rng = np.random.default_rng([5, round(share * 100)])
    held = 0
    for count in rng.binomial(24, share, trials):
        low, high = wilson(int(count), 24)
        held += low <= share <= high
    return held / trials


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--cells", type=int, nargs="+", default=[2, 3, 6, 12], help="of looks")
    given = parser.parse_args()
    trials, only = given.trials, given.only
    print(f"{trials} sweeps a figure")
    with np.errstate(all="ignore"):
        if only in (None, "noise"):
            by_noise(trials)
        if only in (None, "power"):
            power(trials)
        if only in (None, "shared"):
            on_shared_seeds(trials)
        if only in (None, "looks"):
            looks(trials, tuple(given.cells))
    if only in (None, "differences"):
        print("\nThe intervals of all differences from the best hold the truth at once, %\n")
        from_best(trials)
        print("\nDifferences: 95 % intervals that hold the truth, %\n")
        differences(5 * trials)
    if only in (None, "others"):
        import statistics_axes  # in this folder
        import statistics_items

        statistics_items.measure(trials)
        statistics_axes.tables(trials)


if __name__ == "__main__":
    main()
