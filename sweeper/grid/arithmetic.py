"""Arithmetic in references: `${budget // batch_size}`. `ast` parses the text. Each part must be
of an allowed kind, and this module computes the result. Nothing is compiled or evaluated as
code."""

import ast
import functools
import math
import operator
import warnings
from collections.abc import Callable
from typing import NamedTuple

from sweeper.common.json_values import is_number
from sweeper.grid.naming import canonical
from sweeper.sweep.labels import plural

MAX_TEXT = 300
"""The largest number of characters of an expression."""
_MAX_BITS = 1000
_MAX_PLACES = 300
_DIGITS = 12

_Lookup = Callable[[str], object]


class Uncomputable(Exception):
    """The error for an expression that is not arithmetic, or has no value. Its text says why."""


class Expression(NamedTuple):
    """A parsed expression and the keys in it. `size` counts its keys, constants and operations."""

    text: str
    tree: ast.expr
    keys: tuple[str, ...]
    size: int

    def value(self, lookup: _Lookup) -> object:
        """Compute the expression. `lookup` returns the value of a key. Raises `Uncomputable`, and
        the errors of `lookup`. Floats are rounded to 12 significant digits, so that floats and the
        ids of runs are the same on every machine."""
        try:
            value = _Computing(self.text, lookup).value(self.tree)
        except ZeroDivisionError as error:
            raise Uncomputable("division by zero") from error
        except (ValueError, OverflowError) as error:
            raise Uncomputable(f"has no finite value ({error})") from error
        if isinstance(value, float):
            return float(f"{_bounded(value):.{_DIGITS}g}")
        return value


@functools.lru_cache(maxsize=1000)
def parse(text: str) -> Expression:
    """Parse an expression. Raises `Uncomputable` if the text is too long or not arithmetic."""
    text = " ".join(text.split())
    if len(text) > MAX_TEXT:
        raise Uncomputable(f"more than {MAX_TEXT} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Uncomputable(getattr(error, "msg", None) or "not an expression") from error
    keys: dict[str, None] = {}
    size = _check(tree, text, keys)
    return Expression(text, tree, tuple(keys), size)


def _check(node: ast.expr, text: str, keys: dict[str, None]) -> int:
    """Check that a tree is arithmetic, add its keys to `keys`, and return the size of the tree."""
    key = _key(node)
    if key is not None:
        keys[key] = None
        return 1
    if isinstance(node, ast.Constant):
        if type(node.value) not in (int, float, str, bool):
            raise Uncomputable(f"{_part(text, node)} is not a number")
        return 1
    return 1 + sum(_check(inner, text, keys) for inner in _parts(node, text))


def _parts(node: ast.expr, text: str) -> list[ast.expr]:
    """Return the operands of a node. Raises `Uncomputable` if the node is not arithmetic."""
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return [node.operand]
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.IfExp):
        return [node.test, node.body, node.orelse]
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else _part(text, node.func)
        if name not in _FUNCTIONS:
            raise Uncomputable(
                f"no function {name[:40]!r}; the functions are {', '.join(_FUNCTIONS)}"
            )
        if node.keywords or not node.args or any(isinstance(a, ast.Starred) for a in node.args):
            raise Uncomputable(f"{name} takes numbers")
        return node.args
    raise Uncomputable(f"{_part(text, node)!r} is not allowed in an expression")


def _key(node: ast.expr) -> str | None:
    """Return the key that a node stands for, such as `opt.lr`; None for any other node."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = _key(node.value)
        return None if above is None else f"{above}.{node.attr}"
    return None


def _part(text: str, node: ast.expr) -> str:
    return (ast.get_source_segment(text, node) or text)[:60]


class _Computing:
    """The computation of one expression."""

    def __init__(self, text: str, lookup: _Lookup) -> None:
        self.text, self.lookup = text, lookup

    def value(self, node: ast.expr) -> object:
        """Return the value of a node."""
        key = _key(node)
        if key is not None:
            return self.lookup(key)
        match node:
            case ast.Constant():
                result = node.value
            case ast.BinOp():
                left, right = self._number(node.left), self._number(node.right)
                result = _bounded(_BINARY[type(node.op)](left, right))
            case ast.UnaryOp(op=ast.Not()):
                result = not self._truth(node.operand)
            case ast.UnaryOp():
                result = _UNARY[type(node.op)](self._number(node.operand))
            case ast.Compare():
                result = self._compared(node)
            case ast.BoolOp(op=ast.And()):
                result = all(self._truth(item) for item in node.values)
            case ast.BoolOp():
                result = any(self._truth(item) for item in node.values)
            case ast.IfExp():
                result = self.value(node.body if self._truth(node.test) else node.orelse)
            case ast.Call(func=ast.Name(id=name)):
                result = self._called(name, [self._number(item) for item in node.args])
            case _:
                raise Uncomputable(f"{_part(self.text, node)!r} is not allowed in an expression")
        return result

    def _number(self, node: ast.expr) -> float:
        value = self.value(node)
        if not is_number(value):
            raise Uncomputable(f"{_part(self.text, node)} is {_shown(value)}, not a number")
        return value

    def _truth(self, node: ast.expr) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise Uncomputable(f"{_part(self.text, node)} is {_shown(value)}, not true or false")
        return value

    def _compared(self, node: ast.Compare) -> bool:
        """Compare neighbours, as in `1 < a <= 3`. Strings can only be tested for equality."""
        parts = [node.left, *node.comparators]
        for left, right, op in zip(parts, parts[1:], node.ops, strict=False):
            if isinstance(op, ast.Eq | ast.NotEq):
                a, b = self.value(left), self.value(right)
                equal = a == b and isinstance(a, bool) == isinstance(b, bool)
                holds = equal == isinstance(op, ast.Eq)
            else:
                holds = _COMPARISONS[type(op)](self._number(left), self._number(right))
            if not holds:
                return False
        return True

    def _called(self, name: str, given: list[float]) -> float:
        try:
            return _bounded(_FUNCTIONS[name](*given))
        except TypeError as error:
            numbers = plural(len(given), "number")
            raise Uncomputable(f"{name} cannot be called with {numbers}") from error


def _shown(value: object) -> str:
    return canonical(value)[:60] if not isinstance(value, str) else repr(value)[:60]


def _bounded(value: object) -> float:
    """Return `value`. Raises `Uncomputable` for a number that is complex, infinite or NaN, and for
    an integer of more than `_MAX_BITS` bits."""
    if isinstance(value, complex):
        raise Uncomputable("has no real value")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise Uncomputable(f"the result is an integer of more than {_MAX_BITS} bits")
    if not is_number(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise Uncomputable("has no finite value")
    return value


def _power(base: float, exponent: float) -> object:
    """Return a power. Raises `Uncomputable` if the result would be too long to compute."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if base.bit_length() * max(exponent, 0) > 2 * _MAX_BITS:
            raise Uncomputable(f"the result is an integer of more than {_MAX_BITS} bits")
        if exponent < 0:
            return float(base) ** exponent
    return base**exponent


def _rounded(number: float, places: float | None = None) -> float:
    if places is None:
        return round(number)
    if not isinstance(places, int) or abs(places) > _MAX_PLACES:
        raise Uncomputable(f"round takes an integer number of places, at most {_MAX_PLACES}")
    return round(number, places)


_BINARY: dict[type[ast.operator], Callable[[float, float], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., object]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "int": int,
    "log": math.log,
    "max": max,
    "min": min,
    "round": _rounded,
    "sqrt": math.sqrt,
}
