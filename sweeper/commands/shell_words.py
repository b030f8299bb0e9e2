"""Splits command lines as a shell does, and refuses what only a shell can do: pipes, variables,
patterns. Lines from files are arguments of programs, and never reach a shell."""

import re
import shlex
from collections.abc import Iterator

_PIECE = re.compile(
    r"""'[^']*'                      # quoted
    |"(?:\\.|[^"\\])*"               # quoted, with variables
    |\\.                             # one escaped character
    |(?P<comment>(?:(?<=\s)|^)\#.*)
    |(?P<expands>\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}|(?:(?<=[\s=])|^)~(?=/))
    |(?P<shell>[|&;<>()$`*?])
    |[^'"\\]""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class NeedsShell(Exception):
    """A line that only a shell understands. The text says which part of it."""


def split_line(line: str) -> list[str]:
    """Return the words of a command. Variables in front of the program (`A=1 python x.py`) are set
    by `env`. Raises `NeedsShell`."""
    pieces: list[str] = []
    end = 0
    for match in _PIECE.finditer(line):
        if match.start() != end:
            break
        end = match.end()
        piece = match.group()
        if match["comment"] is not None:
            continue
        if piece.startswith('"') and (expanded := re.search(r"(?<!\\)[$`]", piece)):
            raise NeedsShell(f"{expanded.group()!r} in {piece[:40]} needs a shell")
        if (special := match["shell"] or match["expands"]) is not None:
            raise NeedsShell(f"{special[:40]!r} needs a shell")
        pieces.append(re.sub(r"\\([$`])", r"\1", piece) if piece.startswith('"') else piece)
    try:
        if end < len(line):
            raise ValueError("No closing quotation")
        words = shlex.split("".join(pieces))
    except ValueError as error:
        raise NeedsShell(f"not a command: {str(error).lower()}") from error
    return ["env", *words] if words and _ASSIGNMENT.match(words[0]) else words


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text with their numbers; a line that ends in `\` goes on in the
    next."""
    number, begun = 0, ""
    for index, line in enumerate(text.splitlines(), 1):
        number = number if begun else index
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield number, begun + line
        begun = ""
    if begun:
        yield number, begun
