"""Measures the quality of the report's statistics by simulation.

    python tests/bench/statistics_coverage.py [--trials 2000]

Prints tables, by the noise between seeds, its amount and the number of cells: false lone winners
among equal cells, whether the best is in the set that cannot be told from it, and how often
intervals contain the truth, for any cell and for the chosen one; then how often a better cell is
named alone (power); then differences of two cells, and statements about axes (`statistics_axes`).
The figures come from seeded generators: the same trials give the same tables.

Most of it runs on a copy of the report's rules that handles all sweeps of a table at once. The
first line says in how many sweeps it was compared with the real functions, and in how many both
agreed.
"""

import argparse
import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from sweeper.analysis.best_findings import DEALS
from sweeper.analysis.distributions import maximum_quantile, student_quantile
from sweeper.analysis.inference import contrast, paired, wilson
from sweeper.analysis.noise import (
    FEW,
    LEVEL,
    MANY,
    NOISIER,
    bartlett,
    fit_noise,
    split_noise,
    squeeze,
)
from sweeper.analysis.statistics import against_best, contenders, summarise_chosen

Floats = NDArray[np.float64]

SEEDS = (1, 2, 3, 5, 10)
CELLS = (2, 6, 12, 20, 100)
NOISES = {
    "normal": "normal",
    "t3": "Student t, 3 degrees of freedom",
    "lognormal": "lognormal, sd of logarithms 1, better values far out",
    "bimodal": "bimodal: one of two values, 10 sd of the rest apart",
    "collapse": "normal, but 15 % of the seeds end 8 sd worse",
    "binomial": "share of 200 questions, 70 % right",
    "unequal": "normal, sd of the cells from 1 to 4",
    "one noisy": "normal, one cell with 4 times the sd of the others",
}
_LENDERS, _LENT = 20, 3
_GRID = 1 / np.concatenate([np.geomspace(1, 0.02, 36), np.linspace(0.018, 0.0005, 5)])


def draw(rng: np.random.Generator, noise: str, size: tuple[int, int, int]) -> Floats:
    """Draw noise with mean 0 for sweeps of cells of seeds; more is better."""
    if noise == "t3":
        return rng.standard_t(3, size) / 3**0.5
    if noise == "binomial":
        return (rng.binomial(200, 0.7, size) - 140) / math.sqrt(200 * 0.7 * 0.3)
    normal = rng.normal(0, 1, size)
    if noise == "lognormal":
        return (np.exp(normal) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
    if noise == "bimodal":
        return rng.choice([-1.0, 1.0], size) + normal / 10
    if noise == "collapse":
        return normal - 8.0 * (rng.random(size) < 0.15) + 1.2
    return normal * _sds(noise, size[1])[:, np.newaxis]


def _sds(noise: str, cells: int) -> Floats:
    if noise == "one noisy":
        return np.where(np.arange(cells) == 0, 4.0, 1.0)
    return np.geomspace(1, 4, cells) if noise == "unequal" else np.ones(cells)


class Judged(NamedTuple):
    """The results of each sweep: the cells that may be the best, the chosen one, the means, the sd
    of each cell's noise, its degrees of freedom, the number of cells for which its selection is
    corrected, and whether a lone winner has a warning of too few runs."""

    kept: NDArray[np.bool_]
    best: NDArray[np.intp]
    means: Floats
    sds: Floats
    dfs: Floats
    of: NDArray[np.int_]
    few: NDArray[np.bool_]


def judge(values: Floats, lent: Floats | None = None, step: float = 0.0) -> Judged:
    """Apply the report's rules to all sweeps at once; single runs use the noise of `lent`."""
    sweeps, cells, seeds = values.shape
    means, free = values.mean(axis=2), seeds - 1
    best = means.argmax(axis=1)
    asked = values if lent is None else lent
    df, total = asked.shape[2] - 1, asked.shape[1] * (asked.shape[2] - 1)
    variances = asked.var(axis=2, ddof=1)
    floored = np.maximum(
        variances, np.maximum(step**2 / 12, 1e-5 * np.median(variances, axis=1))[:, np.newaxis]
    )
    shared = bartlett(floored, np.array(float(df))) <= _critical(asked.shape[1], df)
    if lent is None and cells < FEW:
        shared[:] = False
    if asked.shape[1] >= MANY:
        prior, prior_df, drawn = squeeze(floored, np.array(float(df)))
    else:
        prior, prior_df = floored.mean(axis=1), np.full(sweeps, math.inf)
        drawn = np.repeat(prior[:, np.newaxis], cells, axis=1)
    if lent is None:
        own = np.where(variances > 0, variances, np.nan)
        found = np.where(shared[:, np.newaxis], drawn, own)
    else:
        found = np.where(shared, prior, np.nan)[:, np.newaxis] * np.ones(cells)
    dfs = np.where(shared, np.minimum(prior_df + free, total), max(free, 1))
    told = _compared(means, found / seeds, dfs, shared, best, free)
    dfs = np.repeat(dfs[:, np.newaxis], cells, axis=1)
    if lent is None and cells >= FEW:
        _doubt(told, means, found, dfs, shared, best, floored, seeds)
    (kept, _), (close, _) = told
    own_noise = np.full(sweeps, math.comb(2 * seeds, seeds) < DEALS) & ~shared
    few = own_noise if lent is None else np.ones(sweeps, dtype=bool)
    return Judged(kept, best, means, np.sqrt(found), dfs, close.sum(axis=1), few)


Sets = list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]


def _doubt(
    told: Sets,
    means: Floats,
    found: Floats,
    dfs: Floats,
    shared: NDArray[np.bool_],
    best: NDArray[np.intp],
    variances: Floats,
    seeds: int,
) -> None:
    """If the best is noisier than the others, use its own noise for its interval, and for being
    alone. Changes `told`, `found` and `dfs`."""
    rows, cells, free = np.arange(len(best)), means.shape[1], seeds - 1.0
    own = variances[rows, best]
    rest = (variances.sum(axis=1) - own) / (cells - 1)
    noisier = shared & (special.fdtrc(free, free * (cells - 1), own / rest) <= NOISIER)
    a, b = own[:, np.newaxis], found
    df = np.minimum((a + b) ** 2 / (a**2 / free + b**2 / dfs), 2 / 3 * (free + dfs))
    ahead = (means[rows, best][:, np.newaxis] - means) / np.sqrt((a + b) / seeds)
    p = 2 * special.stdtr(df, -ahead)
    p[rows, best] = 0.0
    nearest = p.argmax(axis=1)
    bonferroni = np.minimum(1, np.maximum(1, (cells - 1) / 2) * p[rows, nearest])
    for level, (kept, wide) in zip((0.05, 0.01), told, strict=True):
        alone = p[rows, nearest] <= level
        kept[noisier] = wide[noisier] & ~alone[noisier, np.newaxis]
        # At the second level, cells that are not alone at the first are judged with Bonferroni's
        # bound.
        beside = noisier & ~alone & ((p[rows, nearest] <= 0.05) | (bonferroni > level))
        kept[rows[noisier], nearest[noisier]] = beside[noisier]
        kept[rows, best] = True
    found[rows[noisier], best[noisier]] = own[noisier]
    dfs[rows[noisier], best[noisier]] = free


def _compared(
    means: Floats, errors: Floats, dfs: Floats, shared: Floats, best: Floats, free: int
) -> Sets:
    """Return the cells that may be the best, and those that may have been chosen as it; both also
    without the test whether the best is alone."""
    cells = means.shape[1]
    at = best[:, np.newaxis]
    own = np.take_along_axis(errors, at, 1)
    welch = (own + errors) ** 2 / ((own**2 + errors**2) / max(free, 1))
    df = np.where(
        shared[:, np.newaxis], dfs[:, np.newaxis], np.minimum(welch, 4 / 3 * max(free, 1))
    )
    ahead = (np.take_along_axis(means, at, 1) - means) / np.sqrt(own + errors)
    known = np.isfinite(ahead)
    two = _quantile(0.975, 1, df)
    alone = np.where(known, ahead > two, False)
    np.put_along_axis(alone, at, True, 1)
    better = np.zeros(means.shape)
    better[shared] = _another_is_better(means[shared], errors[shared], dfs[shared])
    found: Sets = []
    for share in (0.95, 0.99):
        bonferroni = _quantile(1 - (1 - share) / (cells - 1), 1, df)
        out = np.where(shared[:, np.newaxis], better <= 1 - share, ahead > bonferroni)
        pair = two if share == 0.95 else _quantile(0.995, 1, df)
        kept = ~(out & (ahead > pair)) & (known if share == 0.99 else True)
        np.put_along_axis(kept, at, True, 1)
        wide = kept.copy()
        lone = alone if share == 0.95 else np.where(known, ahead > pair, False)
        np.put_along_axis(lone, at, True, 1)
        kept[lone.all(axis=1)] = False
        np.put_along_axis(kept, at, True, 1)
        found.append((kept, wide))
    return found


def _another_is_better(means: Floats, errors: Floats, dfs: Floats) -> Floats:
    """Return for each cell the p value of its being the best. The null hypothesis moves it and the
    cells above onto their common mean, which is the closest fit to the data."""
    order = np.argsort(-means, axis=1)
    places, weights = (np.take_along_axis(part, order, 1) for part in (means, 1 / errors))
    above, sums = (np.cumsum(part, 1) - part for part in (weights, weights * places))
    found = np.ones(means.shape)
    for at in range(1, means.shape[1]):
        own, place = weights[:, [at]], places[:, [at]]
        moved = own * (places - place) + places * above > sums
        moved[:, at:] = False
        pull = weights * moved
        total = pull.sum(axis=1, keepdims=True) + own
        middle = ((pull * places).sum(axis=1, keepdims=True) + own * place) / total
        squares = (pull * (places - middle) ** 2).sum(axis=1)
        squares += (own * (place - middle) ** 2)[:, 0]
        count = np.maximum(moved.sum(axis=1), 1)
        found[:, at] = np.where(moved.any(1), special.fdtrc(count, dfs, squares / count), 1.0)
    told = np.empty(means.shape)
    np.put_along_axis(told, order, found, 1)
    return told


def _quantile(share: float, of: int, df: Floats) -> Floats:
    """Interpolate between the quantiles of some degrees of freedom."""
    table = _table(share, of)
    return np.exp(np.interp(-1 / np.clip(df, 1, 2000), -1 / _GRID, table))


@functools.cache
def _table(share: float, of: int) -> Floats:
    if of == 1:
        return np.log([student_quantile(share, float(df)) for df in _GRID])
    return np.log([maximum_quantile(share, of, float(df)) for df in _GRID])


@functools.cache
def _critical(cells: int, df: int) -> float:
    """Return critical values of the test for equal variances."""
    drawn = np.random.default_rng(1).chisquare(df, (20000, cells)) / df
    return float(np.quantile(bartlett(drawn, np.array(float(df))), 1 - LEVEL))


def intervals(found: Judged, seeds: int, *, chosen: bool) -> tuple[Floats, Floats]:
    """Return bounds of each cell's mean, or of the chosen one's."""
    student = _quantile(0.975, 1, found.dfs)
    if not chosen:
        reach = student * found.sds / seeds**0.5
        return found.means - reach, found.means + reach
    rows = np.arange(len(found.best))
    error = found.sds[rows, found.best] / seeds**0.5
    dfs, reach = (part[rows, found.best] for part in (found.dfs, student))
    below = reach.copy()
    for of in np.unique(found.of):
        some = found.of == of
        if of > 1:
            below[some] = np.maximum(below[some], _quantile(0.95, int(of), dfs[some]))
    middle = found.means[rows, found.best]
    return middle - below * error, middle + reach * error


def _sweeps(noise: str, cells: int, seeds: int, trials: int, truth: Floats | None = None) -> Judged:
    rng = np.random.default_rng([cells, seeds, *noise.encode()])
    count = min(max(200, trials // 4), trials) if cells > 20 else trials
    values = draw(rng, noise, (count, cells, seeds))
    if truth is not None:
        values = values + truth[:count, :, np.newaxis]
    lent = draw(rng, noise, (count, _LENDERS, _LENT)) if seeds == 1 else None
    return judge(values, lent, 1 / math.sqrt(200 * 0.7 * 0.3) if noise == "binomial" else 0.0)


def _share(values: Floats) -> str:
    return f"{100 * float(np.mean(values)):.1f}" if len(values) else "-"


def _held(bounds: tuple[Floats, Floats], truth: Floats | float) -> str:
    low, high = bounds
    given = np.isfinite(low)
    return _share(((low <= truth) & (truth <= high))[given])


def by_noise(trials: int) -> None:
    """Simulate equal cells: false lone winners, the set, and intervals."""
    for noise, told in NOISES.items():
        print(f"\n{told[0].upper()}{told[1:]}: {noise}\n")
        print("| cells | " + " | ".join(f"n = {n}" for n in SEEDS) + " |")
        print("|---|" + "---|" * len(SEEDS))
        for cells in CELLS:
            row: list[str] = []
            for seeds in SEEDS:
                found = _sweeps(noise, cells, seeds, trials)
                alone = found.kept.sum(axis=1) == 1
                lone = _share(alone) + ("*" if alone.any() and found.few[alone].all() else "")
                held = _share(found.kept[:, 0])
                every = _held(intervals(found, seeds, chosen=False), 0.0)
                best = _held(intervals(found, seeds, chosen=True), 0.0)
                row.append(" / ".join((lone, held, every, best)))
            print(f"| {cells} | {' | '.join(row)} |")


def power(trials: int) -> None:
    """Simulate one cell ahead: how often it is alone, and how many cells are left."""
    print("| cells | ahead by | " + " | ".join(f"n = {n}" for n in SEEDS) + " |")
    print("|---|---|" + "---|" * len(SEEDS))
    for cells in CELLS:
        for lead in (1, 2, 3, 4):
            truth = np.zeros((trials, cells))
            truth[:, 0] = lead
            row: list[str] = []
            for seeds in SEEDS:
                found = _sweeps("normal", cells, seeds, trials, truth)
                size = found.kept.sum(axis=1)
                right = (size == 1) & (found.best == 0)
                held = _share(found.kept[:, 0])
                row.append(f"{_share(right)} / {held} / {size.mean():.1f}")
            print(f"| {cells} | {lead} sd | {' | '.join(row)} |")


def chosen(trials: int) -> None:
    """Simulate the interval of the winner if cells differ."""
    print("| cells | truth | " + " | ".join(f"n = {n}" for n in SEEDS) + " |")
    print("|---|---|" + "---|" * len(SEEDS))
    rng = np.random.default_rng(8)
    for cells in CELLS:
        ahead = np.zeros((trials, cells))
        truths: dict[str, Floats] = {"all equal": ahead}
        for lead in (1.0, 3.0):
            truths[f"one ahead by {lead:g} sd"] = ahead + lead * (np.arange(cells) == 0)
        for spread in (0.5, 2.0):
            truths[f"spread with sd {spread:g}"] = rng.normal(0, spread, (trials, cells))
        for name, truth in truths.items():
            row: list[str] = []
            for seeds in SEEDS:
                found = _sweeps("normal", cells, seeds, trials, truth)
                real = truth[np.arange(len(found.best)), found.best]
                row.append(_held(intervals(found, seeds, chosen=True), real))
            print(f"| {cells} | {name} | {' | '.join(row)} |")


def checked(sweeps: int) -> tuple[int, int]:
    """Return in how many sweeps the copy and the real functions agree on the cells that may be the
    best, on the best, and on its interval; and in how many they were compared."""
    rng = np.random.default_rng(9)
    agreed = asked = 0
    for cells, seeds in ((2, 3), (6, 2), (6, 5), (12, 3), (20, 3)):
        truth = rng.normal(0, 1.5, (sweeps, cells, 1))
        values = draw(rng, "normal", (sweeps, cells, seeds)) + truth
        found = judge(values)
        low, high = intervals(found, seeds, chosen=True)
        for i, own in enumerate(values):
            groups = {str(cell): each.tolist() for cell, each in enumerate(own)}
            noise = fit_noise(groups)
            best = str(int(own.mean(axis=1).argmax()))
            told = against_best(groups, best, noise, -1.0)
            kept = {best, *(name for name, one in told.items() if not one.told_apart)}
            spread = noise.noisier.get(best) or noise.of(best)
            assert spread is not None
            real = summarise_chosen(groups[best], "linear", spread, contenders(told, told), -1.0)
            same = kept == {str(cell) for cell in np.flatnonzero(found.kept[i])}
            agreed += same and np.allclose((real.low, real.high), (low[i], high[i]), atol=0.01)
            asked += 1
    return agreed, asked


def from_best(sweeps: int) -> None:
    """Test whether the intervals of all differences from the best contain the truth at once, with
    the real functions.
    """
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
            for seeds, asked in ((2, "auto"), (3, "auto"), (5, "auto"), (3, "own")):
                values = rng.normal(0, 1, (sweeps, cells, seeds)) + truth[:, :, np.newaxis]
                both = zip(values, truth, strict=True)
                held = [_all_hold(own, real, asked == "own") for own, real in both]
                row.append(f"{100 * float(np.mean(held)):.1f}")
            print(f"| {cells} | {name} | {' | '.join(row)} |")


def _all_hold(values: Floats, truth: Floats, own: bool) -> bool:
    groups = {str(cell): each.tolist() for cell, each in enumerate(values)}
    best = int(values.mean(axis=1).argmax())
    found = against_best(groups, str(best), fit_noise(groups, "own" if own else "auto"), -1.0)
    ends = {int(cell): one.interval() for cell, one in found.items()}
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


def _welch(n: int, trials: int) -> float:
    rng = np.random.default_rng([2, n])
    held = 0
    for _ in range(trials):
        found = contrast([rng.normal(1, 1, n), rng.normal(3, 2, n)], [1, -1])
        held += found.low is not None and found.high is not None and found.low <= -2 <= found.high
    return held / trials


def _paired(n: int, trials: int) -> float:
    rng = np.random.default_rng([3, n])
    held = 0
    for _ in range(trials):
        shared = rng.normal(0, 3, n)
        own, other = shared + rng.normal(1, 1, n), shared + rng.normal(3, 2, n)
        found = paired(dict(enumerate(own)), dict(enumerate(other)))
        assert found is not None
        held += found.low is not None and found.high is not None and found.low <= -2 <= found.high
    return held / trials


def _marginal(n: int, trials: int) -> float:
    rng = np.random.default_rng([4, n])
    held = 0
    for _ in range(trials):
        cells = [rng.normal(level, level, n) for level in (1, 2, 3, 4)]
        found = contrast(cells, [0.25] * 4)
        held += found.low is not None and found.high is not None and found.low <= 2.5 <= found.high
    return held / trials


def _wilson(share: float, trials: int) -> float:
    rng = np.random.default_rng([5, round(share * 100)])
    held = 0
    for count in rng.binomial(24, share, trials):
        low, high = wilson(int(count), 24)
        held += low <= share <= high
    return held / trials


def both_looks(trials: int) -> None:
    """Simulate equal cells and, if several are left, those (the first eight) again."""
    print("| cells | n = 2 | n = 3 | n = 5 |")
    print("|---|---|---|---|")
    rng = np.random.default_rng(10)
    for cells in (2, 3, 6, 12, 20):
        row: list[str] = []
        for seeds in (2, 3, 5):
            first = judge(draw(rng, "normal", (trials, cells, seeds)))
            size = first.kept.sum(axis=1)
            wrong = int((size == 1).sum())
            for left in np.unique(size[size > 1]):
                again = int((size == left).sum())
                shape = (again, min(int(left), 8), max(3, 2 * seeds))
                wrong += int((judge(draw(rng, "normal", shape)).kept.sum(axis=1) == 1).sum())
            row.append(f"{100 * float(np.mean(size == 1)):.1f} / {100 * wrong / trials:.1f}")
        print(f"| {cells} | {' | '.join(row)} |")


def crashing(trials: int) -> None:
    """Return how often a cell is named best that is worse by half a sd and whose worse seeds, half
    of them, crash; five seeds each; and how often if none crashed."""
    print("| cells | `drop` | `bound` | none crashes |")
    print("|---|---|---|---|")
    rng = np.random.default_rng(11)
    for cells in (2, 6, 12):
        values = rng.normal(0, 1, (trials, cells, 5))
        values[:, 0] -= 0.5
        failed = np.zeros(values.shape, dtype=bool)
        failed[:, 0] = values[:, 0] < -0.5
        left = np.where(failed, np.nan, values)
        worst = np.nanmin(left.reshape(trials, -1), axis=1)[:, np.newaxis, np.newaxis]
        told = (
            np.nan_to_num(np.nansum(left, axis=2) / (~failed).sum(axis=2), nan=-np.inf),
            np.where(failed, worst, values).mean(axis=2),
            values.mean(axis=2),
        )
        row = [_share(means.argmax(axis=1) == 0) for means in told]
        print(f"| {cells} | {' | '.join(row)} |")


def warned(sweeps: int) -> None:
    """Return how often the report warns of noise that looks split."""
    print("| noise | 6 cells, n = 2 | 6, n = 3 | 12, n = 2 | 12, n = 3 | 20, n = 2 | 20, n = 3 |")
    print("|---|---|---|---|---|---|---|")
    for noise, name in NOISES.items():
        row: list[str] = []
        for cells in (6, 12, 20):
            for seeds in (2, 3):
                rng = np.random.default_rng([cells, seeds])
                told: list[bool] = []
                for own in draw(rng, noise, (sweeps, cells, seeds)):
                    groups = {str(cell): each.tolist() for cell, each in enumerate(own)}
                    p = fit_noise(groups).p
                    split = split_noise(list(groups.values()))
                    told.append(split is not None and p is not None and p <= LEVEL)
                row.append(f"{100 * float(np.mean(told)):.0f}")
        print(f"| {name} | {' | '.join(row)} |")


def main() -> None:
    """Simulate, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    agreed, asked = checked(max(10, trials // 50))
    print(
        f"{trials} sweeps a figure, a quarter of them at 100 cells; copy and report agree "
        f"in {agreed} of {asked}"
    )
    print(
        "\nEqual cells, %: false lone winner (*: each with a warning that it rests on few runs) /"
    )
    print(
        "the set holds a given cell / the interval of any cell holds the truth / that of the chosen"
    )
    print("one does")
    with np.errstate(all="ignore"):
        by_noise(trials)
        print("\nOne cell ahead, normal noise: named alone, % / in the set, % / cells in the set\n")
        power(trials)
        print("\nThe interval of the chosen cell holds the truth, normal noise, %\n")
        chosen(trials)
        print("\nEqual cells, false lone winner: the sweep / it or its confirmation, %\n")
        both_looks(trials)
        print("\nA worse cell whose worse seeds crash is named best, %\n")
        crashing(trials)
        print("\nWarned of noise that looks split, %\n")
        warned(trials // 5)
    print(
        "\nThe intervals of all differences from the best hold the truth at once, normal noise, %\n"
    )
    from_best(trials // 4)
    print("\nDifferences: 95 % intervals that hold the truth, %\n")
    differences(trials)
    import statistics_axes  # in this folder
    import statistics_items

    statistics_items.measure(trials // 5)
    statistics_axes.tables(max(trials // 5, 1))


if __name__ == "__main__":
    main()
