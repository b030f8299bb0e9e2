"""Measures by simulation what reports say first, and what they advise.

    python tests/bench/statistics_advice.py [--trials 400] [--only PART_OF_A_HEAD]

The tables are about: cells with noisier evaluations or shorter runs, which must not be clear
winners; advice about seeds, and about the ends of axes in blocks; the cost of a next grid; three
rounds on fresh seeds; the interval of a best cell that was only just named; intervals over several
tasks; runs that seem to lose what they learned. If a plan is needed, sweeps are written into a
store and read as `sweeper analyze` does. All cells are equal unless the row's label says otherwise.
"""

import argparse
import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import statistics_axes
from numpy.typing import NDArray
from statistics_coverage import alone
from statistics_worlds import WORLDS, Written, make, through_files

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.comparison.tasks import interquartile_mean, interval
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import SweepData, judged_by, load
from sweeper.analysis.statistics.seeds import only_just
from sweeper.results.registry import Registry

Floats = NDArray[np.float64]
Row = tuple[str, list[float]]


def _at(data: SweepData, at: str) -> SweepData:
    assert data.metric is not None
    metric = replace(data.metric, at=at)
    runs = tuple(replace(run, **judged_by(run.curves, metric)) for run in data.runs)
    return replace(data, metric=metric, runs=runs)


def _kinds(report: Study) -> set[str]:
    return {finding.kind for finding in report.findings}


def noisier(trials: int) -> Iterator[Row]:
    """Yield the share of sweeps in which one of two cells is a clear winner by its best evaluation,
    and the share in which the report warns that evaluations are noisier."""
    for ratio in (1.0, 1.5, 2.0, 3.0):
        rng = np.random.default_rng([51, round(10 * ratio)])
        clear = advised = 0
        for _ in range(trials):
            drawn = 20 + rng.normal(0, 1, (2, 5, 30)) * np.array([1, ratio])[:, None, None]
            cells = [({"lr": 10.0**-at}, values.tolist()) for at, values in enumerate(drawn)]
            report = study(_at(statistics_axes.sweep(cells), "best"))
            clear += report.verdict.kind == "clear"
            advised += bool({"noisier_best", "maybe_noisier"} & _kinds(report))
        shares = [clear / trials, advised / trials]
        yield (
            f"`at: best`, the noise of one cell's evaluations is {ratio:g} times the other's",
            shares,
        )


def shorter(trials: int) -> Iterator[Row]:
    """Yield how often one cell is a clear winner although half of the cells ended at 60 of 100
    steps, and how often the report says that they ended at different steps."""
    for cells in (2, 6, 12):
        rng = np.random.default_rng([52, cells])
        clear = advised = 0
        for _ in range(trials):
            curves: list[tuple[dict[str, float], Any]] = []
            for at in range(cells):
                steps = np.arange(60 if at % 2 else 100)
                ends = 100 * np.exp(-steps / 30) + 20
                drawn: Any = ends + rng.normal(0, 1, (3, 1))
                curves.append(({"lr": 10.0**-at}, drawn.tolist()))
            report = study(statistics_axes.sweep(curves))
            clear += report.verdict.kind == "clear"
            advised += "unequal_steps" in _kinds(report)
        yield f"half of {cells} cells end at 60 of 100 steps", [clear / trials, advised / trials]


def in_blocks(trials: int) -> Iterator[Row]:
    """Yield the share of sweeps whose report advises to extend an axis in some block, and the share
    in which a test finds an edge."""
    rng = np.random.default_rng([53])
    advised = named = 0
    for _ in range(trials):
        cells: list[tuple[dict[str, Any], Any]] = [
            ({"model": f"m{model}", "lr": lr, "rank": rank_}, 20 + rng.normal(0, 1, (3, 1)))
            for model in range(6)
            for lr in (1e-4, 3e-4, 1e-3, 3e-3)
            for rank_ in (8, 16, 32)
        ]
        data = statistics_axes.sweep(cells)
        assert data.metric is not None
        report = study(replace(data, metric=replace(data.metric, by="model")))
        advised += any(step.startswith("Try ") for step in report.verdict.steps)
        blocks = report.blocks.blocks if report.blocks else ()
        named += any(edge.told for block in blocks for edge in block.edges)
    yield "6 models, each with 4 x 3 cells, n = 3", [advised / trials, named / trials]


def advised_seeds(trials: int) -> Iterator[Row]:
    """Yield how often a lead of 1 or 2 standard deviations is found with the advised number of
    seeds, and a hundredth of the mean of that number."""
    for cells in (2, 3, 6, 12):
        for lead in (1.0, 2.0):
            rng = np.random.default_rng([54, cells, round(lead)])
            right, total, seeds = 0, 0, 0
            means = -lead * (np.arange(cells) == 0)
            while total < trials:
                data = make(rng, WORLDS["normal"], cells, 3, np.zeros(cells)).data
                assert data.metric is not None
                needed = study(replace(data, metric=replace(data.metric, relevant=lead))).needed
                if needed is None:
                    continue
                fresh = make(rng, WORLDS["normal"], cells, needed, means).data
                ranking = rank(fresh)
                right += alone(ranking) and ranking.best is not None and ranking.best.name == "0"
                total, seeds = total + 1, seeds + needed
            yield f"{cells} cells, {lead:g} sd is relevant", [right / total, seeds / total / 100]


def next_grids(trials: int) -> Iterator[Row]:
    """Yield how often a next grid of equal cells costs more than three times its sweep, and the
    largest cost as a share of ten times the sweep."""
    for cells in (2, 3, 6):
        rng = np.random.default_rng([55, cells])
        costs: list[float] = []
        for _ in range(trials):
            data = make(rng, WORLDS["normal"], cells, 3, np.zeros(cells)).data
            with tempfile.TemporaryDirectory() as folder:
                following = through_files(data, Path(folder)).next
            costs.append(0.0 if following is None else following.runs / len(data.runs))
        over = float(np.mean(np.array(costs) > 3))
        yield f"next.yaml of {cells} cells, n = 3, through files", [over, max(costs) / 10]


def rounds(trials: int) -> Iterator[Row]:
    """Yield how often three rounds of the same cells are not recognised as one study, and how often
    they name a lone winner."""
    names = ["a", "a-confirm", "a-confirm-confirm"]
    for cells in (2, 6):
        rng = np.random.default_rng([56, cells])
        counts: Counter[str] = Counter()
        for _ in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                for number, name in enumerate(names):
                    sweep = Written(Path(folder), name, {"lr": list(range(cells))})
                    for lr in range(cells):
                        for seed in range(3 * number, 3 * number + 3):
                            value = 20 + float(rng.normal())
                            sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": value}])
                    sweep.save()
                ranking = rank(load(Registry(folder), names, None, None))
            counts["apart"] += len(ranking.cells) != cells or ranking.price != 2
            counts["lone"] += alone(ranking)
        shares = [counts["apart"] / trials, counts["lone"] / trials]
        yield f"three rounds of {cells} cells, n = 3, through files", shares


def just_named(trials: int) -> Iterator[Row]:
    """Yield four shares about a best cell that was only just named: how often its interval holds,
    how many sweeps have such a best, how often its true value is worse by no more than the report
    says, and how often it is worse at all."""
    ways: list[tuple[str, Callable[[np.random.Generator, int], Floats]]] = [
        (f"one leads by {lead:g} sd", functools.partial(_leads, lead)) for lead in (1.5, 2.0, 3.0)
    ]
    ways.append(("means spread by 1 sd", lambda rng, cells: rng.normal(0, 1, cells)))
    for cells, (way, means) in itertools.product((2, 6, 12), ways):
        rng = np.random.default_rng([57, cells, *way.encode()])
        held = within = worse = named = total = 0
        while named < trials:
            total += 1
            data, truth, _ = make(rng, WORLDS["normal"], cells, 3, means(rng, cells))
            ranking = rank(data)
            best = ranking.best
            if best is None or not only_just(ranking.comparisons):
                continue
            mean, low, high = best.summary.mean, best.summary.low, best.summary.high
            assert mean is not None and low is not None and high is not None
            real = truth[int(best.name)]
            named, held = named + 1, held + (low <= real <= high)
            within, worse = within + (real <= high), worse + (real > mean)
        shares = [held / named, named / total, within / named, worse / named]
        yield f"{cells} cells, n = 3, {way}", shares


def _leads(lead: float, rng: np.random.Generator, cells: int) -> Floats:
    return -lead * (np.arange(cells) == 0)


def several_tasks(trials: int) -> Iterator[Row]:
    """Yield how often the interval of an interquartile mean over 10 tasks holds its true value."""
    for runs in (3, 5):
        rng = np.random.default_rng([58, runs])
        held = 0
        for _ in range(trials):
            levels = rng.uniform(0.2, 0.8, 10)
            truth = interquartile_mean(levels + rng.normal(0, 0.05, (4000, 10)))
            low, high = interval(levels + rng.normal(0, 0.05, (runs, 10)))
            held += low <= truth <= high
        yield f"{runs} runs", [held / trials]


def learning(trials: int) -> Iterator[Row]:
    """Yield how often the report says that a run did not keep its gains, although all runs keep
    learning and only the noise of evaluations has heavy tails."""
    for df in (2, 3):
        for points in (40, 100):
            rng = np.random.default_rng([59, df, points])
            advised = 0
            curve = 20 + 10 * np.exp(-np.arange(points) / (points / 3))
            for _ in range(trials):
                drawn: Any = curve + rng.standard_t(df, (3, 3, points))
                cells = [({"lr": 10.0**-at}, values.tolist()) for at, values in enumerate(drawn)]
                advised += "unstable" in _kinds(study(statistics_axes.sweep(cells)))
            yield f"t{df} noise, {points} values", [advised / trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", default="", help="tables whose head contains this")
    arguments = parser.parse_args()
    for head, table in (
        ("a clear winner, % / the report warns, %", noisier),
        ("a clear winner, % / the report warns, %", shorter),
        ("an end is to be extended in a block, % / a test finds an edge, %", in_blocks),
        ("the lead is found, % (promised: 80) / seeds advised, mean", advised_seeds),
        (
            "costs more than three times its sweep, % / the largest cost, as % of 10 sweeps",
            next_grids,
        ),
        ("not one study, % / a lone winner, %", rounds),
        (
            "only just named: its interval holds, % / sweeps in which it was, % / it loses no more "
            "than the report says, % / it loses at all, %",
            just_named,
        ),
        ("the interval of an interquartile mean over 10 tasks holds, %", several_tasks),
        ("a run that learns is said not to keep its gains, %", learning),
    ):
        if arguments.only not in head:
            continue
        print(f"\n| | {head} |\n|---|---|")
        for name, figures in table(arguments.trials):
            shares = " / ".join(f"{100 * figure:.1f}" for figure in figures)
            print(f"| {name} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
