"""Styled text and numbers for a screen of characters. A line is a list of (text, style). Colours
never carry information that the text lacks."""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from sweeper.common.sanitize import sanitize

_GOOD = Style(color="green")
_INFO = Style(color="cyan")
_WARN = Style(color="yellow")
_BAD = Style(color="red", bold=True)
_DIM = Style(dim=True)

STATES = {
    "running": _INFO,
    "waiting": _WARN,
    "stalled": _BAD,
    "silent": _BAD,
    "failed": _BAD,
    "lost": _BAD,
    "preempted": _WARN,
    "succeeded": _GOOD,
    "submitted": _INFO,
    "planned": _DIM,
    "cancelled": _DIM,
}
"""The states that the view shows with their styles, in the order of display."""

_STYLES = STATES | {
    "": Style(),
    "bold": Style(bold=True),
    "dim": _DIM,
    "good": _GOOD,
    "info": _INFO,
    "warn": _WARN,
    "bad": _BAD,
    "head": Style(bold=True, dim=True),
    "sorted": Style(underline=True),
    "cursor": Style(reverse=True),
}


@lru_cache(maxsize=256)
def style_of(words: str) -> Style:
    """Return the combined style for style names such as `bold running`."""
    return Style.combine(_STYLES[word] for word in words.split()) if words else _STYLES[""]


Span = tuple[str, str]
Line = list[Span]


def as_strip(line: Line, width: int) -> Strip:
    """Convert a line for Textual, and sanitize its text. Text that looks like Textual's markup,
    for example in the name of a run, is shown as it is."""
    strip = Strip([Segment(sanitize(text), style_of(words)) for text, words in line])
    return strip.adjust_cell_length(width, style_of(""))


def as_text(lines: Iterable[Line]) -> Text:
    """Join lines to one styled text, which Textual can wrap."""
    text = Text()
    for number, line in enumerate(lines):
        text.append("\n" * bool(number))
        for part, words in line:
            text.append(sanitize(part), style_of(words))
    return text


def joined(line: Line) -> str:
    """Return the text of a line without styles."""
    return "".join(text for text, _ in line)


def trimmed(line: Line, width: int, glyphs: "Glyphs") -> Line:
    """Cut a line to the width of the screen."""
    result: Line = []
    for text, style in line:
        length = len(text) if text.isascii() else cell_len(text)
        if length > width:
            return [*result, (fit(text, width, cut=glyphs.cut), style)]
        result.append((text, style))
        width -= length
    return result


class Glyphs(NamedTuple):
    """The characters to draw with. `levels` go from low to high. `other` draws the second curve of
    a plot. `dots`: plots use braille characters (eight points per character)."""

    levels: str
    full: str
    empty: str
    opened: str
    closed: str
    line: str
    cut: str
    other: str
    dots: bool


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "█", "·", "▾", "▸", "─", "…", "x", True)
ASCII = Glyphs("_.-=+*#@", "#", ".", "-", "+", "-", "~", "x", False)


def fit(text: str, width: int, *, right: bool = False, cut: str = "…") -> str:
    """Pad or cut a text to exactly `width` columns. A shortened text ends with `cut`."""
    if width <= 0:
        return ""
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + cut
    blank = " " * (width - length)
    return blank + text if right else text + blank


def fit_middle(text: str, width: int, *, cut: str = "…") -> str:
    """Pad or cut a text to `width` columns. Cut the middle, because names often differ at the
    end."""
    length = cell_len(text)
    if length <= width or width < 8:
        return fit(text, width, cut=cut)
    back = (width - 1) // 2
    end = text
    while cell_len(end) > back:
        end = end[1:]
    return set_cell_size(text, width - 1 - cell_len(end)) + cut + end


def value(number: float | None) -> str:
    """Format a number with four significant digits. Whole numbers below 100,000 keep all digits,
    and None becomes `-`."""
    if number is None:
        return "-"
    if math.isfinite(number) and number == int(number) and abs(number) < 1e5:
        return str(int(number))
    return f"{number:.4g}"


def short(seconds: float | None) -> str:
    """Format a remaining time: `45s`, `12m`, `2h05m`, `3d`, or `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60 // 5 * 5:02}m"
    return f"{minutes // 1440}d"


def age(seconds: float | None) -> str:
    """Format an age. The precision is low, so that an idle screen does not change every second."""
    if seconds is None:
        return "-"
    if seconds < 15:
        return "now"
    if seconds < 60:
        return f"{int(seconds) // 15 * 15}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m"
    return f"{int(seconds) // 3600}h" if seconds < 48 * 3600 else f"{int(seconds) // 86400}d"
