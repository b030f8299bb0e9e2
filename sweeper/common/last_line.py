"""Finds the reason for a program's failure in its last output. Does no I/O."""

import re

from sweeper.common.sanitize import sanitize

_SHOWN = 200
_END = 20
_TRACEBACK = "Traceback (most recent call last):"
_LABEL = re.compile(r"error: +(?=\S)")
"""Matches the prefix that is removed from messages. The text around a message already says that
the run failed."""
_EXCEPTION = r"[A-Za-z_][\w.]*(?::.*)?\Z"
"""Matches the last line of a traceback: the exception's class, and its message if there is one."""


def cause(data: bytes) -> str:
    """Find the reason for a failure in the end of a log. Return the exception of the last
    traceback, else the last line that starts with `error: ` (among the final 20 lines), else the
    result of `last_line`. Return at most 200 characters."""
    lines = data.decode("utf-8", "replace").splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    for line in lines[starts[-1] + 1 :] if starts else ():
        if re.match(_EXCEPTION, line):
            return _plain(line)[:_SHOWN]
    for line in reversed(lines[-_END:]):
        if line.startswith("error: "):  # A library may print more while the interpreter ends.
            return _plain(line)[:_SHOWN]
    return last_line(data)


def last_line(data: bytes) -> str:
    """Return the last line of a log that has text, in at most 200 characters. Return a line of W&B
    (`wandb:`) only if there is no other line, and "" for an empty log."""
    other = ""
    for line in reversed(data.decode("utf-8", "replace").splitlines()):
        text = _plain(line)
        if text and not text.startswith("wandb:"):
            return text[:_SHOWN]
        other = other or text
    return other[:_SHOWN]


def _plain(line: str) -> str:
    text = sanitize(line).strip()
    label = _LABEL.match(text)
    return text if label is None else text[label.end() :]
