"""The section `random`: axes whose values are drawn anew for each sample. A value depends only on
the seed, the key, the sample's number and the range: docs/grid.md has the formulas."""

import hashlib
import json
import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import NamedTuple

from sweeper.common.json_values import is_number
from sweeper.fields.kinds import Integer, Shape, hint
from sweeper.fields.nodes import Node, Place, Problems, kind
from sweeper.fields.sections import Field, Section, or_null
from sweeper.grid.blocks import AXIS, DRAWN, NONEMPTY, Block, Setting, fields, read_axis
from sweeper.grid.naming import canonical

MAX_SAMPLES = 20_000
MAX_DRAWN = 50_000
"""The limit on samples times axes, over all sections together."""

_DIGITS = 4
_CONTEXT = Context(prec=30, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999, traps=[])
_MAX_BOUND = 10**15


class Drawn(NamedTuple):
    """An axis of `random`. `choice` draws from `choices`, other kinds between `low` and `high`."""

    kind: str
    low: float
    high: float
    choices: tuple[Setting, ...]
    place: Place


class Random(NamedTuple):
    samples: int
    seed: int
    axes: dict[str, Drawn]
    place: Place


def read_random(node: Node, where: str, problems: Problems) -> Random | None:
    """Read the section `random`. Return None if `samples` or `axes` is missing or wrong."""
    reading = SECTION.read(node, where, problems)
    samples, axes = reading.value("samples"), reading.value("axes")
    return Random(samples, reading.value("seed"), axes, node.place) if samples and axes else None


def _read_drawn_axes(node: Node, where: str, problems: Problems) -> dict[str, Drawn]:
    if node.entries == {}:
        problems.add(node.place, f"{where} is empty")
    axes = {
        key: _read_drawn(key, place, item, problems)
        for key, place, item in fields(node, where, problems)
    }
    return {key: drawn for key, drawn in axes.items() if drawn is not None}


def _read_drawn(key: str, place: Place, node: Node, problems: Problems) -> Drawn | None:
    """Read one axis, such as `{uniform: [0, 1]}`. Return None after a mistake."""
    entries = node.entries
    if entries is None or len(entries) != 1:
        fault = "a mapping with several keys or none" if entries is not None else kind(node)
        problems.add(
            node.place if entries is None else place,
            f"axis {key[:60]!r} is {fault}; it takes one of {', '.join(DRAWN)}, as in "
            f"{{uniform: [0, 1]}}",
        )
        return None
    ((name, (name_place, item)),) = entries.items()
    if name not in DRAWN:
        problems.add(
            name_place,
            f"axis {key[:60]!r}: {name[:60]!r} is not one of {', '.join(DRAWN)}"
            f"{hint(name, DRAWN, problems)}",
        )
        return None
    if name == "choice":
        choices = read_axis(key, place, item, problems)
        return Drawn(name, 0, 0, choices, node.place) if choices else None
    given = [inner.value for inner in item.items or ()]
    whole = name.endswith("integers")
    bounds = [n for n in given if is_number(n) and not (whole and isinstance(n, float))]
    message: str | None = None
    if len(bounds) != 2 or len(given) != 2:
        message = f"two {'integers' if whole else 'numbers'}, the lower first"
    elif not all(math.isfinite(bound) and abs(bound) <= _MAX_BOUND for bound in bounds):
        message = f"numbers of at most {_MAX_BOUND:.0e}"
    elif not bounds[0] < bounds[1]:
        message = f"the lower number first, not [{bounds[0]}, {bounds[1]}]"
    elif name.startswith("log") and bounds[0] <= 0:
        message = f"numbers above 0, not {bounds[0]}"
    if message is not None:
        problems.add(item.place, f"axis {key[:60]!r}: {name} takes {message}")
        return None
    return Drawn(name, bounds[0], bounds[1], (), node.place)


def _between(type_: str, above: float | None = None) -> dict[str, object]:
    item: dict[str, object] = {"type": type_}
    if above is not None:
        item["exclusiveMinimum"] = above
    return {"type": "array", "items": item, "minItems": 2, "maxItems": 2}


_DRAWN: dict[str, object] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        "uniform": {"description": "Uniformly between two numbers."} | _between("number"),
        "log_uniform": {
            "description": "Uniformly on a logarithmic scale, between two numbers above 0."
        }
        | _between("number", 0),
        "integers": {"description": "An integer between two integers, both included."}
        | _between("integer"),
        "log_integers": {"description": "The same on a logarithmic scale, both above 0."}
        | _between("integer", 0),
        "choice": {"description": "One of the values."} | AXIS,
    },
}
_AXES = {**NONEMPTY, "additionalProperties": or_null(_DRAWN)}
SECTION = Section(
    Field("samples", Integer(1, MAX_SAMPLES), "How many cells to draw.", examples=(20,)),
    Field(
        "seed",
        Integer(None, None),
        "The seed of the drawing. The same seed draws the same values on every machine.",
        0,
    ),
    Field("axes", Shape(_AXES, _read_drawn_axes), "Each axis and how it is drawn."),
    needs={"samples": "`samples`, the number of cells to draw", "axes": "`axes`"},
)
WHOLE: dict[str, object] = {
    "type": ["object", "null"],
    "required": ["samples", "axes"],
    "properties": {
        "samples": {"type": "integer"},
        "axes": {"type": "object", "additionalProperties": {"type": "object"}},
    },
}
"""JSON Schema of the section in a grid that extends no other grid."""
RANDOM = Field("random", Shape(SECTION.schema, read_random), "Axes whose values are drawn.")


def draw(random: Random, notes: list[str]) -> Block:
    """Draw the samples, and return them as axes that vary together. Repeated samples are left out,
    and `notes` gets a sentence about them."""
    columns = {key: _column(random, key, drawn) for key, drawn in random.axes.items()}
    rows: dict[tuple[str, ...], int] = {}
    for number in range(random.samples):
        rows.setdefault(tuple(texts[number] for _, texts in columns.values()), number)
    if len(rows) < random.samples:
        repeats = random.samples - len(rows)
        notes.append(
            f"{random.place}: {repeats} of the {random.samples} samples repeat"
            f" {'another' if repeats == 1 else 'others'} and count once"
        )
    return Block(
        {
            key: tuple(settings[number] for number in rows.values())
            for key, (settings, _) in columns.items()
        }
    )


def _column(random: Random, key: str, drawn: Drawn) -> tuple[list[Setting], list[str]]:
    """Draw the values of one axis. Return their settings and canonical texts. Equal values share
    one setting."""
    draw_one = _drawing(drawn)
    settings: list[Setting] = []
    texts: list[str] = []
    cache: dict[object, tuple[Setting, str]] = {}
    places = {key: drawn.place}
    for number in range(random.samples):
        text = json.dumps([random.seed, key, number], separators=(",", ":"))
        value = draw_one(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))
        if value not in cache:
            setting = Setting(value, {key: value}, places, drawn.place)
            if drawn.choices:
                setting = drawn.choices[int(value)]
            cache[value] = setting, canonical(setting.value)
        settings.append(cache[value][0])
        texts.append(cache[value][1])
    return settings, texts


def _drawing(drawn: Drawn) -> Callable[[int], float]:
    """Return a function that maps 256 random bits to the drawn value, or for `choice` to the index
    of a value."""
    if drawn.kind in ("choice", "integers"):
        low = 0 if drawn.choices else int(drawn.low)
        count = len(drawn.choices) or int(drawn.high) - low + 1
        return lambda bits: low + (bits * count >> 256)
    context = _CONTEXT
    low, high = Decimal(repr(drawn.low)), Decimal(repr(drawn.high))
    total = Decimal(2**256)
    half = Decimal("0.5")
    whole, log = drawn.kind.endswith("integers"), drawn.kind.startswith("log")
    start = context.subtract(low, half) if whole else low
    end = context.add(high, half) if whole else high
    if log:
        start, end = context.ln(start), context.ln(end)
    width = context.subtract(end, start)
    coarse = context.subtract(high, low).adjusted() - _DIGITS + 1

    def value(bits: int) -> float:
        u = context.divide(Decimal(bits), total)
        exact = context.fma(u, width, start)
        if log:
            exact = context.exp(exact)
        if whole:
            return min(max(int(exact.to_integral_value(ROUND_HALF_EVEN)), int(low)), int(high))
        last = min(coarse, exact.adjusted() - _DIGITS + 1) if log else coarse
        rounded = exact.quantize(Decimal((0, (1,), last)), ROUND_HALF_EVEN, context)
        return float(min(max(rounded, low), high))

    return value
