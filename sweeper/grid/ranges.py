"""Ranges: the values of an axis as `{linspace: [0, 1, 5]}`, `{logspace: [1e-5, 1e-2, 4]}` or
`{range: [1, 9, 2]}`. The arithmetic is decimal, so values are the same on every machine."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import NamedTuple, cast

from sweeper.common.json_values import is_number
from sweeper.fields.nodes import Node, Problems

MAX_VALUES = 10_000
"""The largest number of values of a range."""

_CONTEXT = Context(prec=30, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999, traps=[])
_MAX_BOUND = 10**15
_LINEAR_DIGITS, _LOG_DIGITS = 6, 4


class _Mistake(Exception):
    """The error for a range with wrong numbers. Its text says which numbers are allowed."""


def is_range(node: Node) -> bool:
    """Return whether a node is a range, such as `{linspace: [0, 1, 5]}`."""
    entries = node.entries or {}
    return len(entries) == 1 and next(iter(entries)) in _RANGES


def values_of_range(key: str, node: Node, problems: Problems) -> Node | None:
    """Return the list of values of a range. If the range's numbers are wrong, report that and
    return None."""
    ((name, (_, item)),) = (node.entries or {}).items()
    given = [inner.value for inner in item.items or ()]
    form = _RANGES[name]
    try:
        if len(given) not in form.counts or not all(map(_is_usable, given)):
            raise _Mistake(f"{form.takes}, each at most {_MAX_BOUND:.0e}")
        values = form.values([Decimal(repr(number)) for number in given])
    except _Mistake as mistake:
        problems.add(item.place, f"axis {key[:60]!r}: {name} takes {mistake}")
        return None
    whole = all(isinstance(number, int) for number in given) and all(v == int(v) for v in values)
    numbers = [int(value) if whole else float(value) for value in values]
    return Node([Node(number, node.place) for number in numbers], node.place)


def _is_usable(number: object) -> bool:
    return is_number(number) and math.isfinite(number) and abs(number) <= _MAX_BOUND


def _linear(given: list[Decimal]) -> list[Decimal]:
    start, end, count = given
    last = _steps(start, end, count)
    width = _CONTEXT.subtract(end, start)
    unit = Decimal((0, (1,), width.adjusted() - _LINEAR_DIGITS + 1))
    between = (
        _CONTEXT.divide(_CONTEXT.multiply(width, Decimal(n)), last) for n in range(int(last))
    )
    exact = (_CONTEXT.add(start, step) for step in between)
    return [*(value.quantize(unit, context=_CONTEXT) for value in exact), end]


def _logarithmic(given: list[Decimal]) -> list[Decimal]:
    start, end, count = given
    last = _steps(start, end, count)
    if start <= 0 or end <= 0:
        raise _Mistake("a start and an end above 0")
    low = _CONTEXT.ln(start)
    width = _CONTEXT.subtract(_CONTEXT.ln(end), low)
    values = [start]
    for number in range(1, int(last)):
        exact = _CONTEXT.exp(_CONTEXT.fma(width, _CONTEXT.divide(Decimal(number), last), low))
        unit = Decimal((0, (1,), exact.adjusted() - _LOG_DIGITS + 1))
        values.append(exact.quantize(unit, context=_CONTEXT))
    return [*values, end]


def _steps(start: Decimal, end: Decimal, count: Decimal) -> Decimal:
    """Return the number of steps between `count` values. Raises `_Mistake` for a wrong `count`, or
    if `start` equals `end`."""
    if count != int(count) or not 2 <= count <= MAX_VALUES:
        raise _Mistake(f"a count of values as its third number, 2 to {MAX_VALUES}")
    if start == end:
        raise _Mistake("a start and an end that differ")
    return count - 1


def _stepped(given: list[Decimal]) -> list[Decimal]:
    start, end = given[0], given[1]
    step = given[2] if len(given) > 2 else Decimal(1)
    if step == 0:
        raise _Mistake("a step that is not 0")
    distance = _CONTEXT.divide(_CONTEXT.subtract(end, start), step)
    if distance <= 0:
        raise _Mistake(
            "a step that leads from the start towards the end (the end itself is not a value)"
        )
    if distance > MAX_VALUES:
        raise _Mistake(f"at most {MAX_VALUES} values")
    return [_CONTEXT.fma(step, Decimal(number), start) for number in range(math.ceil(distance))]


class _Form(NamedTuple):
    """A form of ranges: how many numbers it may have (`counts`), a description of these numbers
    (`takes`), and a function that computes the range's values."""

    counts: tuple[int, ...]
    takes: str
    values: Callable[[list[Decimal]], list[Decimal]]


_RANGES = {
    "linspace": _Form((3,), "[start, end, count]", _linear),
    "logspace": _Form((3,), "[start, end, count]", _logarithmic),
    "range": _Form((2, 3), "[start, end, step], where the step may be missing", _stepped),
}
RANGES = tuple(_RANGES)

_NUMBERS: dict[str, object] = {"type": "array", "items": {"type": "number"}}
SCHEMA: dict[str, object] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        "linspace": {"description": "[start, end, count] in equal steps, such as [0, 1, 5]."}
        | cast("dict[str, object]", _NUMBERS | {"minItems": 3, "maxItems": 3}),
        "logspace": {
            "description": "[start, end, count] on a logarithmic scale, such as [1e-5, 1e-2, 4]."
        }
        | cast(
            "dict[str, object]",
            _NUMBERS
            | {"items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 3, "maxItems": 3},
        ),
        "range": {"description": "[start, end, step], without the end itself, such as [1, 9, 2]."}
        | cast("dict[str, object]", _NUMBERS | {"minItems": 2, "maxItems": 3}),
    },
}
"""JSON Schema of an axis that is a range."""
