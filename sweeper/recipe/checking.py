"""Lets chz parse configurations as a run will, compares the results with the given values, and
reports each mistake in one line. Loaded by path in the recipe's interpreter."""

from __future__ import annotations

import collections.abc
import json
import typing

import chz
from chz.blueprint import MissingBlueprintArg
from chz.factories import MetaFactory, MetaFromString

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sweeper.recipe.documents import Packed, Problem, Takes

MAX_PROBLEMS = 50
_FORMS = ("literal", "indexed")
_MISSING: object = object()
_PARSE_ERRORS = (
    chz.blueprint.ConstructionException,
    chz.blueprint.ExtraneousBlueprintArg,
    chz.blueprint.InvalidBlueprintArg,
    chz.blueprint.MissingBlueprintArg,
)


_BAD: object = object()
_Field: typing.TypeAlias = "tuple[str, tuple[str, ...], tuple[int, ...]]"  # name, keys, places


Made = typing.TypeVar("Made")


class Source(typing.Protocol[Made]):
    """The interface of an object that makes configs from arguments."""

    cls: type[object]

    def make(self, arguments: list[str]) -> Made:
        """Make a config from `key=value` arguments. Raises the errors of chz and of the recipe."""
        ...

    def read(self, made: Made, key: str) -> tuple[object, str]:
        """Return the object inside `made` that has the value of `key`, and the key there."""
        ...

    def annotation(self, field: str) -> object:
        """Return the type of a field."""
        ...


class Class:
    """A maker of configs of a chz class."""

    def __init__(self, cls: type[object]) -> None:
        self.cls = cls

    def make(self, arguments: list[str]) -> object:
        """Make the config from `key=value` arguments. Raises the errors of chz and of the
        class."""
        return chz.Blueprint(self.cls).make_from_argv(arguments)

    def read(self, made: object, key: str) -> tuple[object, str]:
        return made, key

    def annotation(self, field: str) -> object:
        return chz.chz_fields(self.cls)[field].x_type


class Checker(typing.Generic[Made]):
    """A checker of configurations. `source` makes a config from arguments; it is a `Class` or a
    `function_recipes.Function`.

    If `source` is a `Class`, chz parses each value only once. If all values of a configuration are
    already parsed, the class is called with the parsed values, so that its validators run.

    `filled` has the fields that the worker adds to each configuration. After `check`, `forms` is
    what `bootstrap.to_argv` takes, and `problems` has a tuple for each problem: the configuration's
    index, the key, and the message.
    """

    def __init__(
        self,
        source: Source[Made],
        takes: dict[str, Takes],
        filled: dict[str, str],
        to_argv: Callable[[dict[str, object], dict[str, str]], list[str]],
        written: Callable[[str, object, str], Iterator[tuple[str, str]]],
    ) -> None:
        self.source, self.cls = source, source.cls
        self._construct: Callable[..., object] = source.cls
        self.takes, self.filled = takes, filled
        self.to_argv, self.written = to_argv, written
        self.forms: dict[str, str] = {}
        self.problems: list[Problem] = []
        # For each field: keys -> numbers of their values -> the values that chz made from them.
        self._made: dict[tuple[str, ...], dict[tuple[int, ...], object]] = {}
        self._bad: set[tuple[str, str]] = set()
        self._noted: set[tuple[str | None, str]] = set()
        self._refused: dict[str, str | None] = {}

    def check(self, packed: Packed) -> None:
        """Check the configurations of a request. Stop after 50 problems."""
        _refuse_names()
        shapes, values = packed["shapes"], packed["values"]
        rows = packed["rows"]
        fields: list[list[_Field]] = [self._fields(shape) for shape in shapes]
        index = 0
        while index < len(rows) and len(self.problems) < MAX_PROBLEMS:
            row = rows[index]
            if self._parsed_before(fields[row[0]], row):
                index += 1
                continue
            given = zip(shapes[row[0]], (values[number] for number in row[1:]), strict=True)
            config: dict[str, object] = {**self.filled, **dict(given)}
            texts = {key: json.dumps(value) for key, value in config.items()}
            if self._parse(index, config, texts, fields[row[0]], row):
                # A key is now written in another form: check earlier configurations again.
                self._made.clear()
                index = 0
            else:
                index += 1

    def _fields(self, shape: list[str]) -> list[_Field]:
        fields: dict[str, dict[str, int]] = {}
        for place, key in enumerate([*self.filled, *shape], start=1 - len(self.filled)):
            below = fields.setdefault(key.partition(".")[0], {})
            if place > 0:
                below[key] = place
        return [(name, tuple(keys), tuple(keys.values())) for name, keys in fields.items()]

    def _parsed_before(self, fields: list[_Field], row: list[int]) -> bool:
        """Check a configuration whose values chz has parsed before. Return False if chz must parse
        the configuration."""
        # Only a call of the function shows the config that it makes of these values.
        if not isinstance(self.source, Class):
            return False
        made: dict[str, object] = {}
        bad = False
        for name, keys, places in fields:
            numbers = (row[places[0]],) if len(places) == 1 else tuple([row[n] for n in places])
            try:
                value = self._made[keys or (name,)][numbers]
            except KeyError:
                return False
            if value is _BAD:
                bad = True
            made[name] = value
        # The mistake was reported for another configuration, and the other keys were checked.
        if bad:
            return True
        try:
            self._construct(**made)
        except Exception:  # noqa: BLE001  (validators raise what they like)
            return False
        return True

    def _remember(
        self,
        fields: list[_Field],
        row: list[int],
        made: Made,
        left: dict[str, object],
        texts: dict[str, str],
    ) -> None:
        """Store the values that chz has made for the fields of a configuration. `left` is the part
        of the configuration without mistakes. A field is stored as `_BAD` if its value is wrong in
        every configuration."""
        for name, keys, places in fields:
            value = self._read(made, name)
            if not all(key in left for key in keys):
                refused = [(k, texts[k]) in self._bad or self._refused.get(k) for k in keys]
                value = _BAD if any(refused) else _MISSING
            if value is not _MISSING:
                self._made.setdefault(keys or (name,), {})[tuple([row[n] for n in places])] = value

    def _parse(
        self,
        index: int,
        config: dict[str, object],
        texts: dict[str, str],
        fields: list[_Field],
        row: list[int],
    ) -> bool:
        """Parse a configuration with chz, and report mistakes. Return True if the form of a key was
        changed: earlier configurations must then be checked again. Otherwise return False."""
        remaining = {
            key: value
            for key, value in config.items()
            if (key, texts[key]) not in self._bad and not self._is_refused(index, key, value)
        }
        while True:
            try:
                made = self._make(remaining)
                break
            except Exception as error:  # noqa: BLE001  (validators raise what they like)
                key = self._culprit(remaining, error)
                if key is None:
                    self._add_general_problem(index, config, remaining, error)
                    return False
                if self._try_other_forms(remaining, key):
                    return True
                self._add_problem(index, key, self._message(key, config[key], error))
                if isinstance(error, _PARSE_ERRORS):
                    self._bad.add((key, texts[key]))
                del remaining[key]
        for key, value in list(remaining.items()):
            got = self._read(made, key)
            if got is not _MISSING and not same(value, got):
                if self._try_other_forms(remaining, key):
                    return True
                self._bad.add((key, texts[key]))
                del remaining[key]
                message = f"{_shown(value)} would reach the recipe as {_shown(got)}"
                self._add_problem(index, key, f"{key} takes {self._type(key)}: {message}")
        self._remember(fields, row, made, remaining, texts)
        return False

    def _make(self, config: dict[str, object], **forms: str) -> Made:
        return self.source.make(self.to_argv(config, {**self.forms, **forms}))

    def _read(self, made: Made, key: str) -> object:
        return read(*self.source.read(made, key))

    def _is_refused(self, index: int, key: str, value: object) -> bool:
        """Return whether a grid cannot give this value, because `key` is not a field or its field
        takes an object or code. If so, add a problem. Null is allowed for every field."""
        if key not in self._refused:
            self._refused[key] = self._why_refused(key)
        why = self._refused[key]
        if why is None or (value is None and key.partition(".")[0] in self.takes):
            return False
        self._add_problem(index, key, why)
        return True

    def _why_refused(self, key: str) -> str | None:
        first, *rest = key.split(".")
        if first not in self.takes:
            return f"{self.cls.__name__} has no field '{first}'{_nearest(first, self.takes)}"
        annotations = annotations_at(self.source.annotation(first), rest)
        if any(map(takes_object, annotations)):
            return f"{key} is an object: set its fields, as in {key}.<field>"
        if any(map(takes_code, annotations)):
            return f"{key} takes code ({self._type(key)}), which a grid cannot give"
        return None

    def _culprit(self, config: dict[str, object], error: Exception) -> str | None:
        """Return the key that causes the error, or None if no single key does. Keys in the text of
        the error are tried first."""
        if isinstance(error, MissingBlueprintArg):
            return None
        text = str(error)
        parse_error = isinstance(error, _PARSE_ERRORS)
        keys = [key for key in config if key not in self.filled]
        for key in sorted(keys, key=lambda key: (f"'{key}'" not in text, key not in text)):
            try:
                self._make({k: v for k, v in config.items() if k != key})
            except Exception as other:  # noqa: BLE001
                if str(other) == text:
                    continue
                if not parse_error and isinstance(other, MissingBlueprintArg):
                    # The key is only required. It causes the error if the validator mentions it.
                    if key in text:
                        return key
                    continue
            return key
        return None

    def _try_other_forms(self, config: dict[str, object], key: str) -> bool:
        """Find another form (`bootstrap.to_argv`) in which chz reads the value correctly. If there
        is one, use this form for `key` from now on and return True. Otherwise return False."""
        usual = list(self.written(key, config[key], "plain"))
        for form in _FORMS:
            if key in self.forms or list(self.written(key, config[key], form)) == usual:
                continue
            try:
                fits = same(config[key], self._read(self._make(config, **{key: form}), key))
            except Exception:  # noqa: BLE001
                fits = False
            if fits:
                self.forms[key] = form
                return True
        return False

    def _type(self, key: str) -> str:
        first, *rest = key.split(".")
        if not rest:
            return str(self.takes[first]["type"])
        annotations = annotations_at(self.source.annotation(first), rest)
        return " | ".join(_name(annotation) for annotation in annotations) or "another value"

    def _hint(self, key: str) -> str:
        """Return a suggestion for a nested field that does not exist."""
        first, *rest = key.split(".")
        above = annotations_at(self.source.annotation(first), rest[:-1])
        classes = [typing.get_origin(m) or m for a in above for m in members_of(a)]
        beside = [name for cls in classes if chz.is_chz(cls) for name in chz.chz_fields(cls)]
        inside = key.rpartition(".")[0]
        return _nearest(key, [f"{inside}.{name}" for name in beside])

    def _message(self, key: str, value: object, error: Exception) -> str:
        extraneous = isinstance(error, chz.blueprint.ExtraneousBlueprintArg)
        # In indexed form, this error means that an element is itself a list.
        indexed = extraneous and self.forms.get(key) == "indexed"
        if isinstance(error, chz.blueprint.InvalidBlueprintArg) or indexed:
            return f"{key} takes {self._type(key)}, not {_shown(value)}"
        if extraneous:
            return f"{self.cls.__name__} has no field '{key}'{self._hint(key)}"
        if isinstance(error, _PARSE_ERRORS):
            return f"{key}: {_first_line(error)}"
        return f"{key}: {_first_line(error)} ({type(error).__name__})"

    def _add_general_problem(
        self, index: int, config: dict[str, object], left: dict[str, object], error: Exception
    ) -> None:
        """Add a problem for an error that no single key causes."""
        if isinstance(error, MissingBlueprintArg):
            names = [name.strip() for name in str(error).rpartition(":")[2].split(",")]
            gone = set(config) - set(left)
            names = [name for name in names if name not in gone]
            if names:
                self._add_problem(
                    None, None, f"{self.cls.__name__} needs a value for {', '.join(names)}"
                )
        elif len(left) == len(config):
            self._add_problem(index, None, f"{_first_line(error)} ({type(error).__name__})")

    def _add_problem(self, index: int | None, key: str | None, message: str) -> None:
        if (key, message) not in self._noted:
            self._noted.add((key, message))
            self.problems.append((index, key, message))


def _refuse_names() -> None:
    """Make chz refuse names of classes and functions as values. Otherwise chz would import any name
    in a grid, and evaluate strings that begin with `lambda`."""

    def refuse(self: MetaFactory, factory: str) -> typing.NoReturn:  # noqa: ARG001
        raise MetaFromString("a value cannot be the name of a class or a function")

    pending: list[type[MetaFactory]] = [MetaFactory]
    while pending:
        value = pending.pop()
        value.from_string = refuse
        pending.extend(value.__subclasses__())


def annotations_at(annotation: object, path: list[str]) -> list[object]:
    """Return the possible types of the value at `path`, the parts of a dotted key, in a value of
    the type `annotation`; [] if they are unknown."""
    if not path:
        return [annotation]
    annotations: list[object] = []
    for member in members_of(annotation):
        origin = typing.get_origin(member) or member
        arguments = typing.get_args(member)
        if chz.is_chz(origin):
            field = chz.chz_fields(origin).get(path[0])
            below = [] if field is None else [field.x_type]
        elif arguments and origin in (list, collections.abc.Sequence, collections.abc.Iterable):
            below = [arguments[0]]
        elif arguments and origin is tuple:
            below = [a for a in arguments if a is not ...]
        elif len(arguments) == 2 and origin in (dict, collections.abc.Mapping):
            below = [arguments[1]]
        else:
            below = _parameter(origin, path[0])
        for inner in below:
            annotations.extend(annotations_at(inner, path[1:]))
    return annotations


def _parameter(origin: object, name: str) -> list[object]:
    """Return a list of one item, the annotation of the parameter `name`; [] if it is unknown."""
    try:
        hints = typing.get_type_hints(getattr(origin, "__init__", origin))
    except Exception:  # noqa: BLE001
        return []
    return [hints[name]] if name in hints else []


def members_of(annotation: object) -> list[object]:
    """Return the members of a union, without None. For any other type, return a list that contains
    only that type."""
    if type(annotation).__name__ == "UnionType" or typing.get_origin(annotation) is typing.Union:
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]


def takes_object(annotation: object) -> bool:
    """Return whether a type is a chz class, or a union that contains a chz class."""
    return any(chz.is_chz(typing.get_origin(m) or m) for m in members_of(annotation))


def takes_code(annotation: object) -> bool:
    """Return whether a value of this type could be the name of a function or class."""
    origin = typing.get_origin(annotation)
    if "Callable" in (_name(annotation).rpartition(".")[2], _name(origin).rpartition(".")[2]):
        return True
    if annotation is type or origin is type:
        return True
    if origin is typing.Literal:
        return False
    return any(takes_code(a) for a in typing.get_args(annotation) if a is not ...)


def read(made: object, key: str) -> object:
    """Return an object's value at a dotted key, before mungers (chz's functions that change values)
    have changed it. Return `_MISSING` if the object has no such value."""
    for part in key.split("."):
        if isinstance(made, (list, tuple)):
            items = typing.cast("collections.abc.Sequence[object]", made)
            made = items[int(part)]
        elif isinstance(made, dict):
            made = typing.cast("dict[object, object]", made).get(part, _MISSING)
        else:
            name = f"X_{part}" if chz.is_chz(made) else part
            made = getattr(made, name, _MISSING)
        if made is _MISSING:
            break
    return made


def same(intended: object, parsed: object) -> bool:
    """Return whether the value that chz has parsed equals the intended value. An integer may become
    a float, and a list a tuple. Any string or number may become another type (an Enum, a Path)."""
    if isinstance(parsed, (list, tuple)):
        items = list(typing.cast("collections.abc.Sequence[object]", parsed))
        return (
            isinstance(intended, list)
            and len(typing.cast("list[object]", intended)) == len(items)
            and all(map(same, typing.cast("list[object]", intended), items))
        )
    if isinstance(parsed, dict):
        entries = typing.cast("dict[object, object]", parsed)
        given = (
            typing.cast("dict[object, object]", intended) if isinstance(intended, dict) else None
        )
        return (
            given is not None
            and given.keys() == entries.keys()
            and all(same(given[key], entries[key]) for key in given)
        )
    if type(parsed) is float and type(intended) in (int, float):
        return parsed == intended or repr(parsed) == repr(intended)  # `repr` for NaN
    if parsed is None or type(parsed) in (bool, int, float, str):
        return type(parsed) is type(intended) and parsed == intended
    return isinstance(intended, (str, int, float)) and not isinstance(intended, bool)


def _nearest(word: str, candidates: collections.abc.Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(candidates), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _name(annotation: object) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return repr(annotation).replace("typing.", "")


def _shown(value: object) -> str:
    """Return a value in JSON, shortened if it is long."""
    if isinstance(value, tuple):
        value = list(typing.cast("tuple[object, ...]", value))
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
