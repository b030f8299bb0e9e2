"""The options of a backend, declared once as a `NamedTuple` of annotated fields. `section_of`
makes the section of a grid, and `read_options` reads a plan's options. A duration (`time_s`) has
a name without `_s` in grids."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from sweeper.common import codec
from sweeper.fields.kinds import COUNT, Choice, Duration, Flag, Integer, Kind, Text, duration_text
from sweeper.fields.sections import Field, Reading, Section

T = TypeVar("T", bound=tuple[Any, ...])
_NO_DEFAULTS: tuple[object, ...] = (None, (), {})


class Option(NamedTuple):
    """The declaration of an option in a grid, for use in `Annotated`. `doc` is a sentence for
    people. If the option has no default, starter grids show `example`."""

    kind: Kind
    doc: str
    example: object = None


def section_of(
    options: type[tuple[Any, ...]],
    *,
    check: Callable[[Reading], None] | None = None,
    more: Mapping[str, object] | None = None,
) -> Section:
    """Return a section with the fields of `options`, a `NamedTuple`. `check` and `more` are
    arguments of `Section`."""
    hints = get_type_hints(options, include_extras=True)
    defaults: Mapping[str, object] = cast(Any, options)._field_defaults
    fields = (
        field_of(name, mark, defaults.get(name))
        for name, hint in hints.items()
        for mark in hint.__metadata__
        if isinstance(mark, Option)
    )
    return Section(*fields, check=check, more=more)


def kind_of(key: str, hint: Any) -> Kind:
    """Return the kind of a field. The kind depends on the field's type and its bounds."""
    annotated, *marks = get_args(hint)
    minimum = next((mark.bound for mark in marks if isinstance(mark, codec.AtLeast)), 0)
    most = next((mark.bound for mark in marks if isinstance(mark, codec.AtMost)), COUNT)
    if get_origin(annotated) is Literal:
        return Choice(*get_args(annotated))
    types = {annotated, *get_args(annotated)}
    if float in types and key.endswith("_s"):
        return Duration(minimum)
    if int in types:
        return Integer(int(minimum), int(most))
    return Flag() if bool in types else Text()


def field_of(key: str, option: Option, default: object) -> Field:
    """Return the grid field that sets an option. `key` is the option's name in plans (`time_s`)."""
    kind, doc, example = option
    examples = () if example is None else (example,)
    if default in _NO_DEFAULTS:
        default = None
    if not isinstance(kind, Duration):
        return Field(key, kind, doc, default, examples)
    written = duration_text(default) if isinstance(default, float) else None
    return Field(key.removesuffix("_s"), kind, doc, written, examples, key)


def read_options(options: type[T], given: Mapping[str, object], place: str) -> T:
    """Make an instance of `options` from a plan's values. Raises `Damaged` if one is invalid."""
    return codec.read(options, dict(given), place)


def _over(before: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    return {**before, **given}


def over(
    options: T,
    given: Mapping[str, object],
    merge: Callable[[Mapping[str, object], Mapping[str, object]], dict[str, object]] = _over,
) -> T:
    """Merge the options `given`, named as in a plan, into `options`, and return the result. Raises
    `Damaged` if an option is not valid."""
    return codec.read(type(options), merge(codec.written(options), given), "launch")
