"""Judges the texts that models wrote: rewards, pass@k, signal, truncation, examples, suspicions.
If rollouts have several splits, the training split is judged. A cell's figures are means over
its runs. Pure."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.reading.frames import RunData, SweepData
from sweeper.analysis.reading.rollouts import Rollout
from sweeper.analysis.statistics.inference import pass_at_k
from sweeper.analysis.statistics.seeds import Summary, finite_mean, summarise

BINS = 20

_Judge = Callable[[list[Rollout]], float | None]


@dataclass(frozen=True)
class Example:
    """A transcript worth reading. `why` is "best" or "worst"."""

    run: str
    cell: str
    why: str
    rollout: Rollout


@dataclass(frozen=True)
class CellBehaviour:
    """Statistics of a cell's rollouts; unknown values are None. `signal`, `length` and `reward` are
    dicts from iteration to value: the fraction of groups whose rewards differ, the mean number of
    sampled tokens, and the mean reward. The other statistics are about the last iteration.
    `histogram` has the fraction of rewards in each bin. `passes` is a dict from k to pass@k.
    `truncated` is the fraction of truncated answers. `distinct` is the mean fraction of different
    answers in a group. `repeated` is the fraction of answers that repeat themselves."""

    cell: str
    rollouts: int
    signal: Mapping[int, float]
    length: Mapping[int, float]
    reward: Mapping[int, float]
    histogram: tuple[float, ...]
    passes: Mapping[int, Summary]
    truncated: float | None
    distinct: float | None
    repeated: float | None = None


@dataclass(frozen=True)
class Disagreement:
    """A question on which the mean rewards of cells differ. `rewards` maps each cell to its mean
    reward and its number of answers."""

    prompt: str
    reference: str
    rewards: Mapping[str, tuple[float, int]]
    gap: float


@dataclass(frozen=True)
class Flag:
    """A sign of reward hacking in a cell. `kind` is "length", "repetition", "collapse" or
    "reward_without_success"."""

    kind: str
    cell: str
    text: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of all cells. The histograms go from `low` to `high`. `split` is the split
    whose rollouts were examined."""

    split: str
    cells: tuple[CellBehaviour, ...]
    low: float
    high: float
    examples: tuple[Example, ...]
    disagreements: tuple[Disagreement, ...]
    flags: tuple[Flag, ...]


def examine(data: SweepData, ranking: Ranking) -> Behaviour | None:
    """Examine the rollouts of a sweep. Return None if there are no rollouts."""
    splits = sorted({rollout.split for run in data.runs for rollout in run.rollouts})
    if not splits:
        return None
    split = "train" if "train" in splits else splits[0]
    by_run = {run.id: [r for r in run.rollouts if r.split == split] for run in data.runs}
    finals = [
        r.reward for run in data.runs for r in _final(by_run[run.id]) if math.isfinite(r.reward)
    ]
    low, high = (min(finals), max(finals)) if finals else (0.0, 0.0)
    limits = {run.id: _limit(run, data) for run in data.runs}
    sampled = (cell for cell in ranking.cells if any(by_run[run.id] for run in cell.runs))
    cells = tuple(_cell(cell, by_run, limits, (low, high)) for cell in sampled)
    shown = [] if ranking.best_run is None else examples(ranking.best_run, split, 3)
    return Behaviour(
        split=split,
        cells=cells,
        low=low,
        high=high,
        examples=tuple(shown),
        disagreements=tuple(_disagreements(ranking, by_run)),
        flags=tuple(flag for cell in cells for flag in _flags(cell, ranking, by_run)),
    )


def _final(rollouts: Sequence[Rollout]) -> list[Rollout]:
    end = max((rollout.iteration for rollout in rollouts), default=0)
    return [rollout for rollout in rollouts if rollout.iteration == end]


def _groups(rollouts: Iterable[Rollout]) -> dict[int, list[Rollout]]:
    by_iteration: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        by_iteration.setdefault(rollout.group, []).append(rollout)
    return by_iteration


def _limit(run: RunData, data: SweepData) -> int | None:
    value = run.config.get("max_tokens")
    if value is None and data.plan is not None:
        value = data.plan.recipe.takes.get("max_tokens", {}).get("default")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _cell(
    cell: Cell,
    by_run: Mapping[str, list[Rollout]],
    limits: Mapping[str, int | None],
    ends: tuple[float, float],
) -> CellBehaviour:
    runs = [run for run in cell.runs if by_run[run.id]]
    sampled = [by_run[run.id] for run in runs]
    finals = [_final(rollouts) for rollouts in sampled]
    cut = [_cut(rollouts, limits[run.id]) for run, rollouts in zip(runs, finals, strict=True)]
    return CellBehaviour(
        cell=cell.name,
        rollouts=sum(map(len, sampled)),
        signal=_over_time(sampled, _signal),
        length=_over_time(sampled, _mean_length),
        reward=_over_time(sampled, _mean_reward),
        histogram=_histogram(finals, ends),
        passes=_passes(finals),
        truncated=_known_mean(cut),
        distinct=_known_mean(map(_distinct, finals)),
        repeated=_known_mean(map(_repeated, finals)),
    )


def _known_mean(values: Iterable[float | None]) -> float | None:
    return finite_mean([value for value in values if value is not None])


def _over_time(runs: Sequence[list[Rollout]], judge: _Judge) -> dict[int, float]:
    collected: dict[int, list[float]] = {}
    for rollouts in runs:
        by_iteration: dict[int, list[Rollout]] = {}
        for rollout in rollouts:
            by_iteration.setdefault(rollout.iteration, []).append(rollout)
        for iteration, batch in by_iteration.items():
            if (value := judge(batch)) is not None:
                collected.setdefault(iteration, []).append(value)
    shared = {i: values for i, values in sorted(collected.items()) if 2 * len(values) > len(runs)}
    return {iteration: finite_mean(values) or 0.0 for iteration, values in shared.items()}


def _mean_length(rollouts: list[Rollout]) -> float | None:
    return finite_mean([rollout.length for rollout in rollouts])


def _mean_reward(rollouts: list[Rollout]) -> float | None:
    return finite_mean([rollout.reward for rollout in rollouts])


def _share_right(rollouts: list[Rollout]) -> float | None:
    return finite_mean([float(bool(rollout.correct)) for rollout in rollouts])


def _signal(rollouts: list[Rollout]) -> float | None:
    groups = [group for group in _groups(rollouts).values() if len(group) > 1]
    mixed = [len({r.reward for r in group}) > 1 for group in groups]
    return sum(mixed) / len(mixed) if mixed else None


def _histogram(runs: Sequence[list[Rollout]], ends: tuple[float, float]) -> tuple[float, ...]:
    shares = [0.0] * BINS
    low, width = ends[0], (ends[1] / BINS - ends[0] / BINS) or 1.0
    for rollouts in runs:
        there = [rollout.reward for rollout in rollouts if math.isfinite(rollout.reward)]
        for reward in there:
            at = min(max(int((reward - low) / width), 0), BINS - 1)
            shares[at] += 1 / (len(there) * len(runs))
    return tuple(round(share, 6) for share in shares)


def _passes(runs: Sequence[list[Rollout]]) -> dict[int, Summary]:
    by_k: dict[int, list[float]] = {}
    for rollouts in runs:
        groups = list(_groups(rollouts).values())
        if not groups or any(r.correct is None for r in rollouts):
            return {}
        k = 1
        while k <= min(len(group) for group in groups):
            scores = [pass_at_k(len(g), sum(bool(r.correct) for r in g), k) for g in groups]
            by_k.setdefault(k, []).append(math.fsum(scores) / len(scores))
            k *= 2
    return {k: summarise(passed) for k, passed in by_k.items() if len(passed) == len(runs)}


def _cut(rollouts: Sequence[Rollout], limit: int | None) -> float | None:
    """Return the fraction of truncated answers. An answer with `limit` or more tokens is truncated,
    unless its record says that the model ended it. Return None without a limit or answers."""
    if limit is None or not rollouts:
        return None
    return sum(r.length >= limit and r.ended is not True for r in rollouts) / len(rollouts)


def _distinct(rollouts: Sequence[Rollout]) -> float | None:
    groups = [g for g in _groups(rollouts).values() if len(g) > 3 and all(r.response for r in g)]
    if not groups:
        return None
    return math.fsum(len({r.response for r in g}) / len(g) for g in groups) / len(groups)


def _repeated(rollouts: Sequence[Rollout]) -> float | None:
    texts = [rollout.response for rollout in rollouts if rollout.response][:400]
    return sum(map(_loops, texts)) / len(texts) if texts else None


def _loops(text: str) -> bool:
    """Return whether a text of at least 200 bytes is repetitive, which means that it compresses to
    less than a seventh. Prose compresses to about a third, and code to about a fifth."""
    raw = text.encode("utf-8", "replace")
    return len(raw) >= 200 and len(zlib.compress(raw)) * 7 < len(raw)


def examples(run: RunData, split: str, count: int) -> list[Example]:
    """Return at most `count` rollouts with the best reward and `count` with the worst, from the
    last iteration of a run. No two of the best, and no two of the worst, answer the same
    question."""
    final = [r for r in _final([r for r in run.rollouts if r.split == split]) if r.response]
    ordered = sorted(final, key=lambda r: -r.reward if math.isfinite(r.reward) else math.inf)
    best = _of_different_questions(ordered, count)
    worst = _of_different_questions([r for r in reversed(ordered) if r not in best], count)
    shown = [Example(run.name, run.cell, "best", rollout) for rollout in best]
    return shown + [Example(run.name, run.cell, "worst", rollout) for rollout in worst]


def _of_different_questions(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    by_question: dict[object, Rollout] = {}
    for rollout in rollouts:
        by_question.setdefault(rollout.prompt or rollout.group, rollout)
        if len(by_question) == count:
            break
    return list(by_question.values())


def _disagreements(ranking: Ranking, by_run: Mapping[str, list[Rollout]]) -> list[Disagreement]:
    answers: dict[str, dict[str, list[float]]] = {}
    references: dict[str, str] = {}
    for cell in ranking.cells:
        for run in cell.runs:
            for rollout in _final(by_run[run.id]):
                if rollout.prompt and math.isfinite(rollout.reward):
                    references.setdefault(rollout.prompt, rollout.reference)
                    by_cell = answers.setdefault(rollout.prompt, {})
                    by_cell.setdefault(cell.name, []).append(rollout.reward)
    disagreements: list[Disagreement] = []
    for prompt, cells in answers.items():
        if len(cells) < 2 or min(map(len, cells.values())) < 2:
            continue
        means = {cell: (finite_mean(values) or 0.0, len(values)) for cell, values in cells.items()}
        levels = [mean for mean, _ in means.values()]
        gap = max(levels) / 2 - min(levels) / 2
        disagreements.append(Disagreement(prompt, references[prompt], means, gap))
    disagreements.sort(key=lambda question: (-question.gap, question.prompt))
    return [question for question in disagreements if question.gap > 0][:6]


def _flags(
    cell: CellBehaviour, ranking: Ranking, by_run: Mapping[str, list[Rollout]]
) -> list[Flag]:
    flags: list[Flag] = []
    if len(cell.length) > 1 and len(cell.reward) > 1:
        first, last = (cell.length[i] for i in (min(cell.length), max(cell.length)))
        before, after = (cell.reward[i] for i in (min(cell.reward), max(cell.reward)))
        if first > 0 and last >= 2 * first and last >= 16:
            text = f"answers grew from {first:.0f} to {last:.0f} tokens"
            flags.append(Flag("length", cell.cell, text, {"first": first, "last": last}))
        flags += _hollow(cell, ranking, by_run, after - before)
    if cell.repeated is not None and cell.repeated > 0.1:
        text = f"{labels.percent(cell.repeated)} of its last answers repeat themselves"
        flags.append(Flag("repetition", cell.cell, text, {"share": cell.repeated}))
    if cell.distinct is not None and cell.distinct <= 0.1 and cell.signal:
        right = cell.passes.get(1)
        if right is None or (right.mean or 0.0) < 0.9:
            text = "nearly the same answer each time a question is asked"
            flags.append(Flag("collapse", cell.cell, text, {"distinct": cell.distinct}))
    return flags


def _hollow(
    cell: CellBehaviour, ranking: Ranking, by_run: Mapping[str, list[Rollout]], gain: float
) -> list[Flag]:
    """Return a flag if the reward rose but the fraction of correct answers did not. Return no flag
    if at least 90 % of the answers in the last iteration are correct."""
    ranked = next(entry for entry in ranking.cells if entry.name == cell.cell)
    marks = [[r for r in by_run[run.id] if r.correct is not None] for run in ranked.runs]
    right = _over_time([m for m in marks if m], _share_right)
    spread = max(cell.reward.values()) - min(cell.reward.values())
    if len(right) < 2 or not spread or gain < 0.5 * spread:
        return []
    before, after = right[min(right)], right[max(right)]
    if after > before + 0.02 or after >= 0.9:
        return []
    rewards = labels.together(cell.reward[min(cell.reward)], cell.reward[max(cell.reward)])
    shares = [labels.percent(before), labels.percent(after)]
    how = f"stayed at {shares[0]}" if shares[0] == shares[1] else f"went from {' to '.join(shares)}"
    text = f"the reward rose from {' to '.join(rewards)} while the share of right answers {how}"
    return [Flag("reward_without_success", cell.cell, text, {"first": before, "last": after})]
