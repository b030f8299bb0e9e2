"""Training data: generated problems with exact answers, or conversations from a file, with a
held-out part that is the same for every seed. `"trainable": false` marks an answer that is not
learned."""

import json
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from . import data_files
from .data_files import Conversation, Row
from .service import RecipeError

T = TypeVar("T")

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Split(NamedTuple):
    """Conversations to train on, and conversations held out for evaluation."""

    train: list[Conversation]
    test: list[Conversation]


class Task(NamedTuple):
    """A set of `size` distinct problems. `problem(i)` returns a problem as (question, answer)."""

    name: str
    size: int
    problem: Callable[[int], tuple[str, str]]


def addition(digits: int) -> Task:
    """Return the task of adding two numbers. Its problems, `a+b=`, are all pairs of numbers with at
    most `digits` digits."""
    base = 10**digits

    def problem(index: int) -> tuple[str, str]:
        a, b = divmod(index, base)
        return f"{a}+{b}=", str(a + b)

    return Task(f"addition/{digits}", base**2, problem)


def reversal(length: int, letters: int) -> Task:
    """Return the task of reversing a word. Its words are all strings of `length` letters that use
    only the first `letters` letters of the alphabet."""

    def problem(index: int) -> tuple[str, str]:
        word = _word(index, length, letters)
        return f"reverse {word}", word[::-1]

    return Task(f"reversal/{length}/{letters}", letters**length, problem)


def sorting(length: int, letters: int) -> Task:
    """Return the task of sorting the letters of a word. Its words are all strings of `length`
    letters that use only the first `letters` letters of the alphabet."""

    def problem(index: int) -> tuple[str, str]:
        word = _word(index, length, letters)
        return f"sort {word}", "".join(sorted(word))

    return Task(f"sorting/{length}/{letters}", letters**length, problem)


def generate(task: Task, train_size: int, test_size: int, seed: int) -> Split:
    """Hold out `test_size` problems of a task, and draw at most `train_size` training problems from
    the rest. The held-out problems do not depend on `seed`. Raises RecipeError if no problem is
    left to train on."""
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
    """Return the problems that `generate` holds out of a task with this `test_size`."""
    return [_ask(task, index) for index in _held_out(task, test_size)]


def _held_out(task: Task, test_size: int) -> list[int]:
    return random.Random(f"held out/{task.name}").sample(range(task.size), test_size)


def with_wrong(
    conversations: Sequence[Conversation], share: float, seed: int
) -> list[Conversation]:
    """Copy the conversations, and give a `share` of them a wrong answer from another conversation.

    The wrong answers simulate human mistakes. Raises RecipeError if all answers are equal.
    """
    count = round(share * len(conversations))
    draw = random.Random(f"wrong/{seed}")
    wrong = set(draw.sample(range(len(conversations)), count))
    answers = [conversation[-1]["content"] for conversation in conversations]
    if wrong and len(set(answers)) < 2:
        raise RecipeError(
            f"wrong_share={share:g}: all answers are equal, so no wrong answer can be made"
        )
    results: list[Conversation] = []
    for index, conversation in enumerate(conversations):
        answer = answers[index]
        while index in wrong and answer == answers[index]:
            answer = draw.choice(answers)
        results.append([*conversation[:-1], {"role": "assistant", "content": answer}])
    return results


def load(path: str, test_size: int, parse: Callable[[Row], Conversation] | None = None) -> Split:
    """Load conversations from a JSONL file, `test_size` of them held out.

    A line is `{"messages": [...]}` or `{"prompt": ..., "answer": ...}`. `parse` reads a line:
    `conversation` (the default) or `question`. Copies of a held-out conversation are left out of
    the training part. Raises RecipeError, with file and line, for an invalid conversation.
    """
    return split(data_files.read(path, parse or conversation), test_size, path)


def split(conversations: Sequence[Conversation], test_size: int, path: str) -> Split:
    """Split the conversations of a file; see `hold_out`."""
    return Split(*hold_out(conversations, test_size, path, "conversations"))


def hold_out(rows: Sequence[T], test_size: int, path: str, noun: str) -> tuple[list[T], list[T]]:
    """Split the rows of a file into training rows and `test_size` held-out rows. The split does not
    depend on a run's seed.

    Copies of a held-out row are left out of the training part. Raises RecipeError if no training
    row is left; `noun` names the rows in messages.
    """
    if test_size >= len(rows):
        raise RecipeError(
            f"test_size={test_size} leaves nothing to train on: {path} has {len(rows)} {noun}"
        )
    order = list(range(len(rows)))
    random.Random("held out").shuffle(order)
    test = [rows[i] for i in order[:test_size]]
    in_test = {json.dumps(row) for row in test}
    rest = (rows[i] for i in sorted(order[test_size:]))
    train = [row for row in rest if json.dumps(row) not in in_test]
    if copies := len(rows) - test_size - len(train):
        print(f"{copies} of {len(rows)} {noun} left out: copies of held-out {noun}", flush=True)
    if not train:
        raise RecipeError(f"{path} leaves nothing to train on: all of its {noun} are held out")
    return train, test


def batch_indices(step: int, batch_size: int, count: int, seed: int) -> list[int]:
    """Return the indices (0 to `count` - 1) of the examples that a step trains on.

    Each epoch has all examples in a new order. A batch may begin in one epoch and end in the next.
    The result depends only on the arguments, so a resumed run trains on the same examples as an
    uninterrupted run.
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


def conversation(row: Row) -> Conversation:
    """Return the conversation of a line; see `load`. Raises RecipeError for an invalid line."""
    if (messages := row.get("messages")) is None:
        return _question(row)
    messages_of_row = row.messages(messages, marked=True)
    last = messages_of_row[-1]
    if last["role"] != "assistant":
        raise row.wrong('the last message must have the role "assistant"')
    if last.get("trainable") is False:
        raise row.wrong("the last message is not trainable: end the conversation before it")
    for number, message in enumerate(messages_of_row):
        untrained = message.get("trainable") is False or "tool_calls" in message
        if message["role"] == "assistant" and not untrained:
            row.answer(message["content"], f"messages[{number}].content")
    if tools := row.tools():
        messages_of_row[0]["tools"] = tools
    return messages_of_row


def question(row: Row) -> Conversation:
    """Return the conversation of a line. Its last message is the right answer, which is compared
    with sampled answers. Raises `RecipeError` if that message has tool calls or thoughts."""
    messages = conversation(row)
    for key in ("tool_calls", "reasoning_content"):
        if key in messages[-1]:
            raise row.wrong(
                f"the last message has {key}, but an answer is compared only with its content: "
                f"remove {key}"
            )
    return messages


def _question(row: Row) -> Conversation:
    """Return the conversation of a line with a question and its answer."""
    if "prompt" not in row or "answer" not in row:
        raise row.wrong(
            'expected {"messages": [{"role": ..., "content": ...}]} '
            'or {"prompt": ..., "answer": ...}'
        )
    prompt = row.text(row.get("prompt"), '"prompt"')
    answer = row.answer(row.get("answer"), '"answer"')
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
