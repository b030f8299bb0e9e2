"""The styles of the view: one for each state of a run, and for each other kind of text. Pure.

Colour is never the only sign: everything can be read without it.
"""

from functools import lru_cache

from rich.style import Style

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
"""The states that the view shows, in the order in which they are counted."""

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
    """Return the combined style of words such as `bold running`."""
    return Style.combine(_STYLES[word] for word in words.split()) if words else _STYLES[""]
