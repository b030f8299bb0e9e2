"""Formats numbers, times and lists for readers. Pure: the same input gives the same text."""

import json
import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from sweeper.common.sanitize import sanitize
from sweeper.fields.nodes import is_plain

NONE = "\u2013"
"""An en dash, in place of missing values."""

NOT_SET = "not set"
"""The text for a key that a configuration lacks."""

MINUS = "\u2212"
"""A minus sign as wide as a plus sign."""


def number(value: float | None, digits: int = 4) -> str:
    """Return a measured value with `digits` significant digits; an en dash for None."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\u221e" if value > 0 else f"{MINUS}\u221e"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -5 or exponent > 7:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return _minus(f"{mantissa}e{int(power)}")
    return _minus(f"{value:.{max(0, digits - 1 - exponent)}f}")


def decimals(*values: float | None) -> int | None:
    """Return how many decimals to show so that the values can be distinguished: enough for two
    significant digits of their range (the largest minus the smallest value). But the largest value
    gets three to five significant digits, and no value more than six decimals. Return None if the
    values are too small or too large for decimals."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    spread = max(finite, default=0.0) - min(finite, default=0.0)
    if largest < 1e-4 or largest >= 1e7:
        return None
    top = math.floor(math.log10(largest))
    low = math.floor(math.log10(spread)) if spread > 0 else top
    return min(max(1 - low, 2 - top, 0), max(0, 4 - top), 6)


def deserved(mean: float | None, low: float | None, high: float | None) -> int | None:
    """Return how many decimals the interval of a value justifies: those that show half of the
    interval's width with two significant digits, but at most six. Return None if there is no
    interval, or if the values are too small or too large for decimals."""
    if mean is None or low is None or high is None or not math.isfinite(high - low) or high <= low:
        return None
    if not 1e-4 <= max(map(abs, (mean, low, high))) < 1e7:
        return None
    return min(max(1 - math.floor(math.log10((high - low) / 2)), 0), 6)


def within(mean: float | None, low: float | None, high: float | None) -> list[str]:
    """Return the texts of a value and of the two bounds of its interval, with the decimals that the
    interval justifies (see `deserved`). If `deserved` returns None, use the decimals of
    `together`."""
    places = deserved(mean, low, high)
    if places is None or mean is None:
        return together(mean, low, high)
    return [
        _minus(f"{round(mean, places) + 0.0:.{places}f}"),
        fixed(low, places),
        fixed(high, places),
    ]


def fixed(value: float | None, places: int | None) -> str:
    """Return a value with `places` decimals. If `places` is None, or if the value would be rounded
    to 0, use significant digits."""
    if places is None or value is None or not math.isfinite(value):
        return number(value)
    text = f"{value + 0.0:.{places}f}"  # adding 0 turns -0.0 into 0.0
    return number(value, 2) if value and not float(text) else _minus(text)


def together(*values: float | None) -> list[str]:
    """Return the texts of several values, all with the same number of decimals."""
    places = decimals(*values)
    return [fixed(value, places) for value in values]


def difference(value: float) -> str:
    """Return a difference as text, with its sign."""
    return ("+" if value > 0 else MINUS if value < 0 else "\u00b1") + number(abs(value), 3)


def p_value(value: float | None) -> str:
    """Format a p value: `p = 0.032`, `p < 0.001`; an en dash for None."""
    if value is None:
        return NONE
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage: `42 %`; an en dash for None."""
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def ratio(value: float) -> str:
    """Return a ratio as text: the number after a multiplication sign."""
    return "\u00d7" + number(value, 3)


def _minus(text: str) -> str:
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def setting(value: Any) -> str:
    """Return a value of a configuration as it is written in a grid. Different values have different
    texts: a string that looks like a value of another type is in quotes."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str) and is_plain(value) and value not in (NOT_SET, NONE):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    # Browsers and Markdown show several spaces as one.
    return re.sub(r"(?<= ) ", r"\\u0020", sanitize(text))


def _float(value: float) -> str:
    text = repr(value)
    if "e" in text:
        mantissa, _, power = text.partition("e")
        return f"{mantissa}e{int(power)}"
    if value and abs(value) < 0.01:
        mantissa, _, power = f"{value:.12e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return text


BRIEF = 8
"""A number of at most this many characters is shown in full."""


def brief(value: Any) -> str:
    """Return a value of a configuration as a short text. A float with more than `BRIEF` characters
    is rounded to four significant digits."""
    text = setting(value)
    if not isinstance(value, float) or not math.isfinite(value) or len(text) <= BRIEF:
        return text
    return setting(float(f"{value:.4g}"))


def place(value: Any) -> str:
    """Return the text of a value, with a float rounded to three significant digits."""
    if not isinstance(value, float) or not math.isfinite(value):
        return setting(value)
    short = float(f"{value:.3g}")
    return setting(int(short) if short.is_integer() and abs(short) < 1e15 else short)


def shortened(texts: Sequence[str], width: int = 24) -> list[str]:
    """Return the texts, each shortened to `width` characters. Texts with different beginnings are
    cut at the end. Texts with the same beginning are cut in the middle. They are not cut if two
    would become equal."""
    heads: dict[str, set[str]] = {}
    for text in texts:
        heads.setdefault(text[: width - 1], set()).add(text)
    return [_cut(text, heads[text[: width - 1]], width) for text in texts]


def _cut(text: str, alike: Collection[str], width: int) -> str:
    if len(text) <= width and len(alike) == 1:
        return text
    if len(alike) == 1:
        return f"{text[: width - 1]}\u2026"
    pairs = zip(min(alike), max(alike), strict=False)
    same = next((at for at, (left, right) in enumerate(pairs) if left != right), len(min(alike)))
    cuts: dict[str, str] = {}
    for whole in alike:
        cut = f"{whole[: width // 3]}\u2026{whole[max(same - 4, 0) :]}"
        cuts[whole] = cut if len(cut) <= width else f"{cut[: width - 1]}\u2026"
    return cuts[text] if len(set(cuts.values())) == len(cuts) else text


def duration(seconds: float | None) -> str:
    """Format a duration: `48 s`, `3 min 20 s`, `2 h 05 min`; an en dash for None."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def amount(value: float | None) -> str:
    """Format a large count: `950`, `12.3 k`, `4.56 M`; an en dash for None."""
    if value is None or not math.isfinite(value):
        return NONE
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def capitalised(text: str) -> str:
    """Return the text with a capital first letter, and the rest unchanged."""
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str], limit: int = 4) -> str:
    """Return names as text: `a`, `a and b`, `a, b and c`, `a, b, c, d and 3 more`."""
    if len(items) > limit + 1:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
