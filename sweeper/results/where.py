"""Conditions on runs, such as `learning_rate < 1e-3 and state = failed`. Values of different
types are not equal, a missing key is null, and no text is evaluated as code. docs/registry.md
describes conditions."""

# condition := both { "or" both }
# both      := single { "and" single }
# single    := "not" single | "(" condition ")" | test
# test      := key operator value | key [ "not" ] "in" "(" value { "," value } ")" | key "is" [
#           "not" ] "missing"
# operator  := = | == | != | < | <= | > | >=
# value     := number | true | false | null | 'text' | "text" | bare word

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sweeper.common.json_values import table_of
from sweeper.errors import UsageError
from sweeper.store.documents import dotted

Scalar: TypeAlias = bool | int | float | str | None
"""A value in a condition."""

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_DIGITS = 1000
Record = TypeVar("Record", bound=Mapping[str, object])

_DEPTH = 50
"""The maximum nesting depth of conditions."""
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def _equal(value: object, other: object) -> bool:
    """Return whether two values are equal. In Python, True equals 1; here, a boolean only equals a
    boolean."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": _equal,
    "==": _equal,
    "!=": lambda value, other: not _equal(value, other),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(ABC):
    """A condition on runs."""

    @property
    @abstractmethod
    def keys(self) -> frozenset[str]:
        """The keys in the condition."""

    @abstractmethod
    def holds(self, values: Mapping[str, object]) -> bool:
        """Return whether the condition holds for a run with these values by key."""


@dataclass(frozen=True)
class _Test(Condition):
    """A test of one key."""

    key: str

    @property
    def keys(self) -> frozenset[str]:
        return frozenset({self.key})


@dataclass(frozen=True)
class _Compared(_Test):
    """A comparison. `<`, `<=`, `>` and `>=` are false for values that have no order, such as a
    string and a number, a boolean and a number, or null and any value."""

    operator: str
    value: Scalar

    def holds(self, values: Mapping[str, object]) -> bool:
        value = values.get(self.key)
        if isinstance(value, bool) != isinstance(self.value, bool) and self.operator[0] in "<>":
            return False
        try:
            return bool(_OPERATORS[self.operator](value, self.value))
        except TypeError:
            return False


@dataclass(frozen=True)
class _OneOf(_Test):
    values: tuple[Scalar, ...]

    def holds(self, values: Mapping[str, object]) -> bool:
        return any(_equal(values.get(self.key), value) for value in self.values)


@dataclass(frozen=True)
class _Missing(_Test):
    def holds(self, values: Mapping[str, object]) -> bool:
        return values.get(self.key) is None


@dataclass(frozen=True)
class _Not(Condition):
    part: Condition

    @property
    def keys(self) -> frozenset[str]:
        return self.part.keys

    def holds(self, values: Mapping[str, object]) -> bool:
        return not self.part.holds(values)


@dataclass(frozen=True)
class _Joined(Condition):
    """A conjunction or disjunction of conditions."""

    parts: tuple[Condition, ...]
    enough: Callable[[Iterable[bool]], bool]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(key for part in self.parts for key in part.keys)

    def holds(self, values: Mapping[str, object]) -> bool:
        return self.enough(part.holds(values) for part in self.parts)


def parse_where(text: str) -> Condition:
    """Parse a condition. Raises `UsageError`."""
    return _Parser(text).whole()


def select(condition: Condition, records: Sequence[Record]) -> list[Record]:
    """Return the records of runs for which the condition holds. Raises `UsageError` if there are
    runs and a key of the condition is missing from all of them, because an empty result would hide
    a misspelt key."""
    views = [keyed(record) for record in records]
    check_keys(condition.keys, views, records)
    return [record for record, view in zip(records, views, strict=True) if condition.holds(view)]


def check_keys(
    keys: Iterable[str],
    views: Sequence[Mapping[str, object]],
    records: Sequence[Mapping[str, object]],
) -> None:
    """Raise `UsageError` if there are runs and one of the keys is missing from all runs. `records`
    has the record of each run, `views` the same runs as `keyed` returns them."""
    known_keys = {key for view in views for key in view}
    for key in sorted(set(keys) - known_keys) if records else ():
        import difflib  # imported late: only needed for wrong conditions

        similar = difflib.get_close_matches(key, sorted(known_keys), n=1)
        hint = (
            f"; did you mean {similar[0]!r}?"
            if similar
            else f"; choose from {', '.join(sorted(known_keys))}"
        )
        if any(record.get("metric") == key for record in records):
            hint = "; `value` is the run's value of the metric " + key
        raise UsageError(f"no run has {key!r}{hint}")


def keyed(record: Mapping[str, object]) -> dict[str, object]:
    """Return a run's values by the keys that conditions may use: the fields of `record`, and the
    keys of the run's configuration, with or without the prefix `config.`."""
    config = table_of(record["config"])
    config = {**config, **dict(dotted(config))}  # as `show` prints the key
    fields = {key: value for key, value in record.items() if key != "config"}
    if "id" in record:
        fields["run"] = record["id"]  # tables call the id `run`
    qualified = {f"config.{key}": value for key, value in config.items()}
    return {**config, **qualified, **fields}


class _Token(NamedTuple):
    """A token. `kind` is "op" (a comparison), "sign" (a parenthesis or a comma), "text" (in
    quotes), "word", or "end" (the end of the condition)."""

    kind: str
    text: str

    def says(self, *words: str) -> bool:
        """Return whether the token is one of these keywords or signs."""
        return self.kind in ("word", "sign") and self.text.lower() in words


_TOKEN = re.compile(
    r"""\s*(?:(?P<op>==|!=|<=|>=|=|<|>)
        |"(?P<double>[^"]*)"
        |'(?P<single>[^']*)'
        |(?P<sign>[(),])
        |(?P<word>[^\s=!<>"'(),]+))""",
    re.VERBOSE,
)
_END = _Token("end", "")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(text, f"cannot read {text[position:].strip()!r}")
        position = match.end()
        kind = match.lastgroup or ""
        tokens.append(_Token("text" if kind in ("double", "single") else kind, match[kind]))
    return tokens


class _Parser:
    """A parser of a condition, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = self._depth = 0

    def whole(self) -> Condition:
        """Parse the whole condition."""
        if not self._tokens:
            raise self._wrong("the condition is empty")
        condition = self._condition()
        if self._next is not _END:
            hint = ", or quotes around the value" if self._next.kind == "sign" else ""
            raise self._wrong(f"expected `and` or `or`{hint}, found {self._next.text!r}")
        return condition

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _took(self, word: str) -> bool:
        if not self._next.says(word):
            return False
        self._at += 1
        if self._next is _END and word not in (")", "missing"):
            raise self._wrong(f"nothing follows `{word}`")
        return True

    def _condition(self) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH:
            raise self._wrong("conditions are nested too deeply")
        condition = self._joined("or", any, lambda: self._joined("and", all, self._single))
        self._depth -= 1
        return condition

    def _joined(
        self, word: str, enough: Callable[[Iterable[bool]], bool], part: Callable[[], Condition]
    ) -> Condition:
        parts = [part()]
        while self._took(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _Joined(tuple(parts), enough)

    def _single(self) -> Condition:
        negated = False
        while self._took("not"):
            negated = not negated
        if self._took("("):
            condition = self._condition()
            if not self._took(")"):
                raise self._wrong("a parenthesis is not closed")
        else:
            condition = self._test()
        return _Not(condition) if negated else condition

    def _test(self) -> Condition:
        key = self._take()
        if key.kind not in ("word", "text"):
            raise self._wrong("expected `key operator value`")
        if self._next.kind == "op":
            return _Compared(key.text, self._take().text, self._value())
        if self._took("is"):
            negated = self._took("not")
            if not self._took("missing"):
                raise self._wrong("expected `missing` after `is`")
            return _Not(_Missing(key.text)) if negated else _Missing(key.text)
        negated = self._took("not")
        if self._took("in"):
            test = _OneOf(key.text, self._values())
            return _Not(test) if negated else test
        raise self._wrong("expected `key operator value`")

    def _values(self) -> tuple[Scalar, ...]:
        if not self._took("("):
            raise self._wrong("expected values in parentheses after `in`, as in `in (1, 2)`")
        values = [self._value()]
        while self._took(","):
            values.append(self._value())
        if not self._took(")"):
            raise self._wrong("a parenthesis is not closed")
        return tuple(values)

    def _value(self) -> Scalar:
        token = self._take()
        if token.kind == "text":
            return token.text
        if token.kind != "word":
            raise self._wrong("expected `key operator value`")
        if _NUMBER.fullmatch(token.text):
            # Python refuses to parse an integer of thousands of digits. As a float it is infinite.
            whole = len(token.text) <= _DIGITS and not re.search("[.eE]", token.text)
            return int(token.text) if whole else float(token.text)
        return _WORDS.get(token.text, token.text)

    def _wrong(self, problem: str) -> UsageError:
        return _wrong(self._text, problem)


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(
        f"condition {text!r}: {problem}; an example is 'learning_rate < 1e-3 and state = succeeded'"
    )
