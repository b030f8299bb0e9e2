"""Text that anybody may have written, made harmless for a terminal: here and nowhere else.

A run's name, a metric's key, a line of a log, a reason in a store come from whoever wrote them. To
a terminal some characters in them are orders: set the title, fill the clipboard, hide what was said
before, turn a text around. `guarded` puts writers before standard output and standard error through
which no order passes, whoever prints; what prints a text of others within a line of ours
calls `sanitize` besides, so that it stays one line. Orders of ours (colours, a screen that is drawn
again) go to the stream below, by `raw`.

Standard library only, and little of it: a worker loads this for every job.
"""

import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TextIO, cast

__all__ = ["Writer", "guarded", "raw", "sanitize", "sanitize_json", "sanitize_lines"]

# The patterns are texts: `re` compiles one when it is first used, and most programs never do.
# What a terminal takes for an order, within a line: CSI, OSC and the like to their end, then
# shorter ones. Those of a colour or a title say nothing to people and are left out.
_ORDER = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
# Other controls, those of C1 too; what changes the direction of writing, or cannot be seen; what
# ends lines elsewhere; halves of characters, which no terminal's encoding has. Joiners stay:
# languages and emoji are written with them.
_UNSEEN = (
    "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROL = f"[\x00-\x08\x0a-\x1f{_UNSEEN}]"
_CONTROL_IN_LINES = f"[\x00-\x08\x0b-\x1f{_UNSEEN}]"


def sanitize(text: str) -> str:
    """A text in one line, without what it tells a terminal to do: colours and other orders are left
    out, what else is no character of a text is written out (`\\n`, `\\x9b`, `\\u202e`)."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, _written_out, re.sub(_ORDER, "", text))


def sanitize_lines(text: str) -> str:
    """The same for a text of several lines, which it keeps."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return re.sub(_CONTROL_IN_LINES, _written_out, re.sub(_ORDER, "", text))


def sanitize_json(text: str) -> str:
    """The same for JSON as `json.dumps` has it, in which but one control is escaped already."""
    return text.replace("\x7f", "\\u007f")


def _written_out(found: "re.Match[str]") -> str:
    return repr(found.group())[1:-1]


class Writer:
    """Before a stream: writes lines of text, and no orders. Everything else is the stream's own."""

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def write(self, text: str) -> int:
        """Write what is harmless of a text; what the stream's encoding has not is written out."""
        shown = sanitize_lines(text)
        if not shown.isascii():
            encoding = self.below.encoding or "utf-8"
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.below.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)


@contextmanager
def guarded() -> Generator[None]:
    """While the block lasts nothing reaches the terminal but through a `Writer`."""
    before = sys.stdout, sys.stderr
    # A stream may be None: then nobody reads it.
    sys.stdout, sys.stderr = (
        cast(TextIO, Writer(stream)) if stream is not None else stream  # pyright: ignore[reportUnnecessaryComparison]
        for stream in map(raw, before)
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """The stream below its `Writer`: for orders of ours, among texts that are harmless already."""
    return stream.below if isinstance(stream, Writer) else stream
