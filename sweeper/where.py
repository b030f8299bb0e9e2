"""`learning_rate < 1e-3 and state = failed`: conditions on runs, compiled to a plain predicate.

    condition  := comparison { "and" comparison }
    comparison := key operator literal        operator: = == != < <= > >=
    literal    := number | true | false | null | 'text' | "text" | bare word

A key is a column of ours, a key of the run's configuration (`config.<key>` where both exist), or
in double quotes when it is not a plain word. Text is data: nothing is evaluated.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sweeper.errors import UsageError
from sweeper.store.documents import dotted

__all__ = ["Comparison", "parse_where", "select"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<op>==|!=|<=|>=|=|<|>)
        |"(?P<double>[^"]*)"
        |'(?P<single>[^']*)'
        |(?P<word>[^\s=!<>"']+))""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_DIGITS = 1000
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Comparison(NamedTuple):
    """`key operator literal`."""

    key: str
    operator: str
    literal: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is true of `values`. A missing key is like null; an order between things
        that have none (a text and a number, anything and null) is false."""
        value = values.get(self.key)
        try:
            return bool(_OPERATORS[self.operator](value, self.literal))
        except TypeError:
            return False


def parse_where(text: str) -> tuple[Comparison, ...]:
    """The comparisons of a condition, all of which must hold. Raises `UsageError`."""
    tokens = _tokens(text)
    comparisons: list[Comparison] = []
    for start in range(0, len(tokens), 4):
        part = tokens[start : start + 3]
        joint = tokens[start + 3 : start + 4]
        kinds = [kind for kind, _ in part]
        if len(kinds) < 3 or kinds[1] != "op" or "op" in (kinds[0], kinds[2]):
            raise _wrong(text, "expected `key operator value`")
        if joint and (joint[0][0] != "word" or joint[0][1].lower() != "and"):
            raise _wrong(text, f"expected `and`, found {joint[0][1]!r}")
        if joint and start + 4 >= len(tokens):
            raise _wrong(text, "nothing follows `and`")
        comparisons.append(Comparison(part[0][1], part[1][1], _literal(*part[2])))
    if not comparisons:
        raise _wrong(text, "it is empty")
    return tuple(comparisons)


def select(
    comparisons: tuple[Comparison, ...], records: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The records of runs of which all `comparisons` hold. Raises `UsageError` for a key that no
    run has: a misspelt condition must not look like an empty result."""
    views = [_view(record) for record in records]
    known = {key for view in views for key in view}
    for comparison in comparisons:
        if records and comparison.key not in known:
            import difflib  # few conditions are wrong

            near = difflib.get_close_matches(comparison.key, sorted(known), n=1)
            hint = (
                f"; did you mean {near[0]!r}?" if near else f"; there is {', '.join(sorted(known))}"
            )
            raise UsageError(f"no run has {comparison.key!r}{hint}")
    return [
        record
        for record, view in zip(records, views, strict=True)
        if all(comparison.holds(view) for comparison in comparisons)
    ]


def _view(record: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = record["config"]
    config = {**config, **dict(dotted(config))}  # as `show` prints it
    own = {key: value for key, value in record.items() if key != "config"}
    if "id" in record:
        own["run"] = record["id"]  # what the id is called in tables
    qualified = {f"config.{key}": value for key, value in config.items()}
    return {**config, **qualified, **own}


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(text, f"cannot read {text[position:].strip()!r}")
        position = match.end()
        if match["op"] is not None:
            found.append(("op", match["op"]))
        elif match["word"] is not None:
            found.append(("word", match["word"]))
        else:
            found.append(
                ("text", match["double"] if match["double"] is not None else match["single"])
            )
    return found


def _literal(kind: str, text: str) -> Any:
    if kind == "text":
        return text
    if _NUMBER.fullmatch(text):
        # Python refuses to read an integer of thousands of digits; as a float it is infinite.
        whole = len(text) <= _DIGITS and not re.search("[.eE]", text)
        return int(text) if whole else float(text)
    return _WORDS.get(text, text)


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(
        f"where {text!r}: {problem}; write it like 'learning_rate < 1e-3 and state = succeeded'"
    )
