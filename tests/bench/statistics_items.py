"""Measures intervals over items and runs, and those of shares, by simulation.

    python tests/bench/statistics_items.py [--trials 2000] [--only best|gaps]

Also printed by `statistics_coverage.py`. Answers are right or wrong by a logistic model with terms
for a question's difficulty, a cell's skill, a cell and a question together, and a run's luck; no
two trials share questions. The truth is the mean over all questions and, if cells have several
runs, over all runs; for single runs it is that of these very runs.
"""

import argparse
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from statistics_axes import sweep

from sweeper.analysis.comparison.items import compare
from sweeper.analysis.findings.study import study
from sweeper.analysis.reading.frames import RunData
from sweeper.analysis.reading.series import Series
from sweeper.analysis.statistics.distributions import student_quantile
from sweeper.analysis.statistics.inference import on_logits

Floats = NDArray[np.float64]

RUNS = (1, 2, 3, 5)
_DRAWN = 100_000
_DIFFICULTY, _OWN = 1.5, 0.7


def _logistic(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-values))


class World:
    """Cells of given skill and luck; `draw` returns a sweep and its true means."""

    def __init__(self, skills: tuple[float, ...], luck: float, runs: int, items: int) -> None:
        self.skills, self.luck, self.runs, self.items = skills, luck, runs, items
        self.rng = np.random.default_rng([11, runs, items, round(100 * luck), len(skills)])
        spread = float(np.hypot(_DIFFICULTY, _OWN))
        self.questions = self.rng.normal(0, spread, _DRAWN)
        whole = float(np.hypot(spread, luck))
        self.means = [
            float(_logistic(s + self.questions * (whole / spread)).mean()) for s in skills
        ]

    def spread(self, deviation: float) -> Floats:
        """Draw a value for each item."""
        return self.rng.normal(0, deviation, self.items)

    @property
    def clusters(self) -> dict[str, str]:
        """Return the cluster of each item."""
        return {}

    def draw(self) -> tuple[dict[str, list[dict[str, float]]], list[float]]:
        """Return scores by cell, run and item, and the true means of the cells."""
        difficulty = self.spread(_DIFFICULTY)
        cells: dict[str, list[dict[str, float]]] = {}
        truth: list[float] = []
        for number, skill in enumerate(self.skills):
            spread = self.spread(_OWN)
            lucks = self.rng.normal(0, self.luck, self.runs)
            right = self.rng.random((self.runs, self.items)) < _logistic(
                skill + difficulty + spread + lucks[:, np.newaxis]
            )
            cells[str(number)] = [dict(zip(map(str, range(self.items)), run.astype(float).tolist(),
                                           strict=True)) for run in right]  # fmt: skip
            single = self.runs == 1
            truth.append(
                float(_logistic(skill + lucks[0] + self.questions[:4000]).mean())
                if single and self.luck
                else self.means[number]
            )
        return cells, truth


class Pages(World):
    """The same for questions in groups of very different sizes (of 1 to 40, half of them of 1 to
    3): the group accounts for half of the variance of an item's value."""

    def __init__(self, skills: tuple[float, ...], luck: float, runs: int, groups: int) -> None:
        super().__init__(skills, luck, runs, groups)
        self.groups = groups
        self._of = np.zeros(0, dtype=int)

    def spread(self, deviation: float) -> Floats:
        half = deviation / 2**0.5
        return self.rng.normal(0, half, self.groups)[self._of] + super().spread(half)

    @property
    def clusters(self) -> dict[str, str]:
        return {str(item): f"page {group}" for item, group in enumerate(self._of.tolist())}

    def draw(self) -> tuple[dict[str, list[dict[str, float]]], list[float]]:
        sizes = np.clip(self.rng.lognormal(1.0, 1.0, self.groups).round(), 1, 40).astype(int)
        self._of = np.repeat(np.arange(self.groups), sizes)
        self.items = len(self._of)
        return super().draw()


def coverage(world: World, trials: int, *, clustered: bool = True) -> tuple[float, float]:
    """Return how often intervals of a cell's mean, and of a difference, contain the truth; with
    `clustered=False` the grouping of items is unknown."""
    level = gap = gaps = 0
    for _ in range(trials):
        cells, truth = world.draw()
        comparison = compare(cells, clusters=world.clusters if clustered else None)
        assert comparison is not None
        first = next(cell for cell in comparison.cells if cell.cell == "0")
        level += first.low <= truth[0] <= first.high
        best = int(comparison.cells[0].cell)
        for cell in comparison.parted:
            gaps += 1
            gap += cell.low <= truth[int(cell.cell)] - truth[best] <= cell.high
    return level / trials, gap / max(gaps, 1)


def winners(world: World, trials: int) -> tuple[float, float]:
    """Return how often a lone winner is named, and how often the first cell is distinguished from
    the best though none is better."""
    lone = lost = 0
    for _ in range(trials):
        comparison = compare(world.draw()[0])
        assert comparison is not None
        apart = {cell.cell for cell in comparison.parted if cell.told_apart}
        lone += len(apart) == len(comparison.parted)
        lost += "0" in apart
    return lone / trials, lost / trials


def chosen(world: World, trials: int) -> tuple[float, float, float]:
    """Return how often the interval of the best of equal cells holds its true mean, how often all
    differences from it hold at once, and how often it is said to be ahead of an equal cell."""
    held = every = ahead = 0
    for _ in range(trials):
        cells, truth = world.draw()
        comparison = compare(cells)
        assert comparison is not None
        best = comparison.cells[0]
        held += best.low <= truth[int(best.cell)] <= best.high
        gaps = [(cell, truth[int(cell.cell)] - truth[int(best.cell)]) for cell in comparison.parted]
        every += all(cell.low <= gap <= cell.high for cell, gap in gaps)
        ahead += any(cell.told_apart for cell in comparison.parted)
    return held / trials, every / trials, ahead / trials


def shares(trials: int, seeds: int, items: int, share: float) -> tuple[float, float, float]:
    """Simulate a share measured on this many items by each seed, if seeds differ: how often
    intervals contain the truth on the logit scale and by Student's t, and how often the latter
    leave 0 to 1."""
    rng = np.random.default_rng([12, seeds, items, round(1000 * share)])
    drawn = rng.binomial(items, share, (trials, seeds)) / items
    reach = student_quantile(0.975, seeds - 1) * drawn.std(axis=1, ddof=1) / seeds**0.5
    held = plain = out = count = 0
    for mean, reach_of in zip(drawn.mean(axis=1).tolist(), reach.tolist(), strict=True):
        if reach_of > 0:
            low, high = on_logits(mean, reach_of)
            count += 1
            held += low <= share <= high
            plain += mean - reach_of <= share <= mean + reach_of
            out += mean + reach_of > 1 or mean - reach_of < 0
    return held / count, plain / count, out / count


def gaps(trials: int, luck: float, cells: int = 6, seeds: int = 3, points: int = 30) -> float:
    """Return how often a report finds a gap for runs that do equally well on held-out data. All
    runs train on the same batches, whose luck is `luck` standard deviations between runs."""
    rng = np.random.default_rng([13, cells, seeds, round(10 * luck)])
    steps = np.arange(points)
    reported = 0
    for _ in range(trials):
        level = 20 + rng.normal(0, 1, (cells, 1, 1))
        held, train = level + rng.normal(0, 1, (2, cells, seeds, points))
        train = train + luck * rng.normal(0, 1, points)
        made = sweep([({"lr": 10.0**-cell}, held[cell]) for cell in range(cells)])
        runs: list[RunData] = []
        for run in made.runs:
            curve = Series(steps.astype(float), train[int(run.cell), run.seed or 0], steps)
            runs.append(replace(run, curves={**run.curves, "train/nll": curve}))
        report = study(replace(made, runs=tuple(runs), train_key="train/nll"))
        reported += any(finding.kind == "gap" for finding in report.findings)
    return reported / trials


def _shown(*values: float) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def measure(trials: int) -> None:
    """Print the tables."""
    head = " | ".join(f"{runs} run{'s' if runs > 1 else ''}" for runs in RUNS)
    rule = "|---" * (len(RUNS) + 1) + "|"
    print("\nIntervals over items and runs that hold the truth, %: of a cell's mean / of a "
          "difference from the best of 2 cells\n")  # fmt: skip
    print(f"| | {head} |\n{rule}")
    for items in (40, 200):
        for skill in (0.0, 2.5):
            for luck in (0.0, 0.15, 0.4):
                row = [
                    _shown(*coverage(World((skill, skill + 0.4), luck, runs, items), trials))
                    for runs in RUNS
                ]
                level = World((skill,), 0.0, 1, items).means[0]
                print(f"| {items} items, {level:.2f} right, luck {luck} | {' | '.join(row)} |")
    print("\nThe same of questions in groups of 1 to 40; with nothing said of the groups\n")
    print(f"| | {head} |\n{rule}")
    for groups in (20, 50, 200):
        for luck in (0.0, 0.4):
            for clustered in (True, False):
                row = [
                    _shown(
                        *coverage(
                            Pages((0.0, 0.4), luck, runs, groups), trials, clustered=clustered
                        )
                    )
                    for runs in RUNS
                ]
                title = f"{groups} groups, luck {luck}{'' if clustered else ', nothing said'}"
                print(f"| {title} | {' | '.join(row)} |")
    print("\nA lone winner among equal cells / an equal cell told apart from the best, % (at most "
          "5 is promised)\n")  # fmt: skip
    print(f"| | {head} |\n{rule}")
    for cells in (2, 6, 20):
        for luck in (0.0, 0.4):
            row = [
                "" if luck and runs == 1
                else _shown(*winners(World((0.8,) * cells, luck, runs, 100), trials // 2))
                for runs in RUNS
            ]  # fmt: skip
            print(f"| {cells} cells, 100 items, luck {luck} | {' | '.join(row)} |")
    of_the_best(trials)
    print("\nA share's interval that holds the truth, %: on the logit scale / Student's t / of "
          "which leave 0 to 1\n")  # fmt: skip
    print("| | n = 2 | n = 3 | n = 5 | n = 10 |\n|---|---|---|---|---|")
    for items in (50, 200, 1000):
        for share in (0.5, 0.9, 0.97):
            row = [_shown(*shares(4 * trials, seeds, items, share)) for seeds in (2, 3, 5, 10)]
            print(f"| {share} of {items} items | {' | '.join(row)} |")
    of_gaps(trials)


def of_the_best(trials: int) -> None:
    """Print how often claims about the best of equal cells are true."""
    head = " | ".join(f"{runs} run{'s' if runs > 1 else ''}" for runs in RUNS)
    rule = "|---" * (len(RUNS) + 1) + "|"
    print("\nEqual cells, %: the best's interval holds / all differences from it hold at once /")
    print("it is said to be ahead of one\n")
    print(f"| | {head} |\n{rule}")
    for cells, items in ((2, 100), (6, 100), (20, 100), (6, 400), (20, 400)):
        row = [
            _shown(*chosen(World((0.8,) * cells, 0.3 if runs > 1 else 0.0, runs, items), trials))
            for runs in RUNS
        ]
        print(f"| {cells} cells, {items} items | {' | '.join(row)} |", flush=True)


def of_gaps(trials: int) -> None:
    """Print how often a gap is reported although there is none."""
    lucks = (0.0, 0.5, 1.0, 3.0)
    print(
        "\nA gap between training and held-out values said where there is none, %, by the luck of"
    )
    print("the last batch, which all runs share\n")
    print(f"| | {' | '.join(f'luck {luck:g}' for luck in lucks)} |\n|---|---|---|---|---|")
    row = [_shown(gaps(trials, luck)) for luck in lucks]
    print(f"| 6 cells, n = 3 | {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--only", choices=("best", "gaps"))
    given = parser.parse_args()
    tables = {"best": of_the_best, "gaps": of_gaps, None: measure}
    tables[given.only](given.trials)


if __name__ == "__main__":
    main()
