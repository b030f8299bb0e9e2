"""Reads the answers of runs item by item, with one score per question: from `items.jsonl`, rollout
summaries with questions, or tinker-cookbook's EvalStore. Only the last evaluation of a task is
read."""

# A line of `items.jsonl`: {"item": "q17", "score": 1, "task": "gsm8k", "step": 200, "cluster":
# "page 4", "prompt": "..."}. `item` and `score` are required; `sample`, `text` (the answer) and
# `answer` (the correct one) are shown if present.

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rows import as_float, parse
from sweeper.results.runs import RecordedRun
from sweeper.sweep.run_record import RUN_KEY, AnswerRow

LIMIT = 64_000_000
"""The maximum size in bytes of a file that is read. Reading only the beginning of a larger file
would mislead, because the items answered first are not a fair sample."""

_ITEMS = "items.jsonl"
_EVALUATED = "trajectories.jsonl"
_SUMMARIES = re.compile(r"(?:^|/)iteration_(\d+)/([^/]+)_rollout_summaries\.jsonl$")
_PROMPTS = ("question", "prompt", "problem", "input", "instruction", "query")
_RESPONSES = ("response", "completion", "answer_given")
_RIGHT = ("reference_answer", "expected", "target")
_SHOWN = 400
_NUMBERS = re.compile(r"(\d+)")


class ItemFile(NamedTuple):
    """A file with a model's answers. `kind` is its format: "items", "store" (EvalStore) or
    "summaries" (of rollouts). `task` is the task named in the path, or "". `order` is a key that
    sorts files by the numbers in their paths. `note` is the path of `metadata.json`, or ""."""

    kind: str
    task: str
    order: tuple[object, ...]
    path: str
    size: int
    note: str = ""


ITEM_COLUMNS = (
    *RUN_KEY,
    *("task", "item", "sample", "score", "text"),
    *("prompt", "answer", "step", "cluster", "error"),
)
"""The columns of `Registry.items`."""


class Answered(NamedTuple):
    """A run's answers to a task at the last evaluation, by item: `scores` has each item's mean
    score, `answers` its number of answers. Prompts and clusters that were not recorded are left
    out. `errors` counts answers that ended in an error. `training` means that the task is the run's
    training data."""

    task: str
    scores: Mapping[str, float]
    answers: Mapping[str, int]
    prompts: Mapping[str, str]
    clusters: Mapping[str, str]
    errors: int = 0
    training: bool = False


def item_files(paths: Iterable[tuple[str, int]]) -> list[ItemFile]:
    """Return the files with answers, from the (path, size) pairs of a run's files. Files of the
    same kind and task are in the order of the evaluations."""
    listed = dict(paths)
    files = [file for path, size in listed.items() if (file := _file(path, size, listed))]
    return sorted(files, key=lambda file: (file.kind, file.task, file.order))


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
    """Return a sort key that compares numbers in a name by value: step 90 is before step 100."""
    parts = _NUMBERS.split(path)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def read_items(
    run: RecordedRun, files: Sequence[ItemFile], limit: int = LIMIT
) -> tuple[list[Answered], list[str]]:
    """Read a run's last answers to each task. Skip files above `limit` bytes, and return their
    paths too."""
    read, large = read_answers(run, files, limit)
    answers_by_task: dict[str, Answered] = {}
    for file, answers in read:
        for answered in by_task(answers, file):
            answers_by_task.setdefault(answered.task, answered)
    return [answers_by_task[task] for task in sorted(answers_by_task)], large


def files_of(run: RecordedRun) -> dict[str, int]:
    """Return the files of a run's attempts as {path: size in bytes}, oldest attempt first. Empty
    files are left out."""
    entries = (entry for folder in run.folders() for entry in run.store.list(folder))
    return {entry.path: entry.size for entry in entries if entry.size}


def read_answers(
    run: RecordedRun, files: Sequence[ItemFile], limit: int = LIMIT
) -> tuple[list[tuple[ItemFile, list["Answer"]]], list[str]]:
    """Return (file, answers) for each file of a run's last evaluations. Skip files above `limit`
    bytes, and return their paths too."""
    answers: list[tuple[ItemFile, list[Answer]]] = []
    large: list[str] = []
    for file in _latest(run, files):
        if file.size > limit:
            large.append(file.path)
        else:
            answers.append((file, parse_answers(_read(run, file.path), file)))
    return answers, large


def parse_answers(data: bytes, file: ItemFile) -> list["Answer"]:
    """Parse the content of a file with answers. Return only the answers of each task's last
    step."""
    read = {"items": _of_items, "store": _of_store, "summaries": _of_summaries}[file.kind]
    steps: dict[str, float] = {}
    latest_of: dict[str, list[Answer]] = {}
    for answer in read(parse(data).rows, file):
        latest = steps.get(answer.task, -math.inf)
        if answer.step > latest:
            steps[answer.task], latest_of[answer.task] = answer.step, []
        if answer.step >= latest:
            latest_of[answer.task].append(answer)
    return [answer for answers in latest_of.values() for answer in answers]


def _latest(run: RecordedRun, files: Sequence[ItemFile]) -> list[ItemFile]:
    """Return the file of the last evaluation for each task and kind of file. Evaluations are sorted
    by their recorded start, or by the numbers in their paths if no start was recorded."""
    tasks: dict[tuple[str, str], list[ItemFile]] = {}
    for file in files:
        tasks.setdefault((file.kind, file.task), []).append(file)
    return [
        answers[0]
        if len(answers) == 1
        else max(answers, key=lambda file: (_begun(run, file), file.order))
        for answers in tasks.values()
    ]


def _begun(run: RecordedRun, file: ItemFile) -> str:
    rows = parse(_read(run, file.note).replace(b"\n", b" ") + b"\n").rows if file.note else []
    return next((_text(row.get("timestamp")) for row in rows), "")


def _read(run: RecordedRun, path: str) -> bytes:
    try:
        return run.store.read(path)
    except (NotFound, StoreError):  # the file was deleted, or is still being written
        return b""


def item_rows(answers: Sequence["Answer"], kind: str) -> Iterator[AnswerRow]:
    """Yield the answers of a file as dicts, one per sample. If samples have no number, the samples
    of an item are numbered from 0. `score` is None if the answer was not judged, and `step` is None
    if the format has no steps."""
    counts: dict[tuple[str, str], int] = {}
    for answer in answers:
        place = answer.task, answer.item
        counted = counts[place] = counts.get(place, -1) + 1
        yield {
            "task": answer.task,
            "item": answer.item,
            "sample": counted if answer.sample is None else answer.sample,
            "score": answer.score if math.isfinite(answer.score) else None,
            "text": answer.text,
            "prompt": answer.prompt,
            "answer": answer.right,
            "step": answer.step if kind == "items" else None,
            "cluster": answer.cluster,
            "error": answer.error,
        }


def by_task(answers: Iterable["Answer"], file: ItemFile) -> list[Answered]:
    """Return the judged answers of a file, one `Answered` per task."""
    tasks: dict[str, list[Answer]] = {}
    for answer in answers:
        if math.isfinite(answer.score):
            tasks.setdefault(answer.task, []).append(answer)
    return [_gathered(task, answers, file) for task, answers in tasks.items()]


class Answer(NamedTuple):
    """An answer to an item of a task. `text` is the model's answer, and `right` the correct one.
    `score` is NaN if the answer was not judged. Values that were not recorded have the field's
    default."""

    task: str
    item: str
    score: float
    step: float = 0.0
    prompt: str = ""
    cluster: str = ""
    error: bool = False
    sample: int | None = None
    text: str = ""
    right: str = ""


def _gathered(task: str, answers: Sequence[Answer], file: ItemFile) -> Answered:
    scores: dict[str, list[float]] = {}
    for answer in answers:
        scores.setdefault(answer.item, []).append(answer.score)
    return Answered(
        task,
        {item: math.fsum(values) / len(values) for item, values in scores.items()},
        {item: len(values) for item, values in scores.items()},
        {answer.item: answer.prompt[:_SHOWN] for answer in answers if answer.prompt},
        {answer.item: answer.cluster for answer in answers if answer.cluster},
        sum(answer.error for answer in answers),
        file.kind == "summaries" and file.task == "train",
    )


def _of_items(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[Answer]:
    del file
    for row in rows:
        item, score = row.get("item"), _score(row.get("score"))
        if score is None and isinstance(row.get("text"), str) and row.get("score") is None:
            score = math.nan
        if isinstance(item, str | int) and score is not None:
            task, step = row.get("task"), as_float(row.get("step"))
            yield Answer(
                task if isinstance(task, str) else "",
                str(item),
                score,
                step if step is not None and math.isfinite(step) else 0.0,
                _whole(row.get("prompt")),
                _text(row.get("cluster")),
                row.get("error") is not None,
                _sample(row.get("sample")),
                _whole(row.get("text")),
                _whole(row.get("answer")),
            )


def _of_store(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[Answer]:
    """Parse the answers in an EvalStore. As in tinker-cookbook, the score is 1 if the reward is
    above 0. Otherwise, or if the answer ended in an error, the score is 0. Rows without a reward or
    an id are skipped."""
    for row in rows:
        reward = _score(row.get("reward"))
        identity = row.get("example_id") or row.get("idx")
        if reward is None or not isinstance(identity, str | int):
            continue
        failed = row.get("error") is not None
        turns = row.get("turns")
        question = _answer_text(turns, "user")
        score = 0.0 if failed else float(reward > 0)
        yield Answer(
            file.task,
            str(identity),
            score,
            prompt=question[0] if question else "",
            error=failed,
            text="\n".join(_answer_text(turns, "assistant")[-1:]),
            right=_logged(row, _RIGHT),
        )


def _answer_text(turns: object, role: str) -> list[str]:
    return [_whole(turn.get("content")) for turn in _mappings(turns) if turn.get("role") == role]


def _of_summaries(rows: Iterable[Mapping[str, object]], file: ItemFile) -> Iterator[Answer]:
    """Parse rollout summaries. The score is the recorded correctness if all answers have one, else
    the reward. If an `item` was logged, it identifies the item, and the text is all logged
    responses. Otherwise the question identifies the item, and the text is the last response.
    Answers without a question or a reward are skipped."""
    answers: list[tuple[Answer, float | None]] = []
    for row in rows:
        reward = _score(row.get("total_reward"))
        steps = _mappings(row.get("steps"))
        prompt = next((text for step in steps if (text := _logged(step, _PROMPTS))), "")
        if reward is not None and prompt:
            item = next(filter(None, (_logged(step, ("item",)) for step in steps)), "")
            logged = [*filter(None, (_logged(step, _RESPONSES) for step in steps))]
            text = "\n".join(logged if item else logged[-1:])
            right = next(filter(None, (_logged(step, _RIGHT) for step in steps[::-1])), "")
            answer = Answer(
                file.task, item or prompt, reward, prompt=prompt, text=text, right=right
            )
            answers.append((answer, _right(row, steps)))
    judged = all(right is not None for _, right in answers)
    for answer, right in answers:
        yield answer._replace(score=right) if judged and right is not None else answer


def _logged(step: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the first text that was logged under one of these names, or ""."""
    texts = [log.get(name) for log in _mappings([step.get("logs")]) for name in names]
    return next((text for text in texts if isinstance(text, str) and text), "")


def _right(row: Mapping[str, object], steps: Sequence[Mapping[str, object]]) -> float | None:
    places = [row.get("trajectory_metrics"), *(step.get("metrics") for step in steps[::-1])]
    scores = (_score(metrics.get("correct")) for metrics in _mappings(places))
    return next((right for right in scores if right is not None), None)


def _score(value: object) -> float | None:
    number = float(value) if isinstance(value, bool) else as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _text(value: object) -> str:
    return value[:_SHOWN] if isinstance(value, str) else ""


def _whole(value: object) -> str:
    return value if isinstance(value, str) else ""


def _sample(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mappings(value: object) -> list[Mapping[str, object]]:
    items = cast(list[object], value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]
