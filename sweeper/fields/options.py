"""The options of a backend, declared once. Types, defaults and kinds stand together:

    class Options(NamedTuple):
        partition: Annotated[str | None, Option(Text(), "The partition.", "gpu")] = None
        time_s: Annotated[float | None, Option(Duration(60), "The time limit.", "2h")] = None

`section_of` makes the section of a grid, and `read_options` reads the options of a plan. The name
of a duration in a grid has no `_s`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

from sweeper.common import codec
from sweeper.fields.kinds import Duration, Kind, duration_text
from sweeper.fields.sections import Field, Reading, Section

T = TypeVar("T", bound=tuple[Any, ...])
_NO_DEFAULTS: tuple[object, ...] = (None, (), {})


class Option(NamedTuple):
    """How a grid has a field, in `Annotated`. `doc` is a sentence for people, and `example` is
    shown if there is no default."""

    kind: Kind
    doc: str
    example: object = None


def section_of(
    options: type[tuple[Any, ...]],
    *,
    check: Callable[[Reading], None] | None = None,
    more: Mapping[str, object] | None = None,
) -> Section:
    """Return the section that declares the fields of `options`, a `NamedTuple`. `check` and `more`
    are as in `Section`."""
    hints = get_type_hints(options, include_extras=True)
    defaults: Mapping[str, object] = cast(Any, options)._field_defaults
    fields = (_field(name, hint, defaults.get(name)) for name, hint in hints.items())
    return Section(*fields, check=check, more=more)


def _field(key: str, hint: Any, default: object) -> Field:
    kind, doc, example = next(mark for mark in hint.__metadata__ if isinstance(mark, Option))
    examples = () if example is None else (example,)
    if default in _NO_DEFAULTS:
        default = None
    if not isinstance(kind, Duration):
        return Field(key, kind, doc, default, examples)
    written = duration_text(default) if isinstance(default, float) else None
    return Field(key.removesuffix("_s"), kind, doc, written, examples, key)


def read_options(options: type[T], given: Mapping[str, object], place: str) -> T:
    """Return options as a plan has them, `given`, as `options`. Raises `Damaged`."""
    return codec.read(options, dict(given), place)


def _over(before: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    return {**before, **given}


def over(
    options: T,
    given: Mapping[str, object],
    merge: Callable[[Mapping[str, object], Mapping[str, object]], dict[str, object]] = _over,
) -> T:
    """Return options with given ones, as a plan has them, merged over them. Raises `Damaged`."""
    return codec.read(type(options), merge(codec.written(options), given), "launch")
