"""Reads and writes sweeper's documents by the types of their fields, declared as `NamedTuple`s. A
null counts as a missing key; unknown keys, of a newer version, are ignored."""

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast
from typing import get_args as args_of
from typing import get_origin as origin_of
from typing import get_type_hints as hints_of

from sweeper.errors import Damaged

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest that it reads."""

LARGEST = 1e18
"""Bound of all numbers in documents (seconds, bytes, counters). NaN and infinity are refused."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_LONGEST = 40
"""Characters of a text that messages show."""

T = TypeVar("T")
Read = Callable[[Any], Any]


class Check(NamedTuple):
    """A condition on a field's value, in `Annotated`. `expected` completes "should be"."""

    accepts: Callable[[Any], object]
    expected: str


class Parse(NamedTuple):
    """A function that reads a field's value in place of its type, in `Annotated`. It raises
    `Wrong`."""

    read: Read


class AtLeast(NamedTuple):
    """The lower bound of a number, in `Annotated`."""

    bound: float


class AtMost(NamedTuple):
    """The upper bound of a number, in `Annotated`."""

    bound: float


class Key(NamedTuple):
    """The key of a field in documents if it is not the field's name, in `Annotated`."""

    name: str


class Default(NamedTuple):
    """The value of a field whose key is missing, in `Annotated`, for fields that code must pass."""

    value: object


class Clamp(NamedTuple):
    """The lower bound of a number, in `Annotated`: a lower number is read as the bound."""

    bound: float


_SPARSE, _REST, _WHOLE, _UNSTORED = object(), object(), object(), object()

Sparse = Annotated[T, _SPARSE]
"""Marks a field that is not written if it has its default."""

Rest = Annotated[T, _REST]
"""Marks a field that holds all objects under other keys, by their keys."""

Whole = Annotated[T, _WHOLE]
"""Marks a field that holds the whole document as it was read. It is not written."""

Unstored = Annotated[T, _UNSTORED]
"""Marks a field that documents do not have: it gets its default."""


def _is_time(text: str) -> bool:
    from datetime import datetime  # workers rarely read a time

    try:
        return bool(_TIME.fullmatch(text) and datetime.fromisoformat(text))
    except ValueError:
        return False


Time = Annotated[str, Check(_is_time, "a time such as 2026-01-31T12:00:00Z")]
"""A time in UTC, in the format of `store.documents.timestamp`."""


class Wrong(Exception):
    """A value is not as `expected`. `path` leads to it, with the outermost part last."""

    def __init__(self, expected: str, value: object, path: str = "", *, missing: bool = False):
        super().__init__(expected)
        self.expected, self.path = expected, [path] if path else []
        self.but = "and is missing" if missing else f"not {shown(value)}"

    def within(self, part: str) -> "Wrong":
        """Return the error with one more part of its path: `launch`, or `[3]`."""
        self.path.append(part)
        return self


def read(kind: type[T], document: object, place: str, inside: str = "") -> T:
    """Return a document as `kind`. In messages, `place` names its file, and `inside` is its path
    there. Raises `Damaged`."""
    try:
        return cast(T, _reader(kind)(document))
    except Wrong as error:
        parts = [*filter(None, [inside]), *error.path[::-1]]
        path = "".join(part if part[0] == "[" else f".{part}" for part in parts)
        where = f"{place}: {path.removeprefix('.')}: " if path else f"{place}: "
        raise Damaged(f"{where}should be {error.expected}, {error.but}") from None


def value_of(kind: type[T], value: object) -> T:
    """Return a JSON value as `kind`, for functions in `Parse`. Raises `Wrong`."""
    return cast(T, _reader(kind)(value))


def written(value: tuple[Any, ...]) -> dict[str, Any]:
    """Return the document of a `NamedTuple`."""
    return _write_fields(value)


class _Field(NamedTuple):
    """How a field is read and written. `special` is the mark of one without a key of its own,
    `omitted` the value that is not written (`_REQUIRED`: none)."""

    name: str
    key: str
    read: Read
    write: Read | None
    default: object
    special: object
    omitted: object


_REQUIRED = object()


@cache
def _fields(kind: type[Any]) -> tuple[_Field, ...]:
    hints = hints_of(kind, include_extras=True)
    return tuple(_field(name, hints[name], kind._field_defaults) for name in kind._fields)


def _field(name: str, hint: Any, defaults: Mapping[str, object]) -> _Field:
    marks: tuple[object, ...] = args_of(hint)[1:] if origin_of(hint) is Annotated else ()
    key = next((mark.name for mark in marks if isinstance(mark, Key)), name)
    default = defaults.get(name, None if _is_optional(hint) else _REQUIRED)
    omitted = default if _SPARSE in marks else _REQUIRED
    default = next((mark.value for mark in marks if isinstance(mark, Default)), default)
    special = next((mark for mark in marks if mark in (_REST, _WHOLE, _UNSTORED)), None)
    if special is not None and special is not _REST:
        return _Field(name, key, _anything, None, default, special, omitted)
    return _Field(name, key, _reader(hint), _writer(hint), default, special, omitted)


def _is_optional(hint: Any) -> bool:
    if origin_of(hint) is Annotated:
        return _is_optional(args_of(hint)[0])
    return origin_of(hint) in (Union, UnionType) and NoneType in args_of(hint)


def _reader(hint: Any) -> Read:  # noqa: PLR0911 (one for each kind of type)
    """Return the function that reads a value of the type `hint`, or raises `Wrong`."""
    origin, args = origin_of(hint), args_of(hint)
    if origin is Annotated:
        parse = next((mark.read for mark in args[1:] if isinstance(mark, Parse)), None)
        if parse is not None:
            return parse
        checks = [mark for mark in args[1:] if isinstance(mark, Check | AtLeast | AtMost | Clamp)]
        return _checked(_reader(args[0]), checks)
    if (plain := _PLAIN.get(hint)) is not None:
        return plain
    if origin in (Union, UnionType):
        (given,) = (arg for arg in args if arg is not NoneType)
        inner = _reader(given)
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return _one_of({word: word for word in args})
    if origin in (tuple, list):
        return _many(origin, args)
    if origin in (dict, Mapping):
        return _table(_reader(args[1]))
    if issubclass(hint, Enum):
        return _one_of({member.value: member for member in hint})
    return _record(hint)


def _anything(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Wrong("a text", value)


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        in_range = -LARGEST < value < LARGEST  # false for NaN
        if in_range:
            return value
    raise Wrong("a number", value)


def _integer(value: Any) -> int:
    number = _number(value)
    if isinstance(number, int):
        return number
    raise Wrong("an integer", value)


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise Wrong("true or false", value)


_PLAIN: dict[Any, Read] = {
    str: _text,
    float: _number,
    int: _integer,
    bool: _flag,
    object: _anything,
}


def _checked(inner: Read, checks: list[Check | AtLeast | AtMost | Clamp]) -> Read:
    if not checks:
        return inner

    def read_checked(value: Any) -> Any:
        result = inner(value)
        if result is None:
            return None
        for check in checks:
            if isinstance(check, Clamp):
                result = max(check.bound, result)
            elif isinstance(check, AtLeast):
                if result < check.bound:
                    raise Wrong(f"{check.bound:g} or more", value)
            elif isinstance(check, AtMost):
                if result > check.bound:
                    raise Wrong(f"{check.bound:g} or less", value)
            elif not check.accepts(result):
                raise Wrong(check.expected, value)
        return result

    return read_checked


def _one_of(words: Mapping[str, object]) -> Read:
    def read_word(value: Any) -> object:
        if isinstance(value, str) and value in words:
            return words[value]
        raise Wrong(" or ".join(words), value)

    return read_word


def _many(make: Callable[[list[Any]], Any], args: tuple[Any, ...]) -> Read:
    fixed = None if make is list or args[-1] is Ellipsis else [_reader(arg) for arg in args]
    inner = _reader(args[0])

    def read_many(value: Any) -> Any:
        if not isinstance(value, list):
            raise Wrong("a list", value)
        items = cast(list[Any], value)
        if fixed is not None and len(items) != len(fixed):
            raise Wrong(f"a list of {len(fixed)} values", items)
        result: list[Any] = []
        try:
            for item in items:
                result.append((inner if fixed is None else fixed[len(result)])(item))
        except Wrong as error:
            raise error.within(f"[{len(result)}]") from None
        return make(result)

    return read_many


def _table(inner: Read) -> Read:
    def read_table(value: Any) -> dict[str, Any]:
        table = _object(value)
        if inner is _PLAIN[object]:
            return table
        result: dict[str, Any] = {}
        for key, item in table.items():
            try:
                result[key] = inner(item)
            except Wrong as error:
                raise error.within(key or '""') from None
        return result

    return read_table


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    raise Wrong("an object", value)


@cache
def _record(kind: type[Any]) -> Read:
    """Return the function that reads an object as `kind`. The types of fields are looked at when
    it is first called, since a worker reads few kinds."""

    def read_record(value: Any) -> Any:
        document = _object(value)
        values: list[object] = []
        key = ""
        try:
            for _, key, read_field, _, default, special, _ in _fields(kind):
                item = document.get(key)
                if special is not None:
                    values.append(_special(special, kind, document, read_field, default))
                elif item is not None:
                    values.append(read_field(item))
                elif default is not _REQUIRED:
                    values.append(default)
                elif key in document:
                    values.append(read_field(None))
                else:
                    values.append(_missing(read_field))
        except Wrong as error:
            raise error.within(key) from None
        return kind(*values)

    return read_record


def _special(
    mark: object, kind: type[Any], document: dict[str, Any], read_field: Read, default: object
) -> object:
    """Return the value of a field that has no key of its own."""
    if mark is _WHOLE:
        return document
    if mark is _UNSTORED:
        return default
    known = {field.key for field in _fields(kind)}
    return read_field({k: v for k, v in document.items() if k not in known and isinstance(v, dict)})


def _missing(read_field: Read) -> object:
    """Raise the error that a required key is missing."""
    try:
        return read_field(None)
    except Wrong as error:
        raise Wrong(error.expected, None, missing=True) from None


def _writer(hint: Any) -> Read | None:  # noqa: PLR0911
    """Return the function that turns a value of the type `hint` into JSON; None if the value is
    JSON already."""
    origin, args = origin_of(hint), args_of(hint)
    if origin is Annotated:
        return _writer(args[0])
    if origin in (Union, UnionType):
        (given,) = (arg for arg in args if arg is not NoneType)
        inner = _writer(given)
        return inner and (lambda value: None if value is None else inner(value))
    if origin in (tuple, list):
        item = _writer(args[0])
        return list if item is None else lambda values: [item(value) for value in values]
    if origin in (dict, Mapping):
        item = _writer(args[1])
        return dict if item is None else lambda values: {k: item(v) for k, v in values.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value
    if not isinstance(hint, type) or not issubclass(hint, tuple):
        return None
    return cast(Read, getattr(cast(Any, hint), "document", _write_fields))


def _write_fields(value: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    kind = cast(type[Any], type(value))
    for field, item in zip(_fields(kind), value, strict=True):
        if field.special in (_WHOLE, _UNSTORED) or (
            field.omitted is not _REQUIRED and item == field.omitted
        ):
            continue
        plain: Any = item if item is None or field.write is None else field.write(item)
        if field.special is _REST:
            document.update(plain)
        else:
            document[field.key] = plain
    return document


def shown(value: object) -> str:
    """Return a value for messages, shortened."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return json.dumps(value[:_LONGEST]) + ("..." if len(value) > _LONGEST else "")
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    return json.dumps(value)
