"""Measures by simulation how often the report's statements about axes are false and true.

    python tests/bench/statistics_axes.py [--trials 400] [--only grids|bends|searches]

Also called by `statistics_coverage.py`. Sweeps are made in memory and analyzed as the report does.
In "a null sweep" no setting has an effect, so that every statement about one is false.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.comparison.surface import Surface, find_surface
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.metric import Metric
from sweeper.analysis.reading.series import Series

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
    """Return a finished sweep: for each cell its settings and, for each seed, its records. A run
    without records failed."""
    runs: list[RunData] = []
    metric = Metric("test/nll" if goal == "minimize" else "test/accuracy", goal)
    keys = list(dict.fromkeys(key for settings, _ in cells for key in settings))
    for at, (settings, seeds) in enumerate(cells):
        for seed, values in enumerate(seeds):
            array = np.asarray(values, dtype=float)
            count = len(array)
            curve = Series(np.arange(count, dtype=float), array, np.arange(count))
            best = float(array.min() if goal == "minimize" else array.max()) if count else None
            end = float(array[-1]) if count else None
            runs.append(
                RunData(
                    id=f"{at}.{seed}",
                    name=f"{at},seed={seed}",
                    cell=str(at),
                    seed=seed,
                    config={**settings, "seed": seed},
                    state="succeeded" if count else "failed",
                    attempts=1,
                    reason=None,
                    detail=None,
                    wall_s=1.0,
                    value=end,
                    step=float(count - 1) if count else None,
                    diverged=end is not None and not np.isfinite(end),
                    unreadable=0,
                    last=end,
                    best=best,
                    smoothed=end,
                    curves={metric.name: curve} if count else {},
                )
            )
    axes = {key: [] for key in keys}
    return SweepData("s", None, metric, axes, tuple(runs), {metric.name: len(runs)}, None, 0)


SAID = ("edge", "trend", "interaction", "blocks", "unstable", "identical", "same_curves")
"""Findings that claim something of settings or runs, and are false in a null sweep."""


def kinds_of(report: Study) -> set[str]:
    """Return the claims of a report."""
    kinds = {finding.kind for finding in report.findings} & set(SAID)
    return kinds - ({"blocks"} if report.blocks is not None and report.blocks.requested else set())


def null_grid(
    rng: np.random.Generator, shape: Sequence[int], seeds: int, noise: str, points: int = 1
) -> SweepData:
    """Return equal cells on a grid of two axes or more."""
    places = list(itertools.product(*(range(1, size + 1) for size in shape)))
    drawn = 20 + NOISES[noise](rng, (len(places), seeds, points))
    named = [{f"x{i}": float(2**at) for i, at in enumerate(place)} for place in places]
    return sweep(list(zip(named, drawn, strict=True)))


Parts = Mapping[str, np.ndarray]


def search(
    rng: np.random.Generator, points: int, noise: str, matter: int = 3, seeds: int = 1
) -> tuple[SweepData, Parts]:
    """Return a random search over eight axes of which three have an effect, or none: a valley over
    a logarithmic axis, a slope, a category. In units of the noise their effects have standard
    deviations of about 2, 0.9 and 0.7. Also returns the effects by cell."""
    parts: dict[str, list[float]] = {"lr": [], "warmup": [], "kind": []}
    cells: list[tuple[dict[str, Any], Any]] = []
    for _ in range(points):
        config: dict[str, Any] = {"lr": float(10 ** rng.uniform(-5, -2))}
        config["warmup"] = float(rng.uniform(0, 1))
        config["kind"] = str(rng.choice(["a", "b", "c"]))
        config["rank"] = int(rng.choice([4, 8, 16, 32, 64]))
        config["decay"] = float(10 ** rng.uniform(-4, -1))
        config["beta"] = float(rng.uniform(0.8, 0.99))
        config["clip"] = float(rng.uniform(0.5, 2))
        config["flag"] = bool(rng.random() < 0.5)
        for key, part in parts.items():
            part.append(valley(key, config[key]) if matter else 0.0)
        level = 20.0 + sum(part[-1] for part in parts.values())
        cells.append((config, level + NOISES[noise](rng, (seeds, 1))))
    return sweep(cells), {key: np.array(part) for key, part in parts.items()}


def valley(key: str, value: Any) -> float:
    """Return the effect of an axis."""
    if key == "lr":
        return 2.5 * float(np.log10(value) + 3.7) ** 2
    return 3.0 * value if key == "warmup" else {"a": 0.0, "b": 1.5, "c": 1.5}[value]


NULL_AXES = ("rank", "decay", "beta", "clip", "flag")


def false_in_grids(trials: int) -> None:
    """Print a table of the statements about equal cells."""
    print("\nFalse claims about sweeps of equal cells, % (at most 5 of each kind, 10 of any)\n")
    print("| grid, seeds, noise | " + " | ".join(SAID) + " | any |")
    print("|---|" + "---|" * (len(SAID) + 1))
    cases = [((3, 3), n, "normal") for n in (1, 2, 3, 5, 10)]
    cases += [((3, 3), 3, noise) for noise in NOISES if noise != "normal"]
    cases += [((5, 4), 3, "normal"), ((5, 4), 1, "normal"), ((3, 3, 3), 3, "normal")]
    cases += [((2, 2), 3, "normal"), ((10, 10), 2, "normal")]
    for at, (shape, seeds, noise) in enumerate(cases):
        rng = np.random.default_rng([21, at])
        name = f"{' x '.join(map(str, shape))}, n = {seeds}, {noise}"
        _row(name, (kinds_of(study(null_grid(rng, shape, seeds, noise))) for _ in range(trials)))
    for at, (points, seeds) in enumerate([(5, 3), (20, 3), (100, 3), (20, 1)]):
        rng = np.random.default_rng([22, at])
        made = (null_grid(rng, (3, 3), seeds, "normal", points) for _ in range(trials))
        name = f"3 x 3, n = {seeds}, flat curves of {points} values"
        _row(name, (kinds_of(study(data)) for data in made))


def _row(name: str, reports: Any) -> None:
    counts: Counter[str] = Counter()
    total = 0
    for kinds in reports:
        total += 1
        counts.update(kinds)
        counts["any"] += bool(kinds)
    row = [f"{100 * counts[kind] / total:.1f}" for kind in (*SAID, "any")]
    print(f"| {name} | {' | '.join(row)} |", flush=True)


def searches(trials: int) -> None:
    """Print tables of random searches."""
    cases = [(60, noise, 3, 1) for noise in NOISES]
    cases += [(60, "normal", 0, 1), (60, "normal", 3, 3), (24, "normal", 3, 1)]
    cases += [(200, "normal", 3, 1)]
    rows: list[tuple[str, list[str]]] = []
    for at, case in enumerate(cases):
        rng = np.random.default_rng([23, at])
        counts: Counter[str] = Counter()
        for _ in range(trials):
            data, parts = search(rng, *case)
            surface = find_surface(rank(data), 1.0)
            assert surface is not None
            counts.update(_counted(surface, parts, null=not case[2]))
        points, noise, matter, seeds = case
        name = f"{points} points, n = {seeds}, {noise}{'' if matter else ', nothing matters'}"
        shares = [100 * counts[kind] / max(counts[f"of {kind}"], 1) for kind in COUNTED]
        rows.append((name, [f"{share:.1f}" for share in shares]))
        print(f"  {name}: {dict(counts)}", file=sys.stderr, flush=True)
    for title, kinds in (
        ("said of an axis without effect, or of two axes", COUNTED[:4]),
        ("what is there is told", COUNTED[4:7]),
        ("95 % intervals that hold the truth", COUNTED[7:]),
    ):
        print(f"\nRandom searches over 8 axes, 5 without effect (or all): {title}, %\n")
        print(f"| | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
        for name, shown in rows:
            figures = [shown[COUNTED.index(kind)] for kind in kinds]
            print(f"| {name} | {' | '.join(figures)} |")


COUNTED = (
    *("effect", "trend", "pair", "any", "lr", "warmup", "kind"),
    *("band of lr", "share of lr", "share of warmup", "share of a null axis"),
)


def _counted(surface: Surface, parts: Parts, *, null: bool) -> Counter[str]:
    counts: Counter[str] = Counter()

    def count(kind: str, hit: bool) -> None:
        counts[kind] += hit
        counts[f"of {kind}"] += 1

    idle = [axis for axis in surface.axes if axis.key in NULL_AXES or null]
    effect, trend = any(a.certain for a in idle), any(a.certain and a.side for a in idle)
    pair = any(pair.certain for pair in surface.pairs)
    for kind, hit in (("effect", effect), ("trend", trend), ("pair", pair)):
        count(kind, hit)
    count("any", effect or trend or pair)
    for axis in idle:
        count("share of a null axis", axis.importance.low == 0)
    if null:
        return counts
    total = sum(float(np.var(part)) for part in parts.values()) + 1.0
    for key, part in parts.items():
        axis = surface.of(key)
        if axis is None:
            continue
        count(key, axis.certain)
        if key in ("lr", "warmup"):
            share = float(np.var(part)) / total
            count(f"share of {key}", axis.importance.low <= share <= axis.importance.high)
    rate = surface.of("lr")
    if rate is not None:
        middle = 20.0 + sum(float(part.mean()) for part in parts.values())
        truth = [valley("lr", x) - float(parts["lr"].mean()) + middle for x in rate.xs]
        bands = zip(rate.low, truth, rate.high, strict=True)
        held = [low <= value <= high for low, value, high in bands]
        counts["band of lr"] += sum(held)
        counts["of band of lr"] += len(held)
    return counts


Effect = Callable[[np.ndarray], np.ndarray]
BENDS: dict[str, Effect] = {
    "parabola": lambda at: 2.5 * (at + 3.7) ** 2,
    "V, steeper on the right": lambda at: np.where(at < -3.5, -1.5 * (at + 3.5), 9 * (at + 3.5)),
    "slope, then a cliff": lambda at: np.where(at < -2.8, -(at + 2.8), 9 * (at + 2.8)),
}
"""What a rate does, by its logarithm."""


def bends(trials: int) -> None:
    """Print how often the band of a rate holds its curve."""
    counts = (40, 60, 200)
    print("\nRandom searches over a rate and a slope: the band of the rate's curve holds it, %\n")
    print(f"| | {' | '.join(f'{count} points' for count in counts)} |\n|---|---|---|---|")
    for name, effect in BENDS.items():
        row = [f"{100 * _held(effect, count, trials):.1f}" for count in counts]
        print(f"| {name} | {' | '.join(row)} |", flush=True)


def _held(effect: Effect, points: int, trials: int) -> float:
    rng = np.random.default_rng([24, points])
    held: list[bool] = []
    for _ in range(trials):
        at, warmup = rng.uniform(-5, -2, points), rng.uniform(0, 1, points)
        values = 20 + effect(at) + 3 * warmup + rng.normal(0, 1, points)
        cells = [
            ({"lr": float(10**x), "warmup": float(w)}, [[float(v)]])
            for x, w, v in zip(at, warmup, values, strict=True)
        ]
        surface = find_surface(rank(sweep(cells)), 1.0)
        rate = surface and surface.of("lr")
        assert rate is not None
        truth = 20 + effect(np.log10(np.array(rate.xs, dtype=float))) + 3 * warmup.mean()
        held += [a <= x <= b for a, x, b in zip(rate.low, truth, rate.high, strict=True)]
    return sum(held) / len(held)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args()
    tables(given.trials, given.only)


PARTS = {"grids": false_in_grids, "bends": bends, "searches": searches}


def tables(trials: int, only: str | None = None) -> None:
    """Print all tables, or one of them."""
    print(f"\n{trials} sweeps per row")
    for name, table in PARTS.items():
        if only in (None, name):
            table(trials)


if __name__ == "__main__":
    main()
