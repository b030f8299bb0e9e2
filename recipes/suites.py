"""The questions of an evaluation: the held-out problems of a task, or the lines of a JSONL file.

    {"prompt": "2+2=", "answer": "4"}
    {"question": "Which is a fruit?", "choices": ["apple", "car"], "answer": "A"}
    {"messages": [{"role": "user", "content": "Say hi"}], "answer": "(?i)hi", "grader": "regex"}

A line may also have `id`, `cluster` (what several questions have in common: a page, a template) and
`task`. A question without an answer is asked but not graded, unless a function grades it. An item
is identified by a hash of its content: the same question, answer and choices are the same item in
any file and at any place in it, and are asked once.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import graders, settings, tasks
from .service import RecipeError
from .tasks import Conversation

NAMED: Mapping[str, tuple[tuple[str, int], ...]] = {
    "arithmetic": (("addition", 1), ("addition", 2)),
}
"""Suites of several tasks, each with its digits."""


class Item(NamedTuple):
    """A question: `key` is a hash of its content, `grader` is None if it is not graded."""

    key: str
    suite: str
    messages: Conversation
    question: graders.Question
    grader: str | None
    cluster: str
    name: str


def load_suites(config: settings.Problems, suite: str | None, grader: str) -> list[Item]:
    """Load the items of one or several suites, each once. `suite` names tasks, files or one of
    `NAMED`, separated by commas; None is the configured task. `grader` is the grader of items that
    name none.

    Raises RecipeError, with file and line, for an invalid item.
    """
    found: dict[str, Item] = {}
    total = 0
    for name in [part.strip() for part in (suite or config.task).split(",") if part.strip()]:
        for item in _items_of(config, name, grader):
            found.setdefault(item.key, item)
            total += 1
    if not found:
        raise RecipeError(f"suite={suite} has no items")
    if total > len(found):
        print(f"{total - len(found)} of {total} items are copies of others: asked once")
    return list(found.values())


def _items_of(config: settings.Problems, name: str, grader: str) -> list[Item]:
    if os.path.isfile(name):
        label = os.path.splitext(os.path.basename(name))[0]
        return [
            _item_of(row, label, grader, f"{name}:{number}")
            for number, row in tasks.read_rows(name)
        ]
    if name in NAMED:
        parts = [tasks.addition(digits) for _, digits in NAMED[name]]
    elif name in ("addition", "reversal", "sorting"):
        parts = [settings.task_named(config, name)]
    else:
        known = ", ".join(("addition", "reversal", "sorting", *NAMED))
        raise RecipeError(f"there is no suite {name!r}: no file, and none of {known}")
    return [
        _problem(conversation, part.name.replace("/", "-"))
        for part in parts
        # Training on the task holds out exactly these problems.
        for conversation in tasks.held_out(part, min(config.test_size, part.size))
    ]


def _problem(conversation: Conversation, suite: str) -> Item:
    asked = graders.Question(conversation[-2]["content"], conversation[-1]["content"])
    messages = conversation[:-1]
    return Item(_key(messages, asked), suite, messages, asked, "exact", "", "")


def _key(messages: Conversation, question: graders.Question) -> str:
    content = [messages, question.answer, list(question.choices)]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _item_of(row: Any, label: str, grader: str, where: str) -> Item:
    """Parse a line's item."""
    if not isinstance(row, dict):
        raise RecipeError(f"{where}: expected an object")
    choices = row.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise RecipeError(f'{where}: "choices" must be a list of texts')
    if len(choices) > len(graders.LETTERS):
        raise RecipeError(f'{where}: "choices" has more than {len(graders.LETTERS)}')
    messages = _asked(row, where)
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise RecipeError(f'{where}: "answer" must be a text or a number')
    text = "" if answer is None else str(answer)
    question = graders.Question(messages[-1]["content"], text, tuple(choices))
    used = _grader(row, grader, question, where, graded=answer is not None)
    if choices:
        messages = [*messages[:-1], {"role": "user", "content": _with_choices(question)}]
    return Item(
        _key(messages, question),
        _text(row, "task", where) or label,
        messages,
        question,
        used,
        _text(row, "cluster", where),
        _text(row, "id", where),
    )


def _grader(
    row: Mapping[str, Any], default: str, question: graders.Question, where: str, graded: bool
) -> str | None:
    used = row.get("grader")
    if used is None:
        used = "choice" if question.choices and default == "exact" else default
    if not isinstance(used, str):
        raise RecipeError(f'{where}: "grader" must be a text')
    if ":" in used:
        if row.get("grader") is not None:  # a data file must not name code
            raise RecipeError(f"{where}: a function is named by the configuration, not by a line")
        return used
    if used not in graders.NAMES:
        raise RecipeError(f"{where}: there is no grader {used!r}: use {', '.join(graders.NAMES)}")
    if not graded:
        return None
    if problem := graders.check(used, question.answer, question.choices):
        raise RecipeError(f"{where}: {problem}")
    return used


def _asked(row: Mapping[str, Any], where: str) -> Conversation:
    given = row.get("messages")
    if given is None:
        text = row.get("prompt", row.get("question"))
        given = [{"role": "user", "content": text}]
    if not isinstance(given, Sequence) or not given or not all(map(tasks.is_message, given)):
        raise RecipeError(f'{where}: expected "prompt", "question" or "messages"')
    if given[-1]["role"] == "assistant":
        raise RecipeError(f"{where}: the last message must not be the assistant's")
    return [{"role": message["role"], "content": message["content"]} for message in given]


def _with_choices(question: graders.Question) -> str:
    options = zip(graders.LETTERS, question.choices, strict=False)
    return "\n".join([question.text, *(f"{letter}) {option}" for letter, option in options)])


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str | int):
        return "" if value is None else str(value)
    raise RecipeError(f'{where}: "{key}" must be a text')
