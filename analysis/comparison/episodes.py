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
    """Statistics of some episodes: their number, the mean reward, the fraction with the full
    reward, the mean number of turns, the fraction of truncated turns (`cut`), and the mean seconds
    (None if no time is recorded). `stops` maps each limit, such as `max_turns`, to the fraction of
    episodes that this limit ended. `limited` is the sum of these fractions. Of all episodes that
    were read, `failures` counts the environments that died, and `lost` the episodes that were given
    up because their environment died."""

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
    """The episodes of a cell. `first` is the mean reward of the first iteration. `tasks` is the
    number of tasks that the cell solved at least once."""

    cell: str
    runs: int
    first: float
    tasks: int
    figures: Figures


@dataclass(frozen=True)
class TaskEpisodes:
    """The results of all cells on a task. `solved_by` has the cells that solved the task at least
    once. `gap` is the highest mean reward of a cell minus the lowest. `p` tests whether the cells
    differ, and is corrected for the number of tasks. `p` is None if there is only one cell, or if
    no cell has two runs."""

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
    """The episodes of a split. Cells are in the order of the ranking. Tasks are in three groups:
    tasks on which cells differ significantly, other solved tasks, unsolved tasks. In each group,
    the task with the largest gap is first. `read` is the number of episodes that were read.
    `iterations` is the largest number of iterations that were read from a run."""

    split: str
    cells: tuple[CellEpisodes, ...]
    tasks: tuple[TaskEpisodes, ...]
    read: int
    iterations: int

    @property
    def unsolved(self) -> list[str]:
        """The tasks that no cell solved in any episode."""
        return [entry.task for entry in self.tasks if not entry.solved_by]

    @property
    def apart(self) -> list[str]:
        """The tasks on which cells differ beyond the noise."""
        return [entry.task for entry in self.tasks if entry.apart]


class _Played(NamedTuple):
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
        if runs := [episodes for run in cell.runs if (episodes := _episodes_of(run, split))]:
            played[cell.name] = runs
    all_episodes = [entry for runs in played.values() for run in runs for entry in run]
    tasks = sorted({entry.episode.task for entry in all_episodes})
    by_task = [_task(task, played, len(tasks)) for task in tasks]
    by_task.sort(key=lambda entry: (not entry.apart, not entry.solved_by, -entry.gap, entry.task))
    cells = tuple(_cell(cell, runs) for cell, runs in played.items())
    counts = [len({entry.iteration for entry in run}) for runs in played.values() for run in runs]
    return Episodes(split, cells, tuple(by_task), read=len(all_episodes), iterations=max(counts))


def _episodes_of(run: RunData, split: str) -> list[_Played]:
    return [
        _Played(entry.iteration, entry.reward, entry.episode)
        for entry in run.rollouts
        if entry.split == split and entry.episode is not None and math.isfinite(entry.reward)
    ]


def _at(end: int, episodes: Iterable[_Played]) -> list[_Played]:
    return [entry for entry in episodes if entry.iteration == end]


def _last(episodes: Sequence[_Played]) -> list[_Played]:
    return _at(max(entry.iteration for entry in episodes), episodes)


def _cell(cell: str, runs: Sequence[Sequence[_Played]]) -> CellEpisodes:
    firsts = [_at(min(entry.iteration for entry in run), run) for run in runs]
    return CellEpisodes(
        cell=cell,
        runs=len(runs),
        first=_mean([_reward(run) for run in firsts]),
        tasks=len({entry.episode.task for run in runs for entry in run if entry.episode.solved}),
        figures=_figures([_last(run) for run in runs], [entry for run in runs for entry in run]),
    )


def _task(task: str, played: Mapping[str, Sequence[Sequence[_Played]]], tasks: int) -> TaskEpisodes:
    cells: dict[str, Figures] = {}
    levels: list[list[float]] = []
    solved: list[str] = []
    for cell, runs in played.items():
        on_task = [[entry for entry in run if entry.episode.task == task] for run in runs]
        filled = [episodes for episodes in on_task if episodes]
        if not filled:
            continue
        lasts = [_last(run) for run in filled]
        cells[cell] = _figures(lasts, [entry for run in filled for entry in run])
        levels.append([_reward(run) for run in lasts])
        if any(entry.episode.solved for run in filled for entry in run):
            solved.append(cell)
    means = [entry.reward for entry in cells.values()]
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
    whole = math.fsum(value for group in groups for value in group) / count
    between = math.fsum(len(group) * (_mean(group) - whole) ** 2 for group in groups)
    within = math.fsum((value - _mean(group)) ** 2 for group in groups for value in group)
    if within <= 1e-12 * between or within == 0:
        return 0.0 if between > 0 else 1.0
    return upper_tail_f(between / df / (within / below), df, below)


def _figures(runs: Sequence[Sequence[_Played]], all_episodes: Sequence[_Played]) -> Figures:
    stops = [Counter(entry.episode.stop for entry in run) for run in runs]
    timed = [[s for entry in run if (s := entry.episode.seconds) is not None] for run in runs]
    ended = list(zip(stops, runs, strict=True))
    shares = {limit: _mean([n[limit] / len(run) for n, run in ended]) for limit in _LIMITS}
    limits = {limit: share for limit, share in shares.items() if share}
    return Figures(
        episodes=sum(map(len, runs)),
        reward=_mean([_reward(run) for run in runs]),
        solved=_mean([_mean([float(entry.episode.solved) for entry in run]) for run in runs]),
        turns=_mean([_mean([entry.episode.turns for entry in run]) for run in runs]),
        limited=math.fsum(limits.values()),
        stops=limits,
        cut=_mean([_cut(run) for run in runs]),
        seconds=_mean([_mean(seconds) for seconds in timed if seconds]) if any(timed) else None,
        failures=sum(entry.episode.failures for entry in all_episodes),
        lost=sum(entry.episode.lost for entry in all_episodes),
    )


def _cut(episodes: Sequence[_Played]) -> float:
    turns = sum(entry.episode.turns for entry in episodes)
    return sum(entry.episode.cut for entry in episodes) / turns if turns else 0.0


def _reward(episodes: Sequence[_Played]) -> float:
    return _mean([entry.reward for entry in episodes])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
