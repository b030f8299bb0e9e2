"""Reads the documents that sweeper writes, key by key, each with its required type.

Mistakes raise `Damaged` (a `StoreError`), which names the file and the place in it:

    sweeps/lr/sweep.json: runs[3].id: should be a text, not null
"""

import json
import re
from collections.abc import Iterable
from typing import Literal, NoReturn, TypeVar, cast

from sweeper.errors import Damaged

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest that it reads."""

T = TypeVar("T")
Word = TypeVar("Word", bound=str)

LARGEST = 1e18
"""Bound of all numbers in documents (seconds, bytes, counters). NaN and infinity are refused."""
_SHOWN = 40
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"


class Part:
    """An object in a document: `document` has its keys, `place` is for messages. Methods with a
    default treat null as a missing key."""

    __slots__ = ("_inside", "document", "place")

    def __init__(self, value: object, place: str, inside: str = "") -> None:
        """`place` names the file, `inside` is the path of this object in it."""
        self.place = place
        self._inside = inside
        if not isinstance(value, dict):
            self._refuse("", "an object", value)
        self.document: dict[str, object] = cast(dict[str, object], value)

    def text(self, key: str) -> str:
        """Return a required text."""
        value = self.document.get(key)
        return value if isinstance(value, str) else self._refuse(key, "a text", value)

    def text_or(self, key: str, default: T) -> str | T:
        """Return a text, or `default` if it is missing."""
        return default if self.document.get(key) is None else self.text(key)

    def one_of(self, key: str, known: Iterable[Word], default: Word | Literal[""]) -> Word:
        """Return one of the `known` texts, or `default` if it is missing."""
        value = self.text_or(key, default)
        for word in known:
            if word == value:
                return word
        return self._refuse(key, " or ".join(known), value)

    def time_or(self, key: str, default: T) -> str | T:
        """Return a time in UTC, in the format of `storage.documents.timestamp`."""
        value = self.text_or(key, None)
        if value is None:
            return default
        from datetime import datetime  # few workers read one

        try:
            if re.fullmatch(TIME, value) and datetime.fromisoformat(value):
                return value
        except ValueError:
            pass
        return self._refuse(key, "a time such as 2026-01-31T12:00:00Z", value)

    def number_or(self, key: str, default: T) -> float | T:
        """Return a finite number of plausible size."""
        value = self.document.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._refuse(key, "a number", value)
        return value if -LARGEST < value < LARGEST else self._refuse(key, "a number", value)

    def integer_or(self, key: str, default: T) -> int | T:
        """Return an integer."""
        value = self.number_or(key, None)
        if value is None:
            return default
        return value if isinstance(value, int) else self._refuse(key, "an integer", value)

    def flag_or(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.document.get(key)
        if value is None:
            return default
        return value if isinstance(value, bool) else self._refuse(key, "true or false", value)

    def items(self, key: str) -> list[object]:
        """Return a required list."""
        value = self.document.get(key)
        return cast(list[object], value) if isinstance(value, list) else self._refuse(
            key, "a list", value
        )  # fmt: skip

    def texts_or(self, key: str, default: T) -> list[str] | T:
        """Return a list of texts."""
        if self.document.get(key) is None:
            return default
        return [
            item if isinstance(item, str) else self._refuse(f"{key}[{number}]", "a text", item)
            for number, item in enumerate(self.items(key))
        ]

    def part(self, key: str) -> "Part":
        """Return a required object."""
        if key not in self.document:
            self._refuse(key, "an object", None)
        return Part(self.document.get(key), self.place, self._path(key))

    def part_or_none(self, key: str) -> "Part | None":
        """Return an object, or None if it is missing."""
        return None if self.document.get(key) is None else self.part(key)

    def table(self, key: str) -> dict[str, object]:
        """Return an object's keys and values, which may be of any type; {} if it is missing."""
        part = self.part_or_none(key)
        return {} if part is None else part.document

    def texts_by_key(self, key: str) -> dict[str, str]:
        """Return an object of texts; {} if it is missing."""
        part = self.part_or_none(key)
        return {} if part is None else {name: part.text(name) for name in part.document}

    def parts_by_key(self, key: str) -> "dict[str, Part]":
        """Return an object of objects; {} if it is missing."""
        part = self.part_or_none(key)
        return {} if part is None else {name: part.part(name) for name in part.document}

    def parts(self, key: str) -> "list[Part]":
        """Return a required list of objects."""
        items = enumerate(self.items(key))
        return [Part(one, self.place, self._path(f"{key}[{number}]")) for number, one in items]

    def refuse(self, key: str, what: str) -> NoReturn:
        """Raise the error that the value of `key` should be `what`."""
        self._refuse(key, what, self.document.get(key))

    def _path(self, key: str) -> str:
        return f"{self._inside}.{key}" if self._inside and key else self._inside or key

    def _refuse(self, key: str, what: str, value: object) -> NoReturn:
        path = self._path(key)
        where = f"{path}: " if path else ""
        is_there = not key or key.partition("[")[0] in self.document
        but = f"not {shown(value)}" if is_there else "and is missing"
        raise Damaged(f"{self.place}: {where}should be {what}, {but}")


def read_texts(document: object, place: str) -> dict[str, str]:
    """Read the file `place`, an object of texts, such as variables. Raises `StoreError`."""
    top = Part(document, place)
    return {name: top.text(name) for name in top.document}


def shown(value: object) -> str:
    """Return a value for messages. It may be of any size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return json.dumps(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    return json.dumps(value)
