"""The section `random`: axes whose values are drawn, all of them anew for each sample.

What an axis draws in sample `i` depends on the seed, the axis' key, `i` and the axis' own range,
and on nothing else: more samples, or another axis, leave it as it is. It is the same on every
machine and in every version of Python:

    h = SHA-256 of [seed,"key",i] as JSON without spaces, as an integer of 256 bits;  u = h / 2**256

    uniform: [a, b]        a + u (b - a)
    log_uniform: [a, b]    exp(ln a + u (ln b - ln a))
    integers: [a, b]       a + floor(u (b - a + 1)): both ends are drawn
    log_integers: [a, b]   exp(ln(a - 1/2) + u (ln(b + 1/2) - ln(a - 1/2))), rounded
    choice: [v, w, ...]    the value number floor(u n), from 0

in decimal arithmetic of 30 digits, whose logarithms are correctly rounded. A drawn float is rounded
so that a name stays readable: to 4 digits of the width b - a, and in `log_uniform` to 4 digits of
its own where those are finer; never to beyond an end.
"""

import hashlib
import json
import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, NamedTuple

from sweeper.grid.blocks import Block, Setting, fields, read_axis
from sweeper.grid.naming import canonical
from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.grid.options import Section, hint

__all__ = ["MAX_DRAWN", "MAX_SAMPLES", "Drawn", "Random", "draw", "read_random"]

MAX_SAMPLES = 20_000
MAX_DRAWN = 50_000
"""Samples times axes, of all sections together."""

_DIGITS = 4
_CONTEXT = Context(prec=30, rounding=ROUND_HALF_EVEN, Emin=-9999, Emax=9999, traps=[])
_KINDS = ("uniform", "log_uniform", "integers", "log_integers", "choice")
_MAX_BOUND = 10**15


class Drawn(NamedTuple):
    """An axis of `random`: how it is drawn, and between what (`choice`: from what)."""

    kind: str
    low: float
    high: float
    choices: tuple[Setting, ...]
    place: Place


class Random(NamedTuple):
    """The section `random`."""

    samples: int
    seed: int
    axes: dict[str, Drawn]
    place: Place


def read_random(node: Node, problems: Problems, name: str = "random") -> Random | None:
    """Read the section; None when it is wrong as a whole, or draws nothing."""
    section = Section(node, name, ("samples", "seed", "axes"), problems)
    if node.entries is None:
        return None
    samples, seed, axes = section.node("samples"), section.node("seed"), section.node("axes")
    if samples is None:
        problems.add(node.place, f"{name} needs samples: how many")
    elif type(samples.value) is not int:
        section.wrong(samples, "samples", "an integer")
    elif not 1 <= samples.value <= MAX_SAMPLES:
        problems.add(
            samples.place, f"{name}.samples is 1 to {MAX_SAMPLES}, not {str(samples.value)[:40]}"
        )
    if seed is not None and type(seed.value) is not int:
        section.wrong(seed, "seed", "an integer")
    found: dict[str, Drawn] = {}
    if axes is None:
        problems.add(node.place, f"{name} needs axes")
    else:
        if axes.entries == {}:
            problems.add(axes.place, f"{name}.axes is empty")
        for key, place, item in fields(axes, f"{name}.axes", problems):
            drawn = _read_drawn(key, place, item, problems)
            if drawn is not None:
                found[key] = drawn
    count = samples.value if samples is not None and type(samples.value) is int else 0
    if not 1 <= count <= MAX_SAMPLES or not found:
        return None
    return Random(count, seed.value if seed and type(seed.value) is int else 0, found, node.place)


def _read_drawn(key: str, place: Place, node: Node, problems: Problems) -> Drawn | None:
    """One axis: `{uniform: [0, 1]}` and the like."""
    entries = node.entries
    if entries is None or len(entries) != 1:
        what = "no one way of drawing" if entries is not None else kind(node)
        problems.add(
            node.place if entries is None else place,
            f"axis {key[:60]!r} is {what}; it takes one of {', '.join(_KINDS)}, as in"
            f" {{uniform: [0, 1]}}",
        )
        return None
    ((name, (name_place, item)),) = entries.items()
    if name not in _KINDS:
        problems.add(
            name_place,
            f"axis {key[:60]!r}: {name[:60]!r} is not one of {', '.join(_KINDS)}"
            f"{hint(name, _KINDS, problems)}",
        )
        return None
    if name == "choice":
        choices = read_axis(key, place, item, problems)
        return Drawn(name, 0, 0, choices, node.place) if choices else None
    bounds = [inner.value for inner in item.items or ()]
    whole = name.endswith("integers")
    types = (int,) if whole else (int, float)
    message: str | None = None
    if len(bounds) != 2 or any(type(bound) not in types for bound in bounds):
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


def draw(random: Random, notes: list[str]) -> Block:
    """The samples as axes that move together. Samples that are alike count once."""
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
    """What one axis draws: settings, equal ones one object, and their canonical texts."""
    draw_one = _drawing(drawn)
    settings: list[Setting] = []
    texts: list[str] = []
    known: dict[Any, tuple[Setting, str]] = {}
    places = {key: drawn.place}
    for number in range(random.samples):
        text = json.dumps([random.seed, key, number], separators=(",", ":"))
        value = draw_one(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))
        if value not in known:
            setting = Setting(value, {key: value}, places, drawn.place)
            if drawn.choices:
                setting = drawn.choices[int(value)]
            known[value] = setting, canonical(setting.value)
        settings.append(known[value][0])
        texts.append(known[value][1])
    return settings, texts


def _drawing(drawn: Drawn) -> Callable[[int], Any]:
    """256 bits -> the value that they draw; for `choice` its number."""
    if drawn.kind in ("choice", "integers"):
        low = 0 if drawn.choices else int(drawn.low)
        count = len(drawn.choices) or int(drawn.high) - low + 1
        return lambda bits: low + (bits * count >> 256)
    context = _CONTEXT
    low, high = Decimal(repr(drawn.low)), Decimal(repr(drawn.high))
    one = Decimal(2**256)
    half = Decimal("0.5")
    whole, log = drawn.kind.endswith("integers"), drawn.kind.startswith("log")
    start = context.subtract(low, half) if whole else low
    end = context.add(high, half) if whole else high
    if log:
        start, end = context.ln(start), context.ln(end)
    width = context.subtract(end, start)
    coarse = context.subtract(high, low).adjusted() - _DIGITS + 1

    def value(bits: int) -> Any:
        u = context.divide(Decimal(bits), one)
        exact = context.fma(u, width, start)
        if log:
            exact = context.exp(exact)
        if whole:
            return min(max(int(exact.to_integral_value(ROUND_HALF_EVEN)), int(low)), int(high))
        last = min(coarse, exact.adjusted() - _DIGITS + 1) if log else coarse
        rounded = exact.quantize(Decimal((0, (1,), last)), ROUND_HALF_EVEN, context)
        return float(min(max(rounded, low), high))

    return value
