"""The questions of an evaluation: the held-out problems of a task, or the lines of a JSONL file. An
item is identified by a hash of its question, answer and choices."""

# {"prompt": "2+2=", "answer": "4"}
# {"question": "Which is a fruit?", "choices": ["apple", "car"], "answer": "A"}
# {"messages": [{"role": "user", "content": "Say hi"}], "answer": "(?i)hi", "grader": "regex"}
#
# A line may also have `id`, `cluster` (what several questions have in common: a page, a template)
# and `task`. A question without an answer is asked but not graded, unless a function grades it. An
# item is identified by a hash of its content: the same question, answer and choices are the same
# item in any file and at any place in it. It is asked once, and counts in each suite that has it.

import filecmp
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import NamedTuple

from . import data_files, graders, settings, tasks
from .data_files import Conversation, Row
from .service import RecipeError

NAMED: Mapping[str, tuple[tuple[str, int], ...]] = {
    "arithmetic": (("addition", 1), ("addition", 2))
}
"""Suites of several tasks, each with its number of digits."""


class Item(NamedTuple):
    """A question. `key` is a hash of its content. `grader` is None if the question is not graded.
    `others` names the other suites that contain the question."""

    key: str
    suite: str
    messages: Conversation
    question: graders.Question
    grader: str | None
    cluster: str
    name: str
    others: tuple[str, ...] = ()


def load_suites(config: settings.Problems, suite: str | None, grader: str) -> list[Item]:
    """Load the items of one or several suites, without duplicates. `suite` is a comma-separated
    list of tasks, files and suites in `NAMED`; None means the configured task. `grader` is used
    for items without a grader of their own.

    Raises RecipeError, with file and line, for an invalid item.
    """
    items: dict[str, Item] = {}
    total = 0
    names = names_of(suite or config.task)
    if same := same_names(names):
        raise RecipeError(same)
    for name in names:
        for item in _items_of(config, name, grader):
            first = items.setdefault(item.key, item)
            if item.suite not in (first.suite, *first.others):
                items[item.key] = first._replace(others=(*first.others, item.suite))
            total += 1
    if not items:
        raise RecipeError(f"suite={suite} has no items")
    if total > len(items):
        print(f"{total - len(items)} of {total} items are copies: each item is asked only once")
    if ungraded := sum(item.grader is None for item in items.values()):
        print(
            f"{ungraded} of {len(items)} items have no right answer: they are asked, but not graded"
        )
    return list(items.values())


def names_of(suite: str) -> list[str]:
    """Split a comma-separated list of suites into names."""
    return [part.strip() for part in suite.split(",") if part.strip()]


def by_suite(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return a dict from each suite to all its items. An item of two suites is in both lists."""
    unique: dict[str, dict[str, Item]] = {}
    for item in items:
        for name in (item.suite, *item.others):
            unique.setdefault(name, {}).setdefault(item.key, item)
    return {name: list(by_key.values()) for name, by_key in unique.items()}


def same_names(names: Iterable[str]) -> str | None:
    """Return a message if two files with different content have the same name (without folder and
    extension), so that their scores would be mixed. Return None otherwise."""
    paths: dict[str, str] = {}
    for path in filter(os.path.isfile, names):
        other = paths.setdefault(_label_of(path), path)
        if not filecmp.cmp(other, path, shallow=False):
            return (
                f"{other} and {path} have the same name, so their scores would be mixed: rename one"
            )
    return None


def _label_of(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def check(name: str, grader: str) -> data_files.Checked:
    """Check a suite of a planned grid: the lines if `name` is a file, else the name itself."""
    if os.path.isfile(name):
        return data_files.check(name, _parser(name, grader))
    try:
        _tasks_of(settings.Problems(), name)
    except RecipeError as error:
        return data_files.Checked(str(error))
    return data_files.Checked(None)


@cache
def _parser(name: str, grader: str) -> "partial[Item]":
    return partial(_item_of, label=_label_of(name), grader=grader)


def _items_of(config: settings.Problems, name: str, grader: str) -> list[Item]:
    if os.path.isfile(name):
        return data_files.read(name, _parser(name, grader))
    return [
        _problem(conversation, part.name.replace("/", "-"))
        for part in _tasks_of(config, name)
        # Training on the task holds out exactly these problems.
        for conversation in tasks.held_out(part, min(config.test_size, part.size))
    ]


def _tasks_of(config: settings.Problems, name: str) -> list[tasks.Task]:
    """Return the tasks of the suite `name`. Raises RecipeError for an unknown name."""
    if name in NAMED:
        return [tasks.addition(digits) for _, digits in NAMED[name]]
    if name in ("addition", "reversal", "sorting"):
        return [settings.task_named(config, name)]
    names = ", ".join(("addition", "reversal", "sorting", *NAMED))
    raise RecipeError(f"unknown suite {name!r}: neither a file nor one of {names}")


def _problem(conversation: Conversation, suite: str) -> Item:
    question = graders.Question(conversation[-2]["content"], conversation[-1]["content"])
    messages = conversation[:-1]
    return Item(_key(messages, question), suite, messages, question, "exact", "", "")


def _key(messages: Conversation, question: graders.Question) -> str:
    content = [messages, question.answer, list(question.choices)]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _item_of(row: Row, label: str, grader: str) -> Item:
    choices = row.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(option, str) for option in choices):
        raise row.wrong('"choices" must be a list of texts')
    if len(choices) > len(graders.LETTERS):
        raise row.wrong(f'"choices" has more than {len(graders.LETTERS)} texts')
    messages = _conversation_of(row)
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise row.wrong('"answer" must be a text or a number')
    text = "" if answer is None else row.text(str(answer), '"answer"')
    question = graders.Question(messages[-1]["content"], text, tuple(choices))
    used = _grader(row, grader, question, graded=answer is not None)
    if choices:
        messages = [*messages[:-1], messages[-1] | {"content": _with_choices(question)}]
    return Item(
        _key(messages, question),
        _text(row, "task") or label,
        messages,
        question,
        used,
        _text(row, "cluster"),
        _text(row, "id"),
    )


def _grader(row: Row, default: str, question: graders.Question, graded: bool) -> str | None:
    from_row = used = row.get("grader")
    if used is None:
        used = "choice" if question.choices and default == "exact" else default
    if not isinstance(used, str):
        raise row.wrong('"grader" must be a text')
    if ":" in used:
        if from_row is not None:  # a data file must not name code
            raise row.wrong("only the configuration may name a function as grader")
        return used
    if used not in graders.NAMES:
        raise row.wrong(f"unknown grader {used!r}: use {', '.join(graders.NAMES)}")
    if not graded:
        return None
    if problem := graders.check(used, question.answer, question.choices):
        raise row.wrong(problem)
    return used


def _conversation_of(row: Row) -> Conversation:
    value = row.get("messages")
    if value is None:
        text = row.get("prompt")
        text = row.get("question") if text is None else text
        if text is None:
            raise row.wrong('expected "prompt", "question" or "messages"')
        return [{"role": "user", "content": row.text(text, "the question")}]
    messages = row.messages(value)
    if messages[-1]["role"] == "assistant":
        raise row.wrong('the last message must not have the role "assistant"')
    return messages


def _with_choices(question: graders.Question) -> str:
    options = zip(graders.LETTERS, question.choices, strict=False)
    return "\n".join([question.text, *(f"{letter}) {option}" for letter, option in options)])


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str | int):
        return "" if value is None else str(value)
    raise row.wrong(f'"{key}" must be a text')
