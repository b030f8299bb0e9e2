"""Converts TOML text to nodes with line numbers. The TOML library does not report lines, so they
are found in the text by the headers of tables and the keys below them."""

import re
import tomllib
from typing import cast

from sweeper.fields.nodes import Node, Place, Problems

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_PART = re.compile(_NAME)
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)\Z")

Path = tuple[str | int, ...]


def read_toml(text: str, source: str, problems: Problems) -> Node | None:
    """Parse the document. Return None, and record why, if it is not TOML."""
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        match = _AT.match(str(error))
        line, column = (match[2], match[3]) if match else (None, None)
        place = Place(source, int(line or text.count("\n") + 1), int(column or 1))
        problems.add(place, f"not TOML: {match[1] if match else error}")
        return None
    return _Nodes(source, _lines(text)).node(value, (), 1)


class _Nodes:
    """Builds nodes. A node without a line of its own has that of its parent."""

    def __init__(self, source: str, lines: dict[Path, int]) -> None:
        self._source, self._lines = source, lines

    def node(self, value: object, path: Path, above: int) -> Node:
        line = self._lines.get(path, above)
        place = Place(self._source, line, 1)
        if isinstance(value, dict):
            entries: dict[str, tuple[Place, Node]] = {}
            for key, item in cast("dict[str, object]", value).items():
                below = self.node(item, (*path, key), line)
                entries[key] = (below.place, below)
            return Node(entries, place)
        if isinstance(value, list):
            items = cast("list[object]", value)
            return Node([self.node(one, (*path, n), line) for n, one in enumerate(items)], place)
        return Node(value, place)


def _lines(text: str) -> dict[Path, int]:
    line_of: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if inside:
            inside = "" if line.count(inside) % 2 else inside
            continue
        if header := _HEADER.match(line):
            table = _resolved(_parts(header[2]), counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                line_of.setdefault(table, number)
                table = (*table, counts[table])
            line_of.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = (*path, part)
                line_of.setdefault(path, number)
            inside = next((q for q in ('"""', "'''") if line.count(q) % 2), "")
    return line_of


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


def _resolved(parts: list[str], counts: dict[Path, int]) -> Path:
    """Return the path of a header. A table below a list of tables belongs to the last table in the
    list."""
    path: Path = ()
    for number, part in enumerate(parts):
        path = (*path, part)
        if path in counts and number < len(parts) - 1:
            path = (*path, counts[path])
    return path
