"""Summarises a step's rollouts: do groups differ, are answers cut off, how long are they?

They are read where the metrics do not say so. Their shape is tinker-cookbook's
(`iteration_000012/train_rollout_summaries.jsonl`, a line a trajectory); a truncated answer has
`stop/max_tokens` (or `max_tokens_reached`) among the metrics of its turn. Pure.
"""

import json
import re
from typing import cast

from sweeper.metrics.rows import as_float, parse

_ERROR = re.compile(r'\{"error": ("(?:[^"\\]|\\.)*")')
_LONGEST = 300
_CUT = ("stop/max_tokens", "max_tokens_reached")
_GOOD = 0.5
"""The reward from which on a group counts as all right, as in tinker-cookbook's `frac_all_good`."""


def path_of(folder: str, step: float) -> str:
    """The file with the rollouts of a step, in the recipe's folder."""
    return f"{folder}/iteration_{int(step):06d}/train_rollout_summaries.jsonl"


def failure_path(folder: str, step: float) -> str:
    """The file with the answers of a step that could not be judged."""
    return f"{folder}/iteration_{int(step):06d}/reward_failures.jsonl"


def first_error(data: bytes) -> str | None:
    """Return the error with which such a file begins. The rest of its line may be missing."""
    match = _ERROR.match(data.decode(errors="replace"))
    try:
        return None if match is None else " ".join(str(json.loads(match[1])).split())[:_LONGEST]
    except ValueError:
        return None


def summarise(data: bytes) -> dict[str, float]:
    """Summarise the whole lines of `data`: role -> share or mean. If the data end within a line,
    the last group is left out, since some of it may be missing."""
    whole = data[: data.rfind(b"\n") + 1]
    groups: dict[object, list[float]] = {}
    cut = known = 0
    lengths: list[float] = []
    for row in parse(whole).rows:
        reward = as_float(row.get("total_reward"))
        if reward is not None:
            groups.setdefault(str(row.get("group_idx")), []).append(reward)
        turns = _turns(row)
        known += bool(turns)
        cut += any(_was_cut(turn) for turn in turns)
        length = [n for turn in turns if (n := as_float(turn.get("ac_len"))) is not None]
        if length:
            lengths.append(sum(length) / len(length))
    if len(whole) < len(data) and len(groups) > 1:
        groups.popitem()
    summary: dict[str, float] = {}
    rewards = [reward for group in groups.values() for reward in group]
    several = [group for group in groups.values() if len(group) > 1]
    if rewards:
        summary["reward"] = sum(rewards) / len(rewards)
    if several:
        same = [group for group in several if len(set(group)) == 1]
        summary["mixed"] = 1 - len(same) / len(several)
        good = sum(group[0] >= _GOOD for group in same)
        summary["good"] = good / len(several)
        summary["bad"] = (len(same) - good) / len(several)
    if known:
        summary["truncated"] = cut / known
    if lengths:
        summary["length"] = sum(lengths) / len(lengths)
    return summary


def _turns(row: dict[str, object]) -> list[dict[str, object]]:
    turns: object = row.get("steps")
    if not isinstance(turns, list):
        return []
    return [turn for turn in cast(list[object], turns) if isinstance(turn, dict)]


def _was_cut(turn: dict[str, object]) -> bool:
    metrics: object = turn.get("metrics")
    if not isinstance(metrics, dict):
        return False
    table = cast(dict[str, object], metrics)
    return any((as_float(table.get(key)) or 0.0) > 0 for key in _CUT)
