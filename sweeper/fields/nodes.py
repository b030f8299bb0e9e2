"""Reads YAML 1.2 (core schema) into nodes that know their position, and enforces all limits. Events
are pulled one at a time, so that a hostile file is refused as soon as it crosses a limit."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, cast

from sweeper.common.sanitize import sanitize
from sweeper.errors import GridError

MAX_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_NODES = 50_000
MAX_DIGITS = 300
_SHOWN = 60

_INT = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **{"-" + word: float("-inf") for word in (".inf", ".Inf", ".INF")},
}
# Characters that YAML 1.2 forbids, lone surrogates, and the line ends of YAML 1.1, which our parser
# turns into spaces. All are allowed as escapes in double quotes.
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class Place(NamedTuple):
    """The position of a value. Line and column count from 1. Line 0 means that the value has no
    position in a text."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


class Node(NamedTuple):
    """A value and its place: a scalar, a list of nodes, or a mapping as `{key: (place of the key,
    node)}`. `text` is the YAML text of a float (`1e-4`), if known."""

    value: object
    place: Place
    text: str | None = None

    @property
    def items(self) -> "list[Node] | None":
        """The nodes of a list; None for anything else."""
        value = self.value
        return cast("list[Node]", value) if isinstance(value, list) else None

    @property
    def entries(self) -> "dict[str, tuple[Place, Node]] | None":
        """The entries of a mapping; None for anything else."""
        value = self.value
        return cast("dict[str, tuple[Place, Node]]", value) if isinstance(value, dict) else None


class Stop(Exception):
    """The error that ends the reading of a grid. Its mistake is already in `Problems`."""


class Problems:
    """The mistakes in a grid, collected so that all are reported at once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Place, str], None] = {}
        self._files: list[str] = []

    def order(self, files: Iterable[str]) -> None:
        """Set the order of files in reports. By default, files are ordered by their first noted
        mistake."""
        self._files = list(files)

    def add(self, place: Place, message: str) -> None:
        """Note a mistake. The same mistake at the same place counts once."""
        self._lines[(place, message)] = None

    def places(self) -> set[Place]:
        """Return the places at which a mistake is noted."""
        return {place for place, _ in self._lines}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def error(self) -> GridError:
        """Return one error with a line for each mistake, grouped by file and ordered by
        position."""
        files = dict.fromkeys([*self._files, *(p.source for p, _ in self._lines if p.line)])
        rank = {source: number for number, source in enumerate(files)}
        ordered = sorted(
            self._lines,
            key=lambda f: (rank[f[0].source] if f[0].line else -1, f[0].line, f[0].column),
        )
        return GridError([f"{place}: {sanitize(message)}" for place, message in ordered])

    def raise_any(self) -> None:
        """Raise `GridError` if there is a mistake."""
        if self._lines:
            raise self.error()


def scalar(text: str) -> object:
    """Return the value of a plain scalar by the core schema of YAML 1.2.

    Raises ValueError for an integer of more than 300 characters.
    """
    if text in _SPECIAL:
        return _SPECIAL[text]
    decimal = _INT.match(text)
    if decimal or _BASED.match(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits; at most {MAX_DIGITS} are allowed")
        return int(text) if decimal else int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


def is_plain(text: str) -> bool:
    """Return whether a text needs no quotes: YAML reads it as the same string, and all of its
    characters are visible."""
    if not text or text != text.strip() or "  " in text or not text.isprintable():
        return False
    try:
        return scalar(text) == text and text[0] not in "\"'"
    except ValueError:  # an integer with too many digits
        return False


def kind(node: Node) -> str:
    """Return a name for the type of a node's value, for messages."""
    value = node.value
    if value is None:
        return "nothing"
    for types, name in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (list, "a list"),
    ):
        if isinstance(value, types):
            return name
    return "a mapping"


def plain(node: Node) -> object:
    """Return the node as Python data, without places."""
    if (items := node.items) is not None:
        return [plain(item) for item in items]
    if (entries := node.entries) is not None:
        return {key: plain(item) for key, (_, item) in entries.items()}
    return node.value


def read_yaml(
    text: str, source: str, problems: Problems, *, fixed: Place | None = None
) -> Node | None:
    """Read the single document of `text`. Return None if the document is empty or unreadable.

    If `fixed` is set (for text from the command line), all nodes get this place.
    """
    reader = _Reader(source, problems, fixed)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problems.add(fixed or Place(source), f"{size} bytes; a grid has at most {MAX_BYTES}")
        return None
    bad = FORBIDDEN.search(text, 1 if text.startswith("\ufeff") else 0)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - (text.rfind("\n", 0, bad.start()) + 1) + 1
        problems.add(
            fixed or Place(source, line, column),
            f"character U+{ord(bad.group()):04X} is not allowed in YAML{_instead(bad.group())}",
        )
        return None
    return reader.document(text)


def _instead(character: str) -> str:
    """Return the end of a message: how to escape a forbidden character. Return "" if the character
    is forbidden even if escaped."""
    if _UNUSABLE.match(character):
        return ""
    return f": write \\u{ord(character):04x}, in double quotes"


def check_text(value: str, place: Place, problems: Problems) -> None:
    """Note a mistake if a text has a character that cannot be passed to a run."""
    bad = _UNUSABLE.search(value)
    if bad:
        problems.add(place, f"the character U+{ord(bad.group()):04X} cannot be passed to a run")


def shown(value: object) -> str:
    """Return the `repr` of a value, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


class _Mark(Protocol):
    """A position from the parser. Both numbers count from 0."""

    line: int
    column: int


class _Event(Protocol):
    """An event from the parser. Each type of event has only some of these attributes."""

    start_mark: _Mark
    version: tuple[int, int] | None
    anchor: str
    tag: object
    style: str | None
    value: str


class _Mistake(Protocol):
    """A syntax error from the parser."""

    problem_mark: _Mark | None
    context_mark: _Mark | None
    problem: str | None
    context: str | None


class _Reader:
    """A builder of nodes from the parser's events."""

    def __init__(self, source: str, problems: Problems, fixed: Place | None) -> None:
        self.source, self.problems, self.fixed = source, problems, fixed
        # For each anchor: its node, the number of nodes in it, and its depth.
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.open: set[str] = set()
        self.count = 0

    def document(self, text: str) -> Node | None:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        parser = YAML(typ="safe", pure=True)
        try:
            events: Iterator[_Event] = parser.parse(text)  # pyright: ignore[reportUnknownMemberType]
            return self._document(events)
        except Stop:
            return None
        except MarkedYAMLError as error:
            mistake = cast(_Mistake, error)
            mark = mistake.problem_mark or mistake.context_mark
            place = self.place(mark) if mark else self.fixed or Place(self.source)
            context = f" {mistake.context}" if mistake.context else ""
            message = str(mistake.problem or "not YAML").replace("\n", " ")
            self.problems.add(place, f"not YAML: {message}{context}")
        except (YAMLError, ValueError, IndexError, AssertionError, OverflowError) as error:
            # The parser raises these for some inputs (`%YAML x`, `"\UFFFFFFFF"`).
            summary = str(error).split("\n", maxsplit=1)[0]
            self.problems.add(self.fixed or Place(self.source), f"not YAML: {summary}")
        return None

    def place(self, mark: _Mark) -> Place:
        return self.fixed or Place(self.source, mark.line + 1, mark.column + 1)

    def stop(self, place: Place, message: str) -> Stop:
        self.problems.add(place, message)
        return Stop()

    def _document(self, events: Iterator[_Event]) -> Node | None:
        root: Node | None = None
        for event in events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                if root is not None:
                    raise self.stop(
                        self.place(event.start_mark), "a grid must be one YAML document"
                    )
                if event.version is not None and tuple(event.version) != (1, 2):
                    raise self.stop(self.place(event.start_mark), "a grid must be YAML 1.2")
            elif name not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                root = self._node(event, events, 0)
        return root

    def _node(self, event: _Event, events: Iterator[_Event], depth: int) -> Node:
        """Build the node that begins with `event`. Recursion is bounded by MAX_DEPTH."""
        place = self.place(event.start_mark)
        name = type(event).__name__
        if name == "AliasEvent":
            return self._alias(event.anchor, place, depth)
        self._spend(1, place)
        if depth > MAX_DEPTH:
            raise self.stop(place, f"nested more than {MAX_DEPTH} deep")
        if event.tag is not None and event.tag != "!":
            self.problems.add(place, f"tag {shown(str(event.tag))[1:-1]}: a grid has no tags")
        before = self.count
        if event.anchor:
            self.open.add(event.anchor)
        if name == "ScalarEvent":
            node = self._scalar(event, place)
        elif name == "SequenceStartEvent":
            items: list[Node] = []
            while type(inner := next(events)).__name__ != "SequenceEndEvent":
                items.append(self._node(inner, events, depth + 1))
            node = Node(items, place)
        else:
            node = self._mapping(events, place, depth)
        if event.anchor:
            self.open.discard(event.anchor)
            self.anchors[event.anchor] = (node, self.count - before + 1, _height(node))
        return node

    def _spend(self, nodes: int, place: Place) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise self.stop(place, f"more than {MAX_NODES} values, aliases counted in full")

    def _alias(self, anchor: str, place: Place, depth: int) -> Node:
        if anchor in self.open:
            raise self.stop(place, f"alias *{anchor} is inside the value that it names")
        if anchor not in self.anchors:
            raise self.stop(place, f"alias *{anchor} without an anchor &{anchor} before it")
        node, nodes, height = self.anchors[anchor]
        self._spend(nodes, place)
        if depth + height > MAX_DEPTH:
            raise self.stop(place, f"nested more than {MAX_DEPTH} deep")
        return Node(node.value, place, node.text)

    def _scalar(self, event: _Event, place: Place) -> Node:
        text = _PAIR.sub(_joined, str(event.value))
        check_text(text, place, self.problems)
        if event.style is not None or event.tag is not None:
            return Node(text, place)
        try:
            value = scalar(text)
            return Node(value, place, text if isinstance(value, float) else None)
        except ValueError as error:
            self.problems.add(place, str(error))
            return Node(None, place)

    def _mapping(self, events: Iterator[_Event], place: Place, depth: int) -> Node:
        entries: dict[str, tuple[Place, Node]] = {}
        while type(inner := next(events)).__name__ != "MappingEndEvent":
            key = self._node(inner, events, depth + 1)
            item = self._node(next(events), events, depth + 1)
            if not isinstance(key.value, str):
                nested = isinstance(key.value, list | dict)
                label = "a list or mapping as key" if nested else f"key {shown(key.value)}"
                self.problems.add(key.place, f"{label}: keys are strings; quote it")
            elif key.value in entries:
                first = entries[key.value][0]
                where = f" (first on line {first.line})" if first.line else ""
                self.problems.add(key.place, f"key {shown(key.value)} given twice{where}")
            else:
                entries[key.value] = (key.place, item)
        return Node(entries, place)


def _joined(pair: re.Match[str]) -> str:
    """Return the character that a surrogate pair stands for."""
    return pair.group().encode("utf-16", "surrogatepass").decode("utf-16")


def _height(node: Node) -> int:
    below = node.items or [item for _, item in (node.entries or {}).values()]
    return 1 + max(map(_height, below)) if below else 0
