"""How a document of ours is read: a key at a time, each with the type that it must have.

What is wrong is a `Damaged` (a `StoreError`) that names the file and the place in it:

    sweeps/lr/sweep.json: runs[3].id: should be a text, and is null
"""

import json
import re
from collections.abc import Iterable
from typing import Literal, NoReturn, TypeVar, cast

from sweeper.errors import Damaged

__all__ = ["SCHEMA", "Part", "read_texts"]

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest that it reads."""

T = TypeVar("T")
Word = TypeVar("Word", bound=str)

_LARGEST = 1e18
"""Numbers of ours (seconds, bytes, counters) are smaller; NaN and infinities are none."""
_SHOWN = 40
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"


class Part:
    """An object in a document: `document` with its keys, `place` for people. In what takes another
    type in place of a missing key, null is as good as missing."""

    __slots__ = ("_inside", "document", "place")

    def __init__(self, value: object, place: str, inside: str = "") -> None:
        """`place` names the file, `inside` the way to this object in it."""
        self.place = place
        self._inside = inside
        if not isinstance(value, dict):
            self._refuse("", "an object", value)
        self.document: dict[str, object] = cast(dict[str, object], value)

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.document.get(key)
        return value if isinstance(value, str) else self._refuse(key, "a text", value)

    def text_or(self, key: str, default: T) -> str | T:
        """A text, or `default` without."""
        return default if self.document.get(key) is None else self.text(key)

    def one_of(self, key: str, known: Iterable[Word], default: Word | Literal[""]) -> Word:
        """One of some texts, or `default` without."""
        value = self.text_or(key, default)
        for word in known:
            if word == value:
                return word
        return self._refuse(key, " or ".join(known), value)

    def time_or(self, key: str, default: T) -> str | T:
        """A moment in UTC, as `store.documents.timestamp` has it."""
        value = self.text_or(key, None)
        if value is None:
            return default
        from datetime import datetime  # not every worker reads one

        try:
            if re.fullmatch(_TIME, value) and datetime.fromisoformat(value):
                return value
        except ValueError:
            pass
        return self._refuse(key, "a time such as 2026-01-31T12:00:00Z", value)

    def number_or(self, key: str, default: T) -> float | T:
        """A finite number that could be one of seconds or bytes."""
        value = self.document.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._refuse(key, "a number", value)
        return value if -_LARGEST < value < _LARGEST else self._refuse(key, "a number", value)

    def integer_or(self, key: str, default: T) -> int | T:
        """An integer."""
        value = self.number_or(key, None)
        if value is None:
            return default
        return value if isinstance(value, int) else self._refuse(key, "an integer", value)

    def flag_or(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.document.get(key)
        if value is None:
            return default
        return value if isinstance(value, bool) else self._refuse(key, "true or false", value)

    def items(self, key: str) -> list[object]:
        """A list that must be there."""
        value = self.document.get(key)
        return cast(list[object], value) if isinstance(value, list) else self._refuse(
            key, "a list", value
        )  # fmt: skip

    def texts_or(self, key: str, default: T) -> list[str] | T:
        """A list of texts."""
        if self.document.get(key) is None:
            return default
        return [
            item if isinstance(item, str) else self._refuse(f"{key}[{number}]", "a text", item)
            for number, item in enumerate(self.items(key))
        ]

    def part(self, key: str) -> "Part":
        """An object that must be there."""
        if key not in self.document:
            self._refuse(key, "an object", None)
        return Part(self.document.get(key), self.place, self._path(key))

    def part_or_none(self, key: str) -> "Part | None":
        """An object, or None without."""
        return None if self.document.get(key) is None else self.part(key)

    def table(self, key: str) -> dict[str, object]:
        """The keys of an object and their values, whatever these are; none without."""
        found = self.part_or_none(key)
        return {} if found is None else found.document

    def texts_by_key(self, key: str) -> dict[str, str]:
        """An object that holds texts; empty without."""
        found = self.part_or_none(key)
        return {} if found is None else {name: found.text(name) for name in found.document}

    def parts_by_key(self, key: str) -> "dict[str, Part]":
        """An object that holds objects; empty without."""
        found = self.part_or_none(key)
        return {} if found is None else {name: found.part(name) for name in found.document}

    def parts(self, key: str) -> "list[Part]":
        """A list of objects that must be there."""
        found = enumerate(self.items(key))
        return [Part(one, self.place, self._path(f"{key}[{number}]")) for number, one in found]

    def refuse(self, key: str, what: str) -> NoReturn:
        """Raise the error that says `what` the value under `key` should be."""
        self._refuse(key, what, self.document.get(key))

    def _path(self, key: str) -> str:
        return f"{self._inside}.{key}" if self._inside and key else self._inside or key

    def _refuse(self, key: str, what: str, value: object) -> NoReturn:
        path = self._path(key)
        where = f"{path}: " if path else ""
        is_there = not key or key.partition("[")[0] in self.document
        found = _shown(value) if is_there else "missing"
        raise Damaged(f"{self.place}: {where}should be {what}, and is {found}")


def read_texts(document: object, place: str) -> dict[str, str]:
    """The file `place`, an object that holds texts, as variables are kept. Raises `StoreError`."""
    top = Part(document, place)
    return {name: top.text(name) for name in top.document}


def _shown(value: object) -> str:
    """A value in few words. It may be of any size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return json.dumps(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a huge number"
    return json.dumps(value)
