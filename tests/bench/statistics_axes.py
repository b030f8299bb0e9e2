"""How often the report says something false of axes, and how often something true, by simulation.

    python tests/bench/statistics_axes.py [--trials 1000]

Called by `statistics_coverage.py` as well. Sweeps are made in memory and studied as the report
studies them. "A null sweep" is one in which no setting does anything, so that whatever is said of
one is false.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sweeper.analysis.cells import rank
from sweeper.analysis.frames import Metric, RunData, SweepData
from sweeper.analysis.series import Series
from sweeper.analysis.study import Study, study
from sweeper.analysis.surface import find_surface

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(0, 1, size),
    "t3": lambda rng, size: rng.standard_t(3, size) / 3**0.5,
    "lognormal": lambda rng, size: (np.exp(rng.normal(0, 1, size)) - np.exp(0.5)) / 2.16,
    "bimodal": lambda rng, size: rng.choice([-1.0, 1.0], size) + rng.normal(0, 0.2, size),
    "collapse": lambda rng, size: rng.normal(0, 1, size) + 8 * (rng.random(size) < 0.15),
}


def sweep(
    cells: Sequence[tuple[Mapping[str, Any], Sequence[Sequence[float]]]], goal: str = "minimize"
) -> SweepData:
    """A finished sweep: for each cell its settings and, for each seed, what it recorded."""
    runs: list[RunData] = []
    keys = list(dict.fromkeys(key for settings, _ in cells for key in settings))
    for at, (settings, seeds) in enumerate(cells):
        for seed, values in enumerate(seeds):
            own = np.asarray(values, dtype=float)
            count = len(own)
            curve = Series(np.arange(count, dtype=float), own, np.arange(count))
            best = float(own.min() if goal == "minimize" else own.max())
            runs.append(
                RunData(
                    id=f"{at}.{seed}",
                    name=f"{at},seed={seed}",
                    cell=str(at),
                    seed=seed,
                    config={**settings, "seed": seed},
                    state="succeeded",
                    attempts=1,
                    reason=None,
                    detail=None,
                    wall_s=1.0,
                    value=float(own[-1]),
                    step=float(count - 1),
                    diverged=not np.isfinite(own[-1]),
                    unreadable=0,
                    last=float(own[-1]),
                    best=best,
                    smoothed=float(own[-1]),
                    curves={"test/nll": curve},
                )
            )
    axes = {key: [] for key in keys}
    metric = Metric("test/nll", goal)
    return SweepData("s", None, metric, axes, tuple(runs), {"test/nll": len(runs)}, None, 0)


SAID = ("edge", "trend", "interaction", "effect", "unstable", "identical", "same_curves", "block")
"""Findings that claim something of settings or runs, and are false in a null sweep."""


def said(found: Study) -> set[str]:
    """What a report claims."""
    return {finding.kind for finding in found.findings} & set(SAID)


def null_grid(
    rng: np.random.Generator, shape: Sequence[int], seeds: int, noise: str, points: int = 1
) -> SweepData:
    """Equal cells on a grid of two axes or more."""
    places = list(itertools.product(*(range(1, size + 1) for size in shape)))
    drawn = 20 + NOISES[noise](rng, (len(places), seeds, points))
    named = [{f"x{i}": float(2**at) for i, at in enumerate(place)} for place in places]
    return sweep(list(zip(named, drawn, strict=True)))


def search(
    rng: np.random.Generator, points: int, noise: str, matter: int = 3, seeds: int = 1
) -> SweepData:
    """A random search over eight axes of which the first `matter` do something: a valley over a
    logarithmic axis, a slope, and a category; 1 sd of noise, effects of 1 to 2 sd."""
    cells: list[tuple[dict[str, Any], np.ndarray]] = []
    for _ in range(points):
        own: dict[str, Any] = {"lr": float(10 ** rng.uniform(-5, -2))}
        own["warmup"] = float(rng.uniform(0, 1))
        own["kind"] = str(rng.choice(["a", "b", "c"]))
        own["rank"] = int(rng.choice([4, 8, 16, 32, 64]))
        own["decay"] = float(10 ** rng.uniform(-4, -1))
        own["beta"] = float(rng.uniform(0.8, 0.99))
        own["clip"] = float(rng.uniform(0.5, 2))
        own["flag"] = bool(rng.random() < 0.5)
        level = 20.0
        if matter:
            level += 2.0 * (np.log10(own["lr"]) + 3.5) ** 2
            level += 3.0 * own["warmup"] + {"a": 0.0, "b": 1.5, "c": 1.5}[own["kind"]]
        cells.append((own, level + NOISES[noise](rng, (seeds, 1))))
    return sweep(cells)


NULL_AXES = ("rank", "decay", "beta", "clip", "flag")


def false_in_grids(trials: int) -> None:
    """Tables of what is said of equal cells."""
    print("\nSaid of sweeps in which all cells are equal, % (at most 5 each, 10 for any)\n")
    print("| grid, seeds, noise | " + " | ".join(SAID) + " | any |")
    print("|---|" + "---|" * (len(SAID) + 1))
    cases = [((3, 3), n, "normal") for n in (1, 2, 3, 5, 10)]
    cases += [((3, 3), 3, noise) for noise in NOISES if noise != "normal"]
    cases += [((5, 4), 3, "normal"), ((5, 4), 1, "normal"), ((3, 3, 3), 3, "normal")]
    cases += [((2, 2), 3, "normal"), ((10, 10), 2, "normal")]
    for at, (shape, seeds, noise) in enumerate(cases):
        rng = np.random.default_rng([21, at])
        name = f"{' x '.join(map(str, shape))}, n = {seeds}, {noise}"
        _row(name, (said(study(null_grid(rng, shape, seeds, noise))) for _ in range(trials)))
    for at, (points, seeds) in enumerate([(5, 3), (20, 3), (100, 3), (20, 1)]):
        rng = np.random.default_rng([22, at])
        made = (null_grid(rng, (3, 3), seeds, "normal", points) for _ in range(trials))
        _row(f"3 x 3, n = {seeds}, flat curves of {points} values", (said(study(m)) for m in made))


def _row(name: str, found: Any) -> None:
    counts: Counter[str] = Counter()
    total = 0
    for kinds in found:
        total += 1
        counts.update(kinds)
        counts["any"] += bool(kinds)
    row = [f"{100 * counts[kind] / total:.1f}" for kind in (*SAID, "any")]
    print(f"| {name} | {' | '.join(row)} |", flush=True)


def searches(trials: int) -> None:
    """Tables of random searches."""
    print("\nRandom searches over 8 axes, 5 (or all) without effect: said of a null axis, %\n")
    print("| points, noise | effect | trend | pair | any | null share holds 0 |")
    print("|---|---|---|---|---|---|")
    cases = [
        (60, "normal", 3, 1),
        (60, "t3", 3, 1),
        (60, "lognormal", 3, 1),
        (60, "collapse", 3, 1),
    ]
    cases += [
        (60, "normal", 0, 1),
        (60, "normal", 3, 3),
        (24, "normal", 3, 1),
        (200, "normal", 3, 1),
    ]
    for at, case in enumerate(cases):
        rng = np.random.default_rng([23, at])
        _search_row(case, [find_surface(rank(search(rng, *case)), 1.0) for _ in range(trials)])


def _search_row(case: tuple[int, str, int, int], found: Sequence[Any]) -> None:
    points, noise, matter, seeds = case
    counts: Counter[str] = Counter()
    for own in found:
        null = [axis for axis in own.axes if axis.key in NULL_AXES or not matter]
        effect, trend = any(a.told for a in null), any(a.told and a.side for a in null)
        pair = any(pair.told for pair in own.pairs)
        counts.update(effect=effect, trend=trend, pair=pair, any=effect or trend or pair)
        counts["holds"] += sum(a.importance.low == 0 for a in null)
        counts["null"] += len(null)
    n = len(found)
    row = [f"{100 * counts[kind] / n:.1f}" for kind in ("effect", "trend", "pair", "any")]
    row.append(f"{100 * counts['holds'] / max(counts['null'], 1):.1f}")
    what = "" if matter else ", no axis matters"
    print(f"| {points}, {noise}, n = {seeds}{what} | {' | '.join(row)} |", flush=True)


def main() -> None:
    """Simulate, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=1000)
    tables(parser.parse_args().trials)


def tables(trials: int) -> None:
    """All tables."""
    false_in_grids(trials)
    searches(trials)


if __name__ == "__main__":
    main()
