"""Reads a sample of a run's rollout summaries as plain values: the first iteration, the last,
and some in between, up to a limit in bytes."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rows import as_float, parse
from sweeper.results.runs import RecordedRun

ITERATIONS = 9
"""The largest number of iterations that are read of a run."""

BUDGET = 256_000_000
"""The largest number of bytes that are read of a sweep's summaries. Each run has an equal part."""

TEXT = 4000
"""The largest number of characters of a text. The rest of the text is dropped."""

_FILE = re.compile(r"/iteration_(\d+)/([^/]+)_rollout_summaries\.jsonl$")
_CUT = "max_tokens"
_PROMPTS = ("question", "prompt", "problem", "input", "instruction", "query")
_ANSWERS = ("response", "completion", "output", "answer_text", "generation", "transcript")
_REFERENCES = ("reference_answer", "reference", "ground_truth", "gold_answer", "target", "answer")


class Episode(NamedTuple):
    """A trajectory of several turns on a named task. `solved` says whether the episode earned the
    full reward. `stop` is the reason for its end ("" if not recorded). `cut` is the number of
    truncated turns. `failures` counts the environments that died before the episode was played.
    `lost` counts the trajectories of its group that were given up because environments died; only
    the first episode of a group records this number."""

    task: str
    turns: int
    solved: bool
    stop: str
    cut: int
    seconds: float | None
    failures: int
    lost: int


class Rollout(NamedTuple):
    """A trajectory. `length` is the number of sampled tokens in all turns. `ended` says whether the
    model ended the answer, and `correct` whether the answer was right (None if unknown). `prompt`,
    `response` and `reference` are "" if not recorded. Answers to questions have no `episode`."""

    iteration: int
    split: str
    group: int
    reward: float
    length: int
    ended: bool | None
    correct: bool | None
    prompt: str
    response: str
    reference: str
    episode: Episode | None = None


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return `count` evenly spaced elements of the ascending `numbers`, with the first and the last
    (only the last if `count` is 1). Return all `numbers` if there are no more than `count`."""
    if len(numbers) <= count:
        return list(numbers)
    if count == 1:
        return [numbers[-1]]
    return [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]


def read_rollouts(run: RecordedRun, listed: Mapping[str, int], budget: int) -> tuple[Rollout, ...]:
    """Return a sample of a run's rollouts, in order of split and iteration, from at most `budget`
    bytes of the files `listed` (a dict from path to size). If two attempts wrote the same
    iteration, use the file of the later attempt."""
    files: dict[str, dict[int, tuple[str, int]]] = {}
    for path, size in listed.items():
        match = _FILE.search(path)
        if match is not None:
            files.setdefault(match[2], {})[int(match[1])] = (path, size)
    rollouts: list[Rollout] = []
    for split in sorted(files)[:4]:
        by_iteration = files[split]
        share = budget // min(len(files), 4)
        count = min(ITERATIONS, max(2, share // 100_000))
        for iteration in spread(sorted(by_iteration), count):
            path, size = by_iteration[iteration]
            data = _head(run, path, size, share // count)
            rollouts += parse_rollouts(parse(data).rows, iteration, split, cut=len(data) < size)
    return tuple(rollouts)


def _head(run: RecordedRun, path: str, size: int, limit: int) -> bytes:
    try:
        if size <= limit:
            return run.store.read(path)
        head = run.store.read_range(path, 0, limit)
    except (NotFound, StoreError):  # the file is being written, or was removed
        return b""
    return head[: head.rfind(b"\n") + 1]


def parse_rollouts(
    rows: Iterable[Mapping[str, Any]], iteration: int, split: str, *, cut: bool = False
) -> list[Rollout]:
    """Return the valid rows of a rollout file as rollouts. `cut` says that the end of the file was
    not read. The last group may then be incomplete, and is left out if there are other groups."""
    rollouts = [rollout for row in rows if (rollout := _parse(row, iteration, split)) is not None]
    if cut and rollouts and rollouts[-1].group != rollouts[0].group:
        last = rollouts[-1].group
        rollouts = [rollout for rollout in rollouts if rollout.group != last]
    return rollouts


def _parse(row: Mapping[str, Any], iteration: int, split: str) -> Rollout | None:
    reward = as_float(row.get("total_reward"))
    if reward is None:
        return None
    steps = _mappings(row.get("steps"))
    metrics = dict(_pairs([row.get("trajectory_metrics"), *(s.get("metrics") for s in steps)]))
    logs = [dict(_pairs([step.get("logs")])) for step in steps]
    prompt = next((text for log in logs if (text := _text(log, _PROMPTS))), "")
    replies = [text for log in logs if (text := _text(log, _ANSWERS))]
    return Rollout(
        iteration=iteration,
        split=split,
        group=_int(row.get("group_idx")),
        reward=reward,
        length=sum(_int(step.get("ac_len")) for step in steps),
        ended=_truth(metrics.get("format")),
        correct=_truth(metrics.get("correct")),
        prompt=prompt,
        response="\n\n".join(replies)[:TEXT],
        reference=next((text for log in logs if (text := _text(log, _REFERENCES))), ""),
        episode=_episode(row, reward, steps, logs),
    )


def _episode(
    row: Mapping[str, Any],
    reward: float,
    steps: Sequence[Mapping[str, Any]],
    logs: Sequence[Mapping[str, Any]],
) -> Episode | None:
    task = next((text for log in logs if (text := _text(log, ("item",)))), "")
    metrics = dict(_pairs([row.get("trajectory_metrics")]))
    if not task or (len(steps) < 2 and "solved" not in metrics):
        return None
    measured = [dict(_pairs([step.get("metrics")])) for step in steps]
    final = {**(measured[-1] if measured else {}), **metrics}
    stops = [key.removeprefix("stop/") for key in final if str(key).startswith("stop/")]
    solved = _truth(metrics.get("solved"))
    return Episode(
        task=task,
        turns=len(steps),
        solved=reward >= 1 if solved is None else solved,
        stop=next((stop for stop in stops if stop != _CUT), ""),
        cut=sum(f"stop/{_CUT}" in step for step in measured),
        seconds=as_float(metrics.get("seconds")),
        failures=_int(metrics.get("environment_failures")),
        lost=_int(metrics.get("episodes_lost")),
    )


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    items = cast(list[Any], value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def _pairs(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for value in values:
        if isinstance(value, dict):
            yield from value.items()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _text(log: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        if name in log and log[name] is not None:
            value = log[name]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            return text[:TEXT]
    return ""


def _int(value: Any) -> int:
    number = as_float(value)
    return int(number) if number is not None and math.isfinite(number) else 0


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    number = as_float(value)
    return None if number is None else number >= 0.5
