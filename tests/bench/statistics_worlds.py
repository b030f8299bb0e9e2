"""Simulates sweeps with known truth and counts the report's false sentences about them.

    python tests/bench/statistics_worlds.py [--trials 400] [--only NAME ...]

Sweeps are made in memory and analyzed by the report's own functions. `--files 15` also writes 15
sweeps of each row into a store, reads them back as `sweeper analyze` does, and prints for how many
both readings gave the same sentences.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import statistics_axes
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.written import Written

from sweeper.analysis.comparison.contrasts import usable
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import SweepData

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]


class World(NamedTuple):
    """A kind of noise. `draw` makes cells x seeds x recorded values around 0; a run without a
    finite value failed. With `shares`, a number of questions and a share, values are shares of
    questions answered right, around that share. `usual` gives the mean of the runs that do not
    collapse, by cell, if some do."""

    draw: Draw
    shares: tuple[int, float] | None = None
    goal: str = "minimize"
    usual: Callable[[int], Floats] | None = None


def _normal(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    return rng.normal(0, 1, (cells, seeds, 1))


def shared(rho: float) -> Draw:
    def draw(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
        common = rng.normal(0, rho**0.5, (1, seeds, 1))
        return common + rng.normal(0, (1 - rho) ** 0.5, (cells, seeds, 1))

    return draw


def _curves(phi: float, points: int = 100) -> Draw:
    def draw(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
        steps = rng.normal(0, (1 - phi**2) ** 0.5, (cells, seeds, points))
        steps[:, :, 0] = rng.normal(0, 1, (cells, seeds))
        for at in range(1, points):
            steps[:, :, at] += phi * steps[:, :, at - 1]
        return steps

    return draw


def _t(df: float) -> Draw:
    scale = (df / (df - 2)) ** 0.5 if df > 2 else 1.0
    return lambda rng, cells, seeds: rng.standard_t(df, (cells, seeds, 1)) / scale


def _rates(cells: int) -> NDArray[np.int_]:
    """Return the position of each cell on the first axis, which has at most four values."""
    shape = SHAPES[cells]
    return np.repeat(np.arange(shape[0]), shape[1])


def _grows(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    sds = np.geomspace(1, 4, SHAPES[cells][0])[_rates(cells)]
    return _normal(rng, cells, seeds) * sds[:, np.newaxis, np.newaxis]


def _collapse(share: float, *, rising: bool = False) -> World:
    """Make some runs end 8 standard deviations worse; the mean of a cell includes them."""

    def chances(cells: int) -> Floats:
        at = _rates(cells) / max(SHAPES[cells][0] - 1, 1) if rising else np.full(cells, 0.5)
        return 2 * share * at

    def draw(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
        values = _normal(rng, cells, seeds)
        chance = chances(cells)[:, np.newaxis, np.newaxis]
        return values + 8.0 * (rng.random(values.shape) < chance) - 8.0 * chance

    return World(draw, usual=lambda cells: -8.0 * chances(cells))


def _diverge(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    chance = 0.2 * _rates(cells) / max(SHAPES[cells][0] - 1, 1)
    lost = rng.random((cells, seeds, 1)) < chance[:, np.newaxis, np.newaxis]
    return np.where(lost, np.nan, _normal(rng, cells, seeds))


def _worst_crash(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    values = _normal(rng, cells, seeds)
    return np.where((values > 1) & (rng.random(values.shape) < 0.8), np.inf, values)


def _one_crashes(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    values = _normal(rng, cells, seeds)
    values[0] = np.where(values[0] > 0, np.inf, values[0])
    return values


def _unequal(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    values = _normal(rng, cells, seeds)
    for cell, count in enumerate(rng.integers(1, seeds + 1, cells)):
        values[cell, count:] = -np.inf
    return values


def _two_digits(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    return np.round(_normal(rng, cells, seeds), 1)


def _identical(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
    return np.repeat(_normal(rng, cells, 1), seeds, axis=1)


def _count(items: int, share: float) -> World:
    def draw(rng: np.random.Generator, cells: int, seeds: int) -> Floats:
        return np.full((cells, seeds, 1), float(items))

    return World(draw, (items, share), "maximize")


WORLDS: dict[str, World] = {
    "normal": World(_normal),
    "shared seeds .5": World(shared(0.5)),
    "shared seeds .8": World(shared(0.8)),
    "curves AR .9": World(_curves(0.9)),
    "curves AR .99": World(_curves(0.99)),
    "curves white": World(_curves(0.0)),
    "sd grows with lr": World(_grows),
    "t2": World(_t(2)),
    "t3": World(_t(3)),
    "20 % collapse": _collapse(0.2),
    "more collapse at high lr": _collapse(0.2, rising=True),
    "NaN, more at high lr": World(_diverge),
    "worst runs crash": World(_worst_crash),
    "one cell's worse half crashes": World(_one_crashes),
    "unequal n": World(_unequal),
    "2 digits": World(_two_digits),
    "shares .5 of 50": _count(50, 0.5),
    "shares .97 of 50": _count(50, 0.97),
    "shares .03 of 50": _count(50, 0.03),
    "shares .9 of 20": _count(20, 0.9),
}
MORE: dict[str, World] = {
    "identical": World(_identical),
    "shares .02 of 50": _count(50, 0.02),
    "shares .05 of 50": _count(50, 0.05),
    "shares .1 of 50": _count(50, 0.1),
    "shares .03 of 200": _count(200, 0.03),
}
SHAPES = {2: (2, 1), 3: (3, 1), 6: (3, 2), 12: (4, 3), 20: (5, 4), 48: (8, 6)}
RATES, RANKS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1), (4, 8, 16, 32, 64, 128)


def effects(cells: int) -> Floats:
    """Return means that differ: a valley over the rate, and a slope over the rank."""
    rates, ranks = SHAPES[cells]
    over = 3.0 * np.abs(np.arange(rates) - rates // 2)
    return (over[:, np.newaxis] + np.linspace(1, 0, ranks)).ravel()


class Made(NamedTuple):
    """A simulated sweep with the true means of its cells, and those of the runs that do not
    collapse; less is better for both."""

    data: SweepData
    truth: Floats
    usual: Floats


def make(rng: np.random.Generator, world: World, cells: int, seeds: int, means: Floats) -> Made:
    """Simulate a sweep; `means` are in standard deviations, less is better."""
    drawn = world.draw(rng, cells, seeds)
    truth = means
    if world.shares is not None:
        items, share = world.shares
        spread = (share * (1 - share) / items) ** 0.5
        truth = np.clip(share - spread * means, 0.0, 1.0)
        drawn = rng.binomial(items, truth[:, np.newaxis, np.newaxis], drawn.shape) / items
        truth = -truth
    else:
        drawn = drawn + means[:, np.newaxis, np.newaxis] + 20.0
        truth = truth + 20.0
    rates, ranks = SHAPES[cells]
    named = [
        {"lr": rate, "rank": rank} for rate, rank in itertools.product(RATES[:rates], RANKS[:ranks])
    ]
    values = [
        [[] if np.isposinf(run[-1]) else run.tolist() for run in cell if not np.isneginf(run[-1])]
        for cell in drawn
    ]
    data = statistics_axes.sweep(list(zip(named, values, strict=True)), world.goal)
    usual = truth if world.usual is None else truth + world.usual(cells)
    return Made(data, truth, usual)


class Counts(NamedTuple):
    """The counts over many sweeps: sentences by kind, and the false ones."""

    stated: Counter[str]
    false: Counter[str]

    def add(self, kind: str, *, wrong: bool) -> None:
        self.stated[kind] += 1
        self.false[kind] += wrong


def count(report: Study, truth: Floats, counts: Counts, usual: Floats | None = None) -> None:
    """Count the sentences of a report, and the false ones among them. A sentence that warns of
    collapses that no run has shown is about the `usual` runs."""
    ranking, tied = report.ranking, report.ranking.tied
    chosen, compared = ranking.best, _compared(report)
    counts.stated["reports"] += 1
    lone = {f.kind for f in report.findings} & {"separated"} and not tied
    warned = any(f.kind == "few_runs" for f in report.findings)
    if chosen is not None:
        best = int(chosen.name)
        wrong = bool((truth[compared] <= truth[best]).any())
        counts.stated["lone"] += bool(lone) and not warned
        counts.false["lone"] += bool(lone) and not warned and wrong
        counts.stated["right"] += bool(lone) and not warned and not wrong
        counts.stated["clear"] += report.verdict.kind == "clear"
        low, high = chosen.summary.low, chosen.summary.high
        real = abs(truth[best])
        if low is not None and high is not None:
            counts.add("interval", wrong=not low <= real <= high)
            if lone:
                counts.add("interval of a lone winner", wrong=not low <= real <= high)
    for cell in ranking.measured:
        if cell.summary.low is not None and cell.summary.high is not None:
            real = abs(truth[int(cell.name)])
            held = cell.summary.low <= real <= cell.summary.high
            counts.stated["any"] += 1
            counts.false["any"] += not held
    for kind, wrong in sentences(report, truth, truth if usual is None else usual):
        counts.add(f"said: {kind}", wrong=wrong)


def _compared(report: Study) -> list[int]:
    """Return the cells that were compared with the best. One with a run that diverged was not, and
    is never the best."""
    ranking = report.ranking
    return [int(cell.name) for cell in ranking.others if cell.name in ranking.comparisons]


def sentences(report: Study, truth: Floats, usual: Floats) -> Iterator[tuple[str, bool]]:
    """Yield the kinds of the sentences of a report, and whether each is false."""
    ranking = report.ranking
    settings = {int(cell.name): cell.settings for cell in usable(ranking)}
    for finding in report.findings:
        evidence: Mapping[str, Any] = finding.evidence or {}
        if finding.kind == "separated":
            means = usual if evidence["may_hide_collapse"] else truth
            others = means[_compared(report)]
            yield "separated", bool((others <= means[int(finding.cells[0])]).any())
        elif finding.kind == "tied":
            yield "tied", False
            if worse := evidence.get("worse", _worse_before(report, finding.text)):
                top = truth[int(finding.cells[0])]
                yield "worse", any(truth[int(cell)] <= top for cell in worse)
        elif finding.kind in ("trend", "edge"):
            yield finding.kind, _not_better(evidence, truth, settings)
        elif finding.kind in ("interaction", "blocks", "unstable", "gap", "effect"):
            yield finding.kind, finding.kind != "effect" or np.ptp(truth) == 0
        else:
            yield finding.kind, False


def _worse_before(report: Study, text: str) -> list[str]:
    return [c.name for c in report.ranking.apart] if "worse beyond the noise" in text else []


def _means(axis: str, truth: Floats, settings: Mapping[int, Mapping[str, Any]]) -> dict[Any, float]:
    groups: dict[Any, list[float]] = {}
    for cell, values in settings.items():
        groups.setdefault(values[axis], []).append(float(truth[cell]))
    return {value: float(np.mean(values)) for value, values in sorted(groups.items())}


def _not_better(
    evidence: Mapping[str, Any], truth: Floats, settings: Mapping[int, Mapping[str, Any]]
) -> bool:
    """Return whether some value is truly no better than the one before it on the way to this end (a
    trend), or the end is no better than the inner value."""
    means = _means(evidence["axis"], truth, settings)
    values = list(means) if evidence["side"] == "largest" else list(means)[::-1]
    if "inner" in evidence:
        return bool(means[values[-1]] >= means[evidence["inner"]])
    return bool((np.diff([means[value] for value in values]) >= 0).any())


def simulate(
    name: str, cells: int, seeds: int, trials: int, means: Floats | None = None, start: int = 0
) -> Counts:
    """Simulate sweeps of a world and count."""
    world = (WORLDS | MORE)[name]
    rng = np.random.default_rng([start, cells, seeds, *name.encode()])
    counts = Counts(Counter(), Counter())
    level = np.zeros(cells) if means is None else means
    with np.errstate(all="ignore"):
        for _ in range(trials):
            data, truth, usual = make(rng, world, cells, seeds, level)
            count(study(data), truth, counts, usual)
    return counts


def share(counts: Counts, kind: str, of: str = "") -> str:
    """Return the false share of a kind, in percent."""
    total = counts.stated[of or kind]
    return f"{100 * counts.false[kind] / total:.1f}" if total else "-"


def held(counts: Counts, kind: str) -> str:
    """Return how often intervals hold, in percent."""
    total = counts.stated[kind]
    return f"{100 - 100 * counts.false[kind] / total:.1f}" if total else "-"


def every(
    cells: int, seeds: int, trials: int, *, true: bool = False, only: Sequence[str] = ()
) -> Counts:
    """Print one row per world, then the sum over all worlds; return the sum."""
    total = Counts(Counter(), Counter())
    means = effects(cells) if true else None
    for name in only or WORLDS:
        counts = simulate(name, cells, seeds, trials, means)
        for part, more in zip(total, counts, strict=True):
            part.update(more)
        stated, false = all_sentences(counts)
        row = (share(counts, "lone", "reports"), held(counts, "interval"), held(counts, "any"))
        wrong = {k[6:]: v for k, v in counts.false.items() if k.startswith("said: ") and v}
        print(f"| {name} | {' | '.join(row)} | {100 * false / stated:.1f} | {wrong}", flush=True)
    stated, false = all_sentences(total)
    print(f"| all {stated} sentences | {share(total, 'lone', 'reports')} | | "
          f"| {100 * false / stated:.2f} |")  # fmt: skip
    reports = total.stated["reports"]
    for kind in sorted(k for k in total.false if k.startswith("said: ")):
        number = f"{100 * total.false[kind] / reports:.1f}"
        print(f"|   {kind[6:]}: {total.stated[kind]} said, false in {number} % of reports |")
    return total


def all_sentences(counts: Counts) -> tuple[int, int]:
    """Return the number of sentences, the winner's interval among them, and of false ones."""
    kinds = [k for k in counts.stated if k.startswith("said: ")] + ["interval"]
    return sum(counts.stated[k] for k in kinds), sum(counts.false[k] for k in kinds)


def through_files(data: SweepData, folder: Path) -> Study:
    """Write a simulated sweep into a store, and analyze it as the command does."""
    from sweeper.analysis.reading.frames import load
    from sweeper.analysis.reading.last_values import settle
    from sweeper.results.registry import Registry

    assert data.metric is not None
    axes = {key: sorted({run.config[key] for run in data.runs}) for key in data.axes}
    metric = {"name": data.metric.name, "goal": data.metric.goal, "at": data.metric.at}
    sweep = Written(folder, "s", axes, metric)
    for run in data.runs:
        curve = run.curves.get(data.metric.name)
        values: Sequence[float] = [] if curve is None else curve.values.tolist()
        rows = "".join(
            json.dumps({"step": at, data.metric.name: value}) + "\n"
            for at, value in enumerate(values)
        )
        config = {key: run.config[key] for key in data.axes}
        sweep.run(config, run.seed, rows, run.state, cell=run.cell)
    sweep.save()
    (read,) = settle(load(Registry(str(folder)), "s", None, None))
    return study(read)


def agree(name: str, cells: int, seeds: int, sweeps: int) -> tuple[int, int]:
    """Return in how many sweeps both readings gave the same sentences and number, and the number of
    sweeps."""
    rng = np.random.default_rng([7, cells, seeds, *name.encode()])
    same = 0
    for _ in range(sweeps):
        data = make(rng, (WORLDS | MORE)[name], cells, seeds, np.zeros(cells)).data
        with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
            same += _said_by(study(data)) == _said_by(through_files(data, Path(folder)))
    return same, sweeps


def _said_by(report: Study) -> tuple[Any, ...]:
    """Return the sentences and the number of a report."""
    texts = [(f.kind, f.text.replace("test/nll", "metric")) for f in report.findings]
    return texts, report.verdict.number, report.verdict.spread


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--cells", type=int, nargs="*", default=[12])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--true", action="store_true", help="with true effects")
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="worlds, by name")
    given = parser.parse_args()
    for cells in given.cells:
        if given.files:
            agreements = [agree(name, cells, given.seeds, given.files) for name in (WORLDS | MORE)]
            same, of = (sum(part) for part in zip(*agreements, strict=True))
            print(f"{cells} cells: both readings agree in {same} of {of} sweeps", flush=True)
        print(f"\n{cells} cells, n = {given.seeds}, {'true effects' if given.true else 'equal'}\n")
        every(cells, given.seeds, given.trials, true=given.true, only=given.only)


if __name__ == "__main__":
    main()
