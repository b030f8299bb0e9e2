"""Reads JSONL data files. Nothing in a line is ignored silently: a mistake is a RecipeError with
file and line, and unused keys are rejected or printed."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from .service import RecipeError

Message = dict[str, Any]
"""A dict with `role` and `content`. An answer may also have `trainable`: whether it is learned.
In files of conversations, a message may have `reasoning_content`, `tool_calls`, `tool_call_id`
and `name`, and the first message has the conversation's `tools`."""

Conversation = list[Message]
T = TypeVar("T")

ROLES = ("system", "developer", "user", "assistant", "tool")
_MEANT = ("tools", "functions", "tool_calls", "system", "images", "videos", "audios")
_MARKS = ("trainable", "reasoning_content", "tool_calls")
_OF_TOOLS = ("tool_call_id", "name")
_MEANT_WEIGHTS = ("weight", "weights", "trainable")
"""Keys of a line that change the meaning of an example. If they were ignored, the run would
train on other data than the user meant."""

MOST_LINES, MOST_BYTES = 10_000, 20_000_000
"""While a grid is planned, a file is read until this many lines or bytes have been read."""
_SHOWN = 8


class Row:
    """The JSON object of a line. The row records which of its keys were read."""

    def __init__(self, values: Any, where: str) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.wrong("expected an object")
        self._values: Mapping[str, Any] = values
        self._used: set[str] = set()

    def wrong(self, problem: str) -> RecipeError:
        """Return an error that names this line."""
        return RecipeError(f"{self.where}: {problem}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """Return a value; None if the key is missing."""
        self._used.add(key)
        return self._values.get(key)

    def unused(self) -> list[str]:
        """Return the keys that were not read. Raises RecipeError if one of them changes the meaning
        of an example, such as `tools` or `weight`."""
        unused = [key for key in self._values if key not in self._used]
        for key in unused:
            if key in _MEANT:
                raise self.wrong(f'"{key}" would not be seen by the model: write it into messages')
            if key in _MEANT_WEIGHTS:
                raise self.wrong(f'"{key}" would have no effect: examples have no weights')
        return unused

    def text(self, value: Any, name: str) -> str:
        """Return `value`. Raises RecipeError if it is not a string of valid Unicode."""
        if not isinstance(value, str):
            raise self.wrong(f"{name} must be a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = value[error.start].encode("unicode_escape").decode()
            raise self.wrong(
                f"{name} is not valid text: {half} is one half of a surrogate pair"
            ) from None
        return value

    def answer(self, value: Any, name: str) -> str:
        """Return `value`. Raises RecipeError if it is not a string, or if it is blank."""
        if not self.text(value, name).strip():
            raise self.wrong(f"{name} is empty: nothing can be learned from it")
        return value

    def messages(self, value: Any, name: str = "messages", marked: bool = False) -> Conversation:
        """Return the messages in `value`. Raises RecipeError if it is not a list of messages. With
        `marked`, messages may also have keys of training data, such as `trainable`."""
        if not isinstance(value, list) or not value:
            raise self.wrong(f"expected {name} to be a list of messages with role and content")
        return [self._message(entry, f"{name}[{n}]", marked) for n, entry in enumerate(value)]

    def _message(self, message: Any, name: str, marked: bool) -> Message:
        if not isinstance(message, dict):
            raise self.wrong(f"expected {name} to be an object with role and content")
        role = message.get("role")
        of_tool = _OF_TOOLS if role == "tool" else ()
        allowed = ("role", "content", *((*_MARKS, *of_tool) if marked else ()))
        for key in message:
            if key not in allowed:
                raise self.wrong(
                    f'{name} has "{key}", which would be lost: use only {", ".join(allowed)}, and '
                    "write the rest into content, in the form that the model should see"
                )
        if message.get("tool_calls") and message.get("content", "") is None:
            message = message | {"content": ""}  # OpenAI's form has null here
        for key in ("role", "content"):
            if key not in message:
                raise self.wrong(f"expected {name} to have role and content, but it has no {key}")
        if role not in ROLES:
            raise self.wrong(f"{name} has the role {json.dumps(role)[:60]}: use {', '.join(ROLES)}")
        content = self.text(message["content"], f"{name}.content")
        result: Message = {"role": role, "content": content}
        return result | self._marks(message, name, role)

    def _marks(self, message: Message, name: str, role: str) -> Message:
        marks: Message = {}
        trainable = message.get("trainable")
        if trainable is not None and not isinstance(trainable, bool):
            raise self.wrong(f"{name}.trainable must be true or false")
        if trainable and role != "assistant":
            raise self.wrong(f"{name} is trainable: only the assistant's messages can be")
        if role == "assistant" and trainable is not None:
            marks["trainable"] = trainable
        for key in ("reasoning_content", "tool_call_id", "name"):
            if message.get(key):
                marks[key] = self.text(message[key], f"{name}.{key}")
        if message.get("tool_calls"):
            marks["tool_calls"] = self._tool_calls(message["tool_calls"], f"{name}.tool_calls")
        for key in ("reasoning_content", "tool_calls"):
            if key in marks and role != "assistant":
                raise self.wrong(f"{name} has {key}: only the assistant's messages can have it")
        return marks

    def _tool_calls(self, value: Any, name: str) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for call in value if isinstance(value, list) else [{}]:
            if (function := _function_of(call)) is None:
                raise self.wrong(
                    f'expected {name} to be a list of {{"function": {{"name", "arguments"}}}}'
                )
            arguments = function.get("arguments", {})
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments or "{}")
                except ValueError:
                    arguments = None
            if not isinstance(arguments, dict):
                raise self.wrong(f"{name}: the arguments of {function['name']} are not an object")
            checked = {"name": function["name"], "arguments": arguments}
            calls.append({**call, "type": "function", "function": checked})
        return calls

    def tools(self) -> list[dict[str, Any]]:
        """Return the line's `tools`; an empty list if it has none. Raises RecipeError if they are
        not in OpenAI's format."""
        tools = self.get("tools") or []
        for tool in tools if isinstance(tools, list) else [None]:
            if _function_of(tool) is None:
                raise self.wrong('expected "tools" to be a list of {"type", "function": {"name"}}')
        return tools


def read(path: str, parse: Callable[[Row], T]) -> list[T]:
    """Parse every non-blank line of a file. Print the keys that `parse` did not read. Raises
    RecipeError if the file cannot be read or a line is invalid."""
    rows: list[T] = []
    unused: Counter[str] = Counter()
    for row, _ in _rows(path):
        rows.append(parse(row))
        unused.update(row.unused())
    if unused:
        print(_not_used(path, unused), flush=True)
    return rows


def _function_of(entry: Any) -> dict[str, Any] | None:
    """Return the function of a tool or a tool call; None if it has no name."""
    function = entry.get("function") if isinstance(entry, dict) else None
    named = isinstance(function, dict) and isinstance(function.get("name"), str)
    return function if named else None


def sample(path: str, parse: Callable[[Row], T]) -> tuple[list[T], float]:
    """Parse the first lines of a file. Return the results, and an estimate of the ratio (lines in
    the file / parsed lines)."""
    chosen: list[T] = []
    for row, end in _rows(path):
        chosen.append(parse(row))
        if _enough(len(chosen), end):
            return chosen, max(1.0, os.path.getsize(path) / end)
    return chosen, 1.0


def _enough(lines: int, size: int) -> bool:
    return lines >= MOST_LINES or size >= MOST_BYTES


Split = Callable[[list[Any], int, str], object]
"""A function that splits the rows of a file. Its arguments are the rows, `test_size` and the file's
path."""


class Checked(NamedTuple):
    """The result of checking a data file: the first mistake (None: no mistake), and notes."""

    mistake: str | None
    notes: tuple[str, ...] = ()


def check(
    path: str, parse: Callable[[Row], Any], split: Split | None = None, test_size: int = 0
) -> Checked:
    """Check a file while a grid is planned. `parse` is called for each line, up to MOST_LINES or
    MOST_BYTES. If the whole file was parsed, `split` is called with all rows. Both functions
    raise RecipeError for mistakes. The result for an unchanged file is cached."""
    try:
        status = os.stat(path)
    except OSError as error:
        return Checked(_unreadable(path, error))
    return _checked(path, (status.st_mtime_ns, status.st_size), parse, split, test_size)


@cache
def _checked(
    path: str,
    stamp: tuple[int, int],
    parse: Callable[[Row], Any],
    split: Split | None,
    test_size: int,
) -> Checked:
    del stamp  # part of the cache's key
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        return Checked(None, (f"{path} is not a regular file: not checked",))
    items: list[Any] = []
    unused: Counter[str] = Counter()
    notes: list[str] = []
    try:
        for row, end in _rows(path):
            items.append(parse(row))
            unused.update(row.unused())
            if _enough(len(items), end):
                notes.append(f"{path}: large, so only its first {len(items):,} lines were checked")
                break
        else:
            if split is not None:
                split(items, test_size, path)
    except RecipeError as error:
        return Checked(str(error))
    return Checked(None, (*notes, *([_not_used(path, unused)] if unused else [])))


def _not_used(path: str, unused: Counter[str]) -> str:
    shown = ", ".join(key[:40] for key, _ in unused.most_common(_SHOWN))
    more = f" and {len(unused) - _SHOWN} more" if len(unused) > _SHOWN else ""
    return f"{path}: keys that are not used: {shown}{more}"


def _unreadable(path: str, error: OSError) -> str:
    return f"{path}: cannot be read: {error.strerror}"


def _rows(path: str) -> Iterator[tuple[Row, int]]:
    end = 0
    try:
        # Read bytes, in which a line ends only at \n. Texts may contain other line breaks.
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                end += len(line)
                if line.strip():
                    yield _row(line, f"{path}:{number}", first=number == 1), end
    except OSError as error:
        raise RecipeError(_unreadable(path, error)) from None


def _row(line: bytes, where: str, first: bool) -> Row:
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
        return Row(json.loads(text, object_pairs_hook=_object), where)
    except UnicodeDecodeError:
        raise RecipeError(f"{where}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{where}: not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {json.dumps(twice)} is given twice")
    return table
