"""Compares cells over several tasks: interquartile means, performance profiles and the probability
of improvement, as in rliable (Agarwal et al. 2021, arXiv:2108.13264)."""

# The interquartile mean is that of the middle half of all scores (a table with a row per run and a
# column per task). Its interval is the percentile interval of a bootstrap that draws runs within
# each task. A profile has the share of scores above each level. The chance that one cell improves
# on another is the chance that a run of the one beats a run of the other, with ties counting half,
# averaged over tasks.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.series import Floats
from sweeper.analysis.reading.splits import family
from sweeper.results.cells import center


@dataclass(frozen=True)
class ScoredCheckpoint:
    """The scores of a cell at a checkpoint: a dict from suite to the mean score of the runs."""

    cell: str
    checkpoint: str
    runs: int
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Checkpoints:
    """The scores of checkpoints on suites: all checkpoints of the best cell, and the last
    checkpoint of each other cell. Cells are in the order of the ranking."""

    suites: tuple[str, ...]
    rows: tuple[ScoredCheckpoint, ...]


LEVELS = tuple(level / 50 for level in range(51))
_DRAWS = 2000
_ENOUGH = 3
"""The smallest number of runs for a bootstrap."""


@dataclass(frozen=True)
class TasksCell:
    """The results of a cell on all tasks together. `iqm` is the interquartile mean, with the
    interval from `low` to `high` (None for fewer than three runs). `improves` is the probability
    that a run of this cell beats a run of the first cell."""

    cell: str
    runs: int
    iqm: float
    low: float | None
    high: float | None
    mean: float
    median: float
    gap: float
    improves: float
    profile: tuple[float, ...]


@dataclass(frozen=True)
class Tasks:
    """A comparison of cells on several `tasks`. `leaf` is the last part of the tasks' metric names,
    which is the same for all. The cell with the best interquartile mean is first."""

    leaf: str
    tasks: tuple[str, ...]
    cells: tuple[TasksCell, ...]


def by_checkpoints(ranking: Ranking) -> Checkpoints | None:
    """Return the scores of checkpoints. Return None if no checkpoint was evaluated on a suite."""
    rows: list[ScoredCheckpoint] = []
    for cell in ranking.cells:
        runs = [run for run in cell.runs if run.scores and not run.superseded]
        places = sorted({score.place for run in runs for score in run.scores})
        whole = ranking.best is not None and cell.name == ranking.best.name
        rows += (_at_checkpoint(cell.name, runs, place) for place in places[0 if whole else -1 :])
    suites = sorted({suite for row in rows for suite in row.scores})
    return Checkpoints(tuple(suites), tuple(rows)) if rows else None


def _at_checkpoint(
    cell: str, runs: Sequence[RunData], place: tuple[int, float, str]
) -> ScoredCheckpoint:
    scores = [score for run in runs for score in run.scores if score.place == place]
    suites = dict.fromkeys(score.suite for score in scores)
    values = {suite: [entry.score for entry in scores if entry.suite == suite] for suite in suites}
    return ScoredCheckpoint(
        cell,
        scores[-1].checkpoint,
        max(map(len, values.values())),
        {suite: center(numbers) for suite, numbers in values.items()},
    )


def by_tasks(data: SweepData, ranking: Ranking) -> Tasks | None:
    """Compare cells on a family of tasks (see `splits.family`) that each run that counts has
    recorded. Return None if there is no family, if a score is not from 0 to 1, or if the sweep does
    not maximize its metric."""
    counting = [run for cell in ranking.cells for run in cell.runs if run.counts]
    recorded = frozenset(data.keys).intersection(*(run.curves for run in counting))
    keys = family(recorded, data.metric_name) if counting else ()
    if data.metric is None or data.metric.goal != "maximize" or not keys:
        return None
    tables: dict[str, Floats] = {}
    for cell in ranking.cells:
        rows = [[run.last_of(key) for key in keys] for run in cell.runs if run.counts]
        if rows:
            tables[cell.name] = np.array(rows, dtype=float)
    whole = np.concatenate(list(tables.values()))
    if not (np.isfinite(whole).all() and whole.min() >= 0 and whole.max() <= 1):
        return None
    order = sorted(tables, key=lambda cell: -interquartile_mean(tables[cell]))
    return Tasks(
        leaf=keys[0].rpartition("/")[2],
        tasks=tuple(key.split("/")[-2] for key in keys),
        cells=tuple(_cell(cell, tables[cell], tables[order[0]]) for cell in order),
    )


def _cell(cell: str, table: Floats, best: Floats) -> TasksCell:
    low, high = interval(table) if len(table) >= _ENOUGH else (None, None)
    return TasksCell(
        cell,
        len(table),
        interquartile_mean(table),
        low,
        high,
        float(table.mean()),
        float(np.median(table.mean(axis=0))),
        float(1 - np.minimum(table, 1).mean()),
        improvement(table, best),
        tuple(profile(table, LEVELS)),
    )


def interquartile_mean(scores: Floats) -> float:
    """Return the mean of the middle half of all scores (`scipy.stats.trim_mean` at 0.25)."""
    return float(_trimmed(np.sort(scores, axis=None)))


def _trimmed(ordered: Floats) -> Floats:
    count = ordered.shape[-1]
    cut = int(0.25 * count)
    return ordered[..., cut : count - cut].mean(axis=-1)


def interval(scores: Floats) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the interquartile mean. The same scores always give the
    same interval."""
    rng = np.random.default_rng(20211)
    runs, tasks = scores.shape
    # In a bootstrap of n runs, the variance is that of the runs times (n - 1) / n. Spread the
    # scores to make up for that.
    middle = scores.mean(axis=0)
    scores = middle + (scores - middle) * (runs / (runs - 1)) ** 0.5
    drawn = rng.integers(0, runs, (_DRAWS, runs, tasks))
    means = _trimmed(np.sort(scores[drawn, np.arange(tasks)].reshape(_DRAWS, -1), axis=1))
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def profile(scores: Floats, levels: Sequence[float]) -> list[float]:
    """Return a list with the fraction of scores above each level."""
    return [float((scores > level).mean()) for level in levels]


def improvement(first: Floats, second: Floats) -> float:
    """Return the probability that a run of `first` beats a run of `second`, averaged over tasks. A
    tie counts as half a win (Mann and Whitney's U, divided by the number of pairs)."""
    gaps = first[:, np.newaxis, :] - second[np.newaxis, :, :]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())
