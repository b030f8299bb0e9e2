"""Compares cells by their episodes of several turns on named tasks: rewards, reasons for the
end, and costs of environments, for each cell and each task. Pure."""

# Figures of a cell are means over its runs, at the last iteration that was read; failures are
# counted over all iterations that were read. Whether a task distinguishes the cells is an F test of
# the runs' mean rewards on it, corrected for the number of tasks (Bonferroni).

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.rollouts import Episode
from sweeper.analysis.statistics.distributions import upper_tail_f
from sweeper.analysis.statistics.inference import CONFIDENCE

_LIMITS = ("max_turns", "context_limit", "time")


@dataclass(frozen=True)
class Figures:
    """Figures of some episodes: their number, the mean reward, the fraction with the full reward,
    the mean number of turns, `stops` (the fraction of episodes that each limit ended), the fraction
    of truncated turns, and mean seconds (None if not recorded). Two counts are over all episodes
    that were read: `failures` (environments that died) and `lost` (episodes that were given up for
    this reason)."""

    episodes: int
    reward: float
    solved: float
    turns: float
    limited: float
    stops: Mapping[str, float]
    cut: float
    seconds: float | None
    failures: int
    lost: int


@dataclass(frozen=True)
class CellEpisodes:
    """The episodes of a cell. `first` is the mean reward at the first iteration. `tasks` is the
    number of tasks that the cell solved at least once."""

    cell: str
    runs: int
    first: float
    tasks: int
    figures: Figures


@dataclass(frozen=True)
class TaskEpisodes:
    """The results of all cells on a task. `solved_by` has the cells that solved the task at least
    once. `gap` is the difference between the highest and the lowest mean. `p` tests whether the
    cells differ, and is corrected for the number of tasks (None if there is only one cell, or no
    cell has two runs)."""

    task: str
    cells: Mapping[str, Figures]
    solved_by: tuple[str, ...]
    gap: float
    p: float | None

    @property
    def apart(self) -> bool:
        """Whether cells differ on the task beyond the noise between runs."""
        return self.p is not None and self.p <= 1 - CONFIDENCE


@dataclass(frozen=True)
class Episodes:
    """The episodes of a split, with the cells in the order of the ranking. Tasks on which cells
    differ beyond the noise come first, then other solved tasks, then unsolved ones; within each
    of these groups, tasks with a larger gap come first. `read` is the number of episodes that
    were read, from at most `iterations` iterations of each run."""

    split: str
    cells: tuple[CellEpisodes, ...]
    tasks: tuple[TaskEpisodes, ...]
    read: int
    iterations: int

    @property
    def unsolved(self) -> list[str]:
        """The tasks that no cell solved in any episode."""
        return [one.task for one in self.tasks if not one.solved_by]

    @property
    def apart(self) -> list[str]:
        """The tasks on which cells differ beyond the noise."""
        return [one.task for one in self.tasks if one.apart]


class _Played(NamedTuple):
    """An episode, its iteration and its reward."""

    iteration: int
    reward: float
    episode: Episode


def by_episodes(data: SweepData, ranking: Ranking) -> list[Episodes]:
    """Return the episodes of each split, training splits first. The list is empty for a sweep
    without episodes."""
    rollouts = [rollout for run in data.runs for rollout in run.rollouts]
    splits = {rollout.split for rollout in rollouts if rollout.episode is not None}
    in_order = sorted(splits, key=lambda split: (split != "train", split))
    return [_of_split(split, ranking) for split in in_order]


def _of_split(split: str, ranking: Ranking) -> Episodes:
    played: dict[str, list[list[_Played]]] = {}
    for cell in ranking.cells:
        if runs := [own for run in cell.runs if (own := _episodes_of(run, split))]:
            played[cell.name] = runs
    every = [one for runs in played.values() for own in runs for one in own]
    tasks = sorted({one.episode.task for one in every})
    by_task = [_task(task, played, len(tasks)) for task in tasks]
    by_task.sort(key=lambda one: (not one.apart, not one.solved_by, -one.gap, one.task))
    cells = tuple(_cell(cell, runs) for cell, runs in played.items())
    counts = [len({one.iteration for one in own}) for runs in played.values() for own in runs]
    return Episodes(split, cells, tuple(by_task), read=len(every), iterations=max(counts))


def _episodes_of(run: RunData, split: str) -> list[_Played]:
    return [
        _Played(one.iteration, one.reward, one.episode)
        for one in run.rollouts
        if one.split == split and one.episode is not None and math.isfinite(one.reward)
    ]


def _at(end: int, own: Iterable[_Played]) -> list[_Played]:
    return [one for one in own if one.iteration == end]


def _last(own: Sequence[_Played]) -> list[_Played]:
    return _at(max(one.iteration for one in own), own)


def _cell(cell: str, runs: Sequence[Sequence[_Played]]) -> CellEpisodes:
    firsts = [_at(min(one.iteration for one in own), own) for own in runs]
    return CellEpisodes(
        cell=cell,
        runs=len(runs),
        first=_mean([_reward(own) for own in firsts]),
        tasks=len({one.episode.task for own in runs for one in own if one.episode.solved}),
        figures=_figures([_last(own) for own in runs], [one for own in runs for one in own]),
    )


def _task(task: str, played: Mapping[str, Sequence[Sequence[_Played]]], tasks: int) -> TaskEpisodes:
    cells: dict[str, Figures] = {}
    levels: list[list[float]] = []
    solved: list[str] = []
    for cell, runs in played.items():
        on_task = [[one for one in run if one.episode.task == task] for run in runs]
        own = [episodes for episodes in on_task if episodes]
        if not own:
            continue
        lasts = [_last(run) for run in own]
        cells[cell] = _figures(lasts, [one for run in own for one in run])
        levels.append([_reward(run) for run in lasts])
        if any(one.episode.solved for run in own for one in run):
            solved.append(cell)
    means = [one.reward for one in cells.values()]
    p = f_test(levels)
    p = None if p is None else min(1.0, p * tasks)
    return TaskEpisodes(task, cells, tuple(solved), max(means) - min(means), p)


def f_test(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the p value of a one-way analysis of variance. None if there is only one group, or
    no group has two values."""
    count = sum(map(len, groups))
    df, below = len(groups) - 1, count - len(groups)
    if df < 1 or below < 1:
        return None
    whole = math.fsum(value for own in groups for value in own) / count
    between = math.fsum(len(own) * (_mean(own) - whole) ** 2 for own in groups)
    within = math.fsum((value - _mean(own)) ** 2 for own in groups for value in own)
    if within <= 1e-12 * between or within == 0:
        return 0.0 if between > 0 else 1.0
    return upper_tail_f(between / df / (within / below), df, below)


def _figures(runs: Sequence[Sequence[_Played]], every: Sequence[_Played]) -> Figures:
    """Return the figures: means over the episodes of each run, averaged over `runs`, and counts
    over the episodes in `every`."""
    stops = [Counter(one.episode.stop for one in own) for own in runs]
    timed = [[s for one in own if (s := one.episode.seconds) is not None] for own in runs]
    ended = list(zip(stops, runs, strict=True))
    shares = {limit: _mean([n[limit] / len(own) for n, own in ended]) for limit in _LIMITS}
    limits = {limit: share for limit, share in shares.items() if share}
    return Figures(
        episodes=sum(map(len, runs)),
        reward=_mean([_reward(own) for own in runs]),
        solved=_mean([_mean([float(one.episode.solved) for one in own]) for own in runs]),
        turns=_mean([_mean([one.episode.turns for one in own]) for own in runs]),
        limited=math.fsum(limits.values()),
        stops=limits,
        cut=_mean([_cut(own) for own in runs]),
        seconds=_mean([_mean(own) for own in timed if own]) if any(timed) else None,
        failures=sum(one.episode.failures for one in every),
        lost=sum(one.episode.lost for one in every),
    )


def _cut(own: Sequence[_Played]) -> float:
    turns = sum(one.episode.turns for one in own)
    return sum(one.episode.cut for one in own) / turns if turns else 0.0


def _reward(own: Sequence[_Played]) -> float:
    return _mean([one.reward for one in own])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
