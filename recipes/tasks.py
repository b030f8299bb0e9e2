"""What a run trains on: generated problems with exact answers, or conversations from a file.

Both come as conversations, lists of `{"role": ..., "content": ...}`, in two parts: training
and held out. The held-out part depends on everything but the seed, so that the scores of
several seeds can be compared, and it shares no conversation with the training part.
"""

import json
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from .service import RecipeError

Message = dict[str, str]
Conversation = list[Message]
T = TypeVar("T")

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Split(NamedTuple):
    """Conversations to train on, and conversations held out for evaluation."""

    train: list[Conversation]
    test: list[Conversation]


class Task(NamedTuple):
    """`size` distinct problems; `problem(i)` is the i-th, as (question, answer)."""

    name: str
    size: int
    problem: Callable[[int], tuple[str, str]]


def addition(digits: int) -> Task:
    """`a+b=` for all numbers of up to `digits` digits; the answer is their sum."""
    base = 10**digits

    def problem(index: int) -> tuple[str, str]:
        a, b = divmod(index, base)
        return f"{a}+{b}=", str(a + b)

    return Task(f"addition/{digits}", base**2, problem)


def reversal(length: int, letters: int) -> Task:
    """Write a word of `length` out of the first `letters` letters backwards."""

    def problem(index: int) -> tuple[str, str]:
        word = _word(index, length, letters)
        return f"reverse {word}", word[::-1]

    return Task(f"reversal/{length}/{letters}", letters**length, problem)


def sorting(length: int, letters: int) -> Task:
    """Put the letters of a word of `length`, out of the first `letters`, in order."""

    def problem(index: int) -> tuple[str, str]:
        word = _word(index, length, letters)
        return f"sort {word}", "".join(sorted(word))

    return Task(f"sorting/{length}/{letters}", letters**length, problem)


def generate(task: Task, train_size: int, test_size: int, seed: int) -> Split:
    """`test_size` problems held out, and up to `train_size` of the others, chosen by `seed`.

    Raises RecipeError when the task has too few problems to train on any.
    """
    if test_size >= task.size:
        raise RecipeError(
            f"test_size={test_size} leaves nothing to train on: the task has {task.size} problems"
        )
    apart = _held_out(task, test_size)
    taken = set(apart)
    wanted = min(train_size + test_size, task.size)
    drawn = random.Random(f"train/{task.name}/{seed}").sample(range(task.size), wanted)
    chosen = [index for index in drawn if index not in taken][:train_size]
    return Split([_ask(task, i) for i in chosen], [_ask(task, i) for i in apart])


def held_out(task: Task, test_size: int) -> list[Conversation]:
    """The problems that `generate` holds out of a task, where it holds out so many."""
    return [_ask(task, index) for index in _held_out(task, test_size)]


def _held_out(task: Task, test_size: int) -> list[int]:
    return random.Random(f"held out/{task.name}").sample(range(task.size), test_size)


def with_wrong(
    conversations: Sequence[Conversation], share: float, seed: int
) -> list[Conversation]:
    """The conversations, of which that share ends with another one's answer, differing from theirs.

    It is how people's answers are: mostly right. Where all answers are alike none can be wrong.
    """
    count = round(share * len(conversations))
    draw = random.Random(f"wrong/{seed}")
    wrong = set(draw.sample(range(len(conversations)), count))
    answers = [conversation[-1]["content"] for conversation in conversations]
    if len(set(answers)) < 2:
        return list(conversations)
    found: list[Conversation] = []
    for index, conversation in enumerate(conversations):
        answer = answers[index]
        while index in wrong and answer == answers[index]:
            answer = draw.choice(answers)
        found.append([*conversation[:-1], {"role": "assistant", "content": answer}])
    return found


def load(path: str, test_size: int) -> Split:
    """Conversations of a JSONL file, `test_size` of them held out.

    A line is `{"messages": [...]}`, or a question with its answer: `{"prompt", "answer"}`.
    Copies of a held-out conversation are left out of the training part. Raises RecipeError,
    with file and line, for what is not a conversation.
    """
    rows = read_rows(path)
    conversations = [conversation(row, f"{path}:{number}") for number, row in rows]
    return Split(*hold_out(conversations, test_size, path, "conversations"))


def hold_out(rows: Sequence[T], test_size: int, path: str, what: str) -> tuple[list[T], list[T]]:
    """Rows of a file to train on, and `test_size` held out, the same whatever the seed.

    Copies of a held-out row are left out of the training part. Raises RecipeError when that
    leaves nothing; `what` is what the rows are.
    """
    if test_size >= len(rows):
        raise RecipeError(
            f"test_size={test_size} leaves nothing to train on: {path} has {len(rows)} {what}"
        )
    order = list(range(len(rows)))
    random.Random("held out").shuffle(order)
    test = [rows[i] for i in order[:test_size]]
    known = {json.dumps(row) for row in test}
    rest = (rows[i] for i in sorted(order[test_size:]))
    train = [row for row in rest if json.dumps(row) not in known]
    if not train:
        raise RecipeError(f"{path}: nothing to train on, every one of its {what} is held out")
    return train, test


def batch_indices(step: int, batch_size: int, count: int, seed: int) -> list[int]:
    """Which of `count` examples step `step` trains on: a pure function of its arguments.

    The data are an endless stream of epochs, each in its own order, cut into batches; so a
    run that resumes at any step sees what it would have seen.
    """
    first = step * batch_size
    return [
        _epoch(position // count, count, seed)[position % count]
        for position in range(first, first + batch_size)
    ]


@lru_cache(maxsize=4)
def _epoch(epoch: int, count: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"epoch/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def _word(index: int, length: int, letters: int) -> str:
    chosen: list[str] = []
    for _ in range(length):
        index, letter = divmod(index, letters)
        chosen.append(LETTERS[letter])
    return "".join(chosen)


def _ask(task: Task, index: int) -> Conversation:
    question, answer = task.problem(index)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def read_rows(path: str) -> list[tuple[int, Any]]:
    """The JSON of each line of a file that is not blank, with the line's number.

    Raises RecipeError, with the place, for a file that cannot be read or a line that is no JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")  # and nowhere else: text may hold other line breaks
    except OSError as error:
        raise RecipeError(f"cannot read data={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"cannot read data={path}: it is not UTF-8 text") from None
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise RecipeError(f"{path}:{number}: not JSON: {error}") from None
    return found


def conversation(row: Any, where: str) -> Conversation:
    """The conversation that a line holds; see `load`. Raises RecipeError, beginning with `where`,
    for what is none."""
    messages: Any = row.get("messages") if isinstance(row, dict) else None
    if messages is None and isinstance(row, dict):
        pair = (("user", row.get("prompt")), ("assistant", row.get("answer")))
        messages = [{"role": role, "content": content} for role, content in pair]
    if not isinstance(messages, Sequence) or not messages or not all(map(is_message, messages)):
        raise RecipeError(
            f'{where}: expected {{"messages": [{{"role": ..., "content": ...}}]}} '
            'or {"prompt": ..., "answer": ...}'
        )
    if messages[-1]["role"] != "assistant":
        raise RecipeError(f"{where}: the last message must be the assistant's")
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def is_message(message: Any) -> bool:
    """Whether a value is a message: texts under `role` and `content`."""
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )
