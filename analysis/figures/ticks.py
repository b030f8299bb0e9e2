"""Chooses the tick marks of an axis and their labels. Plotly's own tick marks have the label 2 at
both 0.2 and 20 on a logarithmic axis. Pure."""

import itertools
import math

_DIGITS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), (1, 2, 3, 4, 5, 6, 7, 8, 9))
_FEWEST, _MOST = 5, 9
_LINEAR = 7


def log_ticks(low: float, high: float) -> list[float]:
    """Return the tick marks of a logarithmic axis between two positive numbers: powers of ten,
    and round values between them if there are few powers."""
    if not (0 < low <= high < math.inf):
        return []
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, -(-(top - bottom) // _MOST))
    powers = range(-(-bottom // stride) * stride, top + 1, stride)
    ticks: list[float] = []
    for digits in _DIGITS if stride == 1 else _DIGITS[:1]:
        both = itertools.product(powers, digits)
        ticks = [value for power, d in both if low <= (value := float(f"{d}e{power}")) <= high]
        if len(ticks) >= _FEWEST:
            return ticks
    return ticks if stride > 1 or len(ticks) > 2 else linear_ticks(low, high)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return the tick marks of a linear axis between two values: a few multiples of 1, 2 or 5
    times a power of ten."""
    span = high - low
    if not (0 < span / _LINEAR < math.inf):
        return [low] if math.isfinite(low) else []
    power = math.floor(math.log10(span / _LINEAR))
    steps = (float(f"{digit}e{power + more}") for more in (0, 1) for digit in (1, 2, 5))
    step = next(step for step in steps if step > 0 and span / step <= _LINEAR)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return the label of a tick mark: `0.02`, `500`, `1e-5`, `2e6`."""
    if value == 0:
        return "0"
    if 1e-4 < abs(value) < 1e5 or not math.isfinite(value):
        return f"{value:.10g}"
    mantissa, _, power = f"{value:.6e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
