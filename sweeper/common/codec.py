"""Conversion of sweeper's JSON documents to `NamedTuple`s and back, by the types of the fields.
Null counts as a missing key. Unknown keys are ignored, since a newer version may have written
them."""

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, cached_property, partial
from operator import ge, le
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast
from typing import get_args as args_of
from typing import get_origin as origin_of

from sweeper.errors import Damaged

SCHEMA = 1
"""The version of every document that this sweeper writes, and the newest version that it reads."""

LARGEST = 1e18
"""The bound for numbers in documents. All such numbers are seconds, bytes or counters. Larger
numbers, NaN and infinity are refused."""

_DIGITS = str.maketrans("123456789", "000000000")
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LONGEST = 40
"""The largest number of characters of a string that messages show."""

T = TypeVar("T")
Read = Callable[[Any], Any]


class Check:
    """For use in `Annotated`: a condition on a field's value. `expected` describes valid values."""

    def __init__(self, accepts: Callable[[Any], object], expected: str) -> None:
        self.accepts, self.expected = accepts, expected


class Parse:
    """For use in `Annotated`: a function that reads a field's value, in place of the usual reader
    for the field's type. The function raises `Wrong` for an invalid value."""

    def __init__(self, read: Read) -> None:
        self.read = read


class _Bound:
    def __init__(self, bound: float) -> None:
        self.bound = bound


class AtLeast(_Bound):
    """For use in `Annotated`: the lower bound of a number."""


class AtMost(_Bound):
    """For use in `Annotated`: the upper bound of a number."""


class Clamp(_Bound):
    """For use in `Annotated`: the lower bound of a number. The bound replaces a lower number."""


class Key:
    """For use in `Annotated`: the key of a field in documents, if it differs from the field's
    name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Default:
    """For use in `Annotated`: the value of a field if a document lacks the field's key. Python
    code that makes the `NamedTuple` must still pass a value."""

    def __init__(self, value: object) -> None:
        self.value = value


_SPARSE, _REST, _WHOLE, _UNSTORED = object(), object(), object(), object()

Sparse = Annotated[T, _SPARSE]
"""Marks a field that is written only if its value differs from its default."""

Rest = Annotated[T, _REST]
"""Marks a field that collects the values of all keys that are not keys of other fields, as {key:
object}. Values that are not JSON objects are left out."""

Whole = Annotated[T, _WHOLE]
"""Marks a field that holds the whole document as it was read. The field is not written."""

Unstored = Annotated[T, _UNSTORED]
"""Marks a field that is neither read nor written. It always has its default."""


def _is_time(text: str) -> bool:
    # Without `re` and `datetime`: loading these takes longer than reading many documents.
    shape = text.translate(_DIGITS)
    whole, point, fraction = shape.removesuffix("Z").partition(".")
    if whole != "0000-00-00T00:00:00" or shape[-1] != "Z" or fraction.strip("0"):
        return False
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    hour, minute, second = int(text[11:13]), int(text[14:16]), int(text[17:19])
    if not (year and 1 <= month <= 12 and hour < 24 and minute < 60 and second < 60):
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 29 if leap and month == 2 else _DAYS[month - 1]
    return 1 <= day <= last and bool(fraction) == bool(point)


Time = Annotated[str, Check(_is_time, "a time such as 2026-01-31T12:00:00Z")]
"""A time in UTC, in the format of `store.documents.timestamp`."""


class Wrong(Exception):
    """Raised for an invalid value in a document. `expected` describes valid values. `path` lists
    the keys and indices that lead to the invalid value, the innermost first."""

    def __init__(self, expected: str, value: object, path: str = "", *, missing: bool = False):
        super().__init__(expected)
        self.expected, self.path = expected, [path] if path else []
        self.but = "but is missing" if missing else f"not {shown(value)}"

    def within(self, part: str) -> "Wrong":
        """Append the next outer part of the path, such as `launch` or `[3]`, and return this
        error."""
        self.path.append(part)
        return self


def read(kind: type[T], document: object, place: str, inside: str = "") -> T:
    """Check `document`, and convert it to `kind`. Messages name the file `place`, and the
    document's position `inside` this file. Raises `Damaged`."""
    try:
        return cast(T, _reader(kind)(document))
    except Wrong as error:
        parts = [*filter(None, [inside]), *error.path[::-1]]
        path = "".join(part if part[0] == "[" else f".{part}" for part in parts)
        where = f"{place}: {path.removeprefix('.')}: " if path else f"{place}: "
        raise Damaged(f"{where}should be {error.expected}, {error.but}") from None


def value_of(kind: type[T], value: object) -> T:
    """Check a JSON value, and convert it to `kind`. Raises `Wrong`."""
    return cast(T, _reader(kind)(value))


def written(value: tuple[Any, ...]) -> dict[str, Any]:
    """Convert a `NamedTuple` to a document."""
    return _write_fields(value)


_REQUIRED = object()


class _Field:
    """The reader and the writer of a `NamedTuple` field. `special` is `_REST`, `_WHOLE` or
    `_UNSTORED` for a field of these kinds, else None. A value equal to `omitted` is not written.
    `default` replaces a missing value (`_REQUIRED`: no default). `read` is not called for values of
    the class `as_is`."""

    def __init__(self, name: str, hint: Any, defaults: Mapping[str, object]) -> None:
        marks: tuple[object, ...] = args_of(hint)[1:] if origin_of(hint) is Annotated else ()
        self.key = next((mark.name for mark in marks if isinstance(mark, Key)), name)
        default = defaults.get(name, None if _is_optional(hint) else _REQUIRED)
        self.omitted = default if _SPARSE in marks else _REQUIRED
        self.default = next((mark.value for mark in marks if isinstance(mark, Default)), default)
        self.special = next((m for m in marks if m in (_REST, _WHOLE, _UNSTORED)), None)
        self.as_is = None if self.special else _class_taken_as_is(hint)
        self._hint = hint

    @cached_property
    def read(self) -> Read:
        return _reader(self._hint)

    @cached_property
    def write(self) -> Read | None:
        return _writer(self._hint)


@cache
def _fields(kind: type[Any]) -> tuple[_Field, ...]:
    # `get_type_hints` takes several times as long. It also resolves types that are written in
    # quotes, which no document has.
    hints: dict[str, Any] = kind.__annotations__
    return tuple(_Field(name, hints[name], kind._field_defaults) for name in kind._fields)


def _class_taken_as_is(hint: Any) -> type | None:
    """Return the class whose instances are valid for the type `hint` without a check; None if there
    is no such class."""
    origin, args = origin_of(hint), args_of(hint)
    if origin is Annotated:
        checked = any(isinstance(mark, Parse | Check | _Bound) for mark in args[1:])
        return None if checked else _class_taken_as_is(args[0])
    if origin in (Union, UnionType):
        return _class_taken_as_is(_inner_type(args))
    if origin in (dict, Mapping) and args[1] is object:
        return dict
    return hint if hint in (str, bool) else None


def _inner_type(args: tuple[Any, ...]) -> Any:
    (inner,) = (arg for arg in args if arg is not NoneType)
    return inner


def _is_optional(hint: Any) -> bool:
    if origin_of(hint) is Annotated:
        return _is_optional(args_of(hint)[0])
    return origin_of(hint) in (Union, UnionType) and NoneType in args_of(hint)


def _reader(hint: Any) -> Read:  # noqa: PLR0911 (one for each kind of type)
    """Return a function that reads values of the type `hint`. The function raises `Wrong`."""
    origin, args = origin_of(hint), args_of(hint)
    if origin is Annotated:
        parse = next((mark.read for mark in args[1:] if isinstance(mark, Parse)), None)
        if parse is not None:
            return parse
        return _checked(_reader(args[0]), args[1:])
    if (plain := _PLAIN.get(hint)) is not None:
        return plain
    if origin in (Union, UnionType):
        inner = _reader(_inner_type(args))
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


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Wrong("a string", value)


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
    object: lambda value: value,
}


def _checked(inner: Read, marks: tuple[object, ...]) -> Read:
    """Return a reader that calls `inner`, then checks the conditions that `Annotated` has."""
    checks: list[tuple[Callable[[Any], object], str]] = []
    for mark in marks:
        if isinstance(mark, AtLeast):
            checks.append((partial(le, mark.bound), f"{mark.bound:g} or more"))
        elif isinstance(mark, AtMost):
            checks.append((partial(ge, mark.bound), f"{mark.bound:g} or less"))
        elif isinstance(mark, Check):
            checks.append((mark.accepts, mark.expected))
        elif isinstance(mark, Clamp):
            inner = _clamped(inner, mark.bound)
    if not checks:
        return inner

    def read_checked(value: Any) -> Any:
        result = inner(value)
        if result is not None:
            for accepts, expected in checks:
                if not accepts(result):
                    raise Wrong(expected, value)
        return result

    return read_checked


def _clamped(inner: Read, bound: float) -> Read:
    return lambda value: max(bound, inner(value))


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
        add = result.append
        try:
            if fixed is None:
                for item in items:
                    add(inner(item))
            else:
                for item, read_item in zip(items, fixed, strict=True):
                    add(read_item(item))
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
    """Return a function that converts a JSON object to the `NamedTuple` class `kind`."""

    def read_record(value: Any) -> Any:
        document = _object(value)
        values: list[object] = []
        add, get = values.append, document.get
        key = ""
        try:
            for key, as_is, default, field in _steps(kind):
                item = get(key)
                if type(item) is as_is:
                    add(item)
                elif item is None and default is not _REQUIRED:
                    add(default)
                else:
                    add(_value_of_field(field, item, kind, document))
        except Wrong as error:
            raise error.within(key) from None
        return kind._make(values)

    return read_record


@cache
def _steps(kind: type[Any]) -> tuple[tuple[str, type | None, object, _Field], ...]:
    """Return (key, `as_is`, default, field) for each field of `kind`."""
    return tuple(
        (field.key, field.as_is, _REQUIRED if field.special else field.default, field)
        for field in _fields(kind)
    )


def _value_of_field(field: _Field, item: object, kind: type[Any], document: dict[str, Any]) -> Any:
    if field.special is not None:
        return _special(field, kind, document)
    if item is None and field.key not in document:
        return _missing(field.read)
    return field.read(item)


def _special(field: _Field, kind: type[Any], document: dict[str, Any]) -> object:
    """Return the value of a field that is marked `Rest`, `Whole` or `Unstored`."""
    if field.special is _WHOLE:
        return document
    if field.special is _UNSTORED:
        return field.default
    keys = {other.key for other in _fields(kind)}
    return field.read({k: v for k, v in document.items() if k not in keys and isinstance(v, dict)})


def _missing(read_field: Read) -> object:
    """Return what `read_field` returns for None. If it accepts no None, raise `Wrong` with the
    message that a key is missing."""
    try:
        return read_field(None)
    except Wrong as error:
        raise Wrong(error.expected, None, missing=True) from None


def _writer(hint: Any) -> Read | None:  # noqa: PLR0911
    """Return a function that converts values of the type `hint` to JSON; None if they already are
    JSON."""
    origin, args = origin_of(hint), args_of(hint)
    if origin is Annotated:
        return _writer(args[0])
    if origin in (Union, UnionType):
        inner = _writer(_inner_type(args))
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
    """Return a value in a short form for messages."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return json.dumps(value[:_LONGEST]) + ("..." if len(value) > _LONGEST else "")
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    return json.dumps(value)
