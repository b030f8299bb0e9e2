"""Removal of terminal control sequences from untrusted text, such as text from a store.
`guarded` wraps the standard streams. `sanitize` also puts the text on one line. Workers load
this module, so it imports little."""

import os
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TextIO, cast

# The patterns are strings: `re` compiles one at its first use, and most programs never use any.
# The first matches terminal commands within a line: CSI, OSC and the like to their end, then
# shorter commands. They are removed, since a colour or a title means nothing to a reader.
_ORDER = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
# Other control characters, including C1; characters that change the writing direction or are
# invisible; line ends of other systems; surrogates, which no terminal encoding has. Joiners stay,
# since languages and emoji need them.
_UNSEEN = (
    "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROL = f"[\x00-\x08\x0a-\x1f{_UNSEEN}]"
_CONTROL_IN_LINES = f"[\x00-\x08\x0b-\x1f{_UNSEEN}]"


def sanitize(text: str) -> str:
    r"""Return the text as one harmless line. Colours and other terminal commands are removed. Other
    control characters are written as escapes (`\n`, `\x9b`, `\u202e`)."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, _written_out, re.sub(_ORDER, "", text))


def sanitize_lines(text: str) -> str:
    """Remove or escape control characters as `sanitize` does, but keep line breaks."""
    if text.replace("\n", "").isprintable():
        return text
    return re.sub(_CONTROL_IN_LINES, _written_out, re.sub(_ORDER, "", text))


def sanitize_json(text: str) -> str:
    """Escape U+007F, the only control character that `json.dumps` does not escape."""
    return text.replace("\x7f", "\\u007f")


def _written_out(match: "re.Match[str]") -> str:
    return repr(match.group())[1:-1]


class Writer:
    """A wrapper of a stream that removes terminal commands from written text."""

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def write(self, text: str) -> int:
        """Write the text without terminal commands. Write characters that the encoding lacks as
        escapes."""
        shown = sanitize_lines(text)
        if not shown.isascii():
            encoding = self.below.encoding or "utf-8"
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.below.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.below, name)


@contextmanager
def guarded() -> Generator[None]:
    """Replace standard output and standard error by a `Writer` during the block. If a standard
    stream is closed, open /dev/null in its place first."""
    _open_missing_streams()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Writer(raw(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_missing_streams() -> None:
    """Open /dev/null in place of closed standard streams. Otherwise the next opened file would get
    the descriptor of a standard stream, and other programs would write their output to the file."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `os.open` takes the lowest free descriptor, which is the stream's.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The file stays open as long as the process lives.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def raw(stream: TextIO) -> TextIO:
    """Return the stream inside a `Writer`, for code that writes terminal commands. This code must
    sanitize all other text."""
    return stream.below if isinstance(stream, Writer) else stream
