"""Reads what a run answered, item by item: one score a question, wherever a run has left them.

Three shapes are known. tinker-cookbook's EvalStore: `<anything>/<benchmark>/trajectories.jsonl`
beside a `result.json`, which ends the evaluation. Rollout summaries that keep the question's text.
And for any program `items.jsonl` in the run's folder, a line an answer: {"item": "q17", "score": 1,
"task": "gsm8k", "step": 200, "cluster": "page 4", "prompt": "..."}, of which `item` and `score` are
needed. Of several evaluations of a task the last one counts.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sweeper.errors import NotFound, StoreError
from sweeper.metrics import as_float, parse
from sweeper.results.runs import RecordedRun

__all__ = ["LIMIT", "Answered", "ItemFile", "item_files", "parse_items", "read_items"]

LIMIT = 64_000_000
"""The largest file that is read, in bytes: the first part of a larger one would be what was
answered first, which is no fair sample."""

_ITEMS = "items.jsonl"
_EVALUATED = "trajectories.jsonl"
_SUMMARIES = re.compile(r"(?:^|/)iteration_(\d+)/([^/]+)_rollout_summaries\.jsonl$")
_PROMPTS = ("question", "prompt", "problem", "input", "instruction", "query")
_SHOWN = 400
_NUMBERS = re.compile(r"(\d+)")


class ItemFile(NamedTuple):
    """A file with answers. `kind` is "items", "store" or "summaries"; `task` is what its path says
    it is about ("" if nothing). The later of two evaluations has the greater `order`, if its name
    tells; a `note` beside it may say when it was."""

    kind: str
    task: str
    order: tuple[Any, ...]
    path: str
    size: int
    note: str = ""


class Answered(NamedTuple):
    """A run's answers to a task at its last evaluation. By item: the mean `scores` of its `answers`
    (their number), the `prompts` and the `clusters` where they were recorded. `errors` counts
    answers that ended in an error, which score 0. `training`: the questions were trained on."""

    task: str
    scores: Mapping[str, float]
    answers: Mapping[str, int]
    prompts: Mapping[str, str]
    clusters: Mapping[str, str]
    errors: int = 0
    training: bool = False


def item_files(paths: Iterable[tuple[str, int]]) -> list[ItemFile]:
    """Find the files with answers among a run's files and sizes, the latest of a task last."""
    listed = dict(paths)
    found = [own for path, size in listed.items() if (own := _file(path, size, listed))]
    return sorted(found, key=lambda file: (file.kind, file.task, file.order))


def _file(path: str, size: int, listed: Mapping[str, int]) -> ItemFile | None:
    folder, _, name = path.rpartition("/")
    if name == _ITEMS:
        return ItemFile("items", "", _natural(path), path, size)
    if name == _EVALUATED and f"{folder}/result.json" in listed:
        above, _, task = folder.rpartition("/")
        note = f"{above}/metadata.json"
        return ItemFile("store", task, _natural(path), path, size, note if note in listed else "")
    summaries = _SUMMARIES.search(path)
    if summaries is None:
        return None
    task = summaries[2].removeprefix("eval_")
    return ItemFile("summaries", task, (int(summaries[1]), *_natural(path)), path, size)


def _natural(path: str) -> tuple[object, ...]:
    """A key that sorts numbers in a name by their size: step 90 is before step 100."""
    parts = _NUMBERS.split(path)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def read_items(
    run: RecordedRun, files: Sequence[ItemFile], limit: int = LIMIT
) -> tuple[list[Answered], list[str]]:
    """Read a run's answers by task. Also returns the paths of files that are too large to be
    read."""
    found: dict[str, Answered] = {}
    large: list[str] = []
    for file in _latest(run, files):
        if file.size > limit:
            large.append(file.path)
            continue
        for one in parse_items(parse(_read(run, file.path)).rows, file):
            found.setdefault(one.task, one)
    return [found[task] for task in sorted(found)], large


def _latest(run: RecordedRun, files: Sequence[ItemFile]) -> list[ItemFile]:
    """The last evaluation of each task: by the time noted for its beginning, else by the numbers in
    its name."""
    tasks: dict[tuple[str, str], list[ItemFile]] = {}
    for file in files:
        tasks.setdefault((file.kind, file.task), []).append(file)
    return [
        own[0] if len(own) == 1 else max(own, key=lambda file: (_begun(run, file), file.order))
        for own in tasks.values()
    ]


def _begun(run: RecordedRun, file: ItemFile) -> str:
    rows = parse(_read(run, file.note).replace(b"\n", b" ") + b"\n").rows if file.note else []
    return next((_text(row.get("timestamp")) for row in rows), "")


def _read(run: RecordedRun, path: str) -> bytes:
    try:
        return run.store.read(path)
    except (NotFound, StoreError):  # swept away, or being written
        return b""


def parse_items(rows: Iterable[Mapping[str, object]], file: ItemFile) -> list[Answered]:
    """Parse the answers of a file by task; what is no answer is passed over. Pure."""
    read = {"items": _of_items, "store": _of_store, "summaries": _of_summaries}[file.kind]
    steps: dict[str, float] = {}
    kept: dict[str, list[_Answer]] = {}
    for answer in read(rows, file):
        latest = steps.get(answer.task, -math.inf)
        if answer.step > latest:
            steps[answer.task], kept[answer.task] = answer.step, []
        if answer.step >= latest:
            kept[answer.task].append(answer)
    return [_gathered(task, own, file) for task, own in kept.items()]


class _Answer(NamedTuple):
    task: str
    item: str
    score: float
    step: float = 0.0
    prompt: str = ""
    cluster: str = ""
    error: bool = False


def _gathered(task: str, answers: Sequence[_Answer], file: ItemFile) -> Answered:
    scores: dict[str, list[float]] = {}
    for answer in answers:
        scores.setdefault(answer.item, []).append(answer.score)
    return Answered(
        task,
        {item: math.fsum(own) / len(own) for item, own in scores.items()},
        {item: len(own) for item, own in scores.items()},
        {answer.item: answer.prompt for answer in answers if answer.prompt},
        {answer.item: answer.cluster for answer in answers if answer.cluster},
        sum(answer.error for answer in answers),
        file.kind == "summaries" and file.task == "train",
    )


def _of_items(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[_Answer]:
    del file
    for row in rows:
        item, score = row.get("item"), _score(row.get("score"))
        if isinstance(item, str | int) and score is not None:
            task, step = row.get("task"), as_float(row.get("step"))
            yield _Answer(
                task if isinstance(task, str) else "",
                str(item),
                score,
                step if step is not None and math.isfinite(step) else 0.0,
                _text(row.get("prompt")),
                _text(row.get("cluster")),
            )


def _of_store(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[_Answer]:
    """Parse an EvalStore. A reward above 0 scores 1, as tinker-cookbook counts."""
    for row in rows:
        reward = _score(row.get("reward"))
        known = row.get("example_id") or row.get("idx")
        if reward is None or not isinstance(known, str | int):
            continue
        failed = row.get("error") is not None
        turns = row.get("turns")
        asked = [turn.get("content") for turn in _mappings(turns) if turn.get("role") == "user"]
        score = 0.0 if failed else float(reward > 0)
        yield _Answer(
            file.task, str(known), score, prompt=_text(asked[0] if asked else ""), error=failed
        )


def _of_summaries(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[_Answer]:
    """Parse rollout summaries. The score is whether the answer was right, if every answer says so,
    else the reward. The question's text identifies the item; without one there is none."""
    found: list[tuple[str, float, float | None]] = []
    for row in rows:
        reward = _score(row.get("total_reward"))
        steps = _mappings(row.get("steps"))
        prompt = next((text for step in steps if (text := _asked(step))), "")
        if reward is not None and prompt:
            found.append((prompt, reward, _right(row, steps)))
    judged = all(right is not None for *_, right in found)
    for prompt, reward, right in found:
        score = right if judged and right is not None else reward
        yield _Answer(file.task, prompt, score, prompt=prompt[:_SHOWN])


def _asked(step: Mapping[str, object]) -> str:
    texts = [log.get(name) for log in _mappings([step.get("logs")]) for name in _PROMPTS]
    return next((text for text in texts if isinstance(text, str) and text), "")


def _right(row: Mapping[str, object], steps: Sequence[Mapping[str, object]]) -> float | None:
    told = [row.get("trajectory_metrics"), *(step.get("metrics") for step in steps[::-1])]
    found = (_score(metrics.get("correct")) for metrics in _mappings(told))
    return next((right for right in found if right is not None), None)


def _score(value: object) -> float | None:
    number = float(value) if isinstance(value, bool) else as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _text(value: Any) -> str:
    return value[:_SHOWN] if isinstance(value, str) else ""


def _mappings(value: object) -> list[Mapping[str, object]]:
    found = cast(list[Any], value) if isinstance(value, list) else []
    return [one for one in found if isinstance(one, dict)]
