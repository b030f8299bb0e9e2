"""Reads metrics as columns of floats, as exactly as `metrics.rows.parse` and several times faster.
If all lines of a file have only numbers under expected keys, a fast decoder parses them in one
call. Other files are cut into pieces, and pieces that the decoder rejects are parsed line by
line."""

import functools
import operator
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.files import MetricsFile
from sweeper.metrics.rows import Parsed, Point, Row, are_missing, as_float, as_number, parse

T = TypeVar("T")
Floats = NDArray[np.float64]
Odd = dict[int, object]
"""Values that a float cannot hold exactly, by row number."""

_BITS = 0x7FF8_0000_5357_4550
ABSENT: float = struct.unpack("<d", struct.pack("<Q", _BITS))[0]
"""The value for a missing number in a column. It is a NaN whose bits differ from those of a
recorded NaN; `present` distinguishes them."""

_EXACT = 2.0**53
"""From this number on, floats cannot represent all integers."""
_WIDEST = 2000
_AWKWARD = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""Characters that keys of the fast decoder cannot contain."""
_HEAD = 1 << 12
_PIECE = 1 << 16
_OPEN, _CLOSE = b"{}"


def present(column: Floats) -> NDArray[np.bool_]:
    """Return a mask of the rows in which a column has a number. A recorded NaN counts as a
    number."""
    return column.view(np.uint64) != _BITS


def absent(rows: int) -> Floats:
    """Return a column of `rows` rows without numbers."""
    return np.full(rows, ABSENT)


@dataclass(frozen=True)
class Columns:
    """The rows of one file or run. `values` maps each key, in order of first appearance, to one
    number per row. `odd` maps keys to other values: strings, booleans, nulls, lists, objects and
    integers beyond 2**53. `malformed` and `torn` count lines as in `metrics.rows.Parsed`."""

    rows: int = 0
    values: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    odd: Mapping[str, Odd] = field(default_factory=dict[str, Odd])
    malformed: int = 0
    torn: int = 0

    def column(self, key: str) -> Floats:
        """Return the number of `key` in each row, or ABSENT if the row has no number."""
        column = self.values.get(key)
        return absent(self.rows) if column is None else column

    def numbers(self, key: str) -> Floats:
        """Return the column of `key`, with integers beyond 2**53 rounded to floats."""
        values = self.column(key)
        large = {r: n for r, v in self.odd.get(key, {}).items() if (n := as_float(v)) is not None}
        if large:
            values = values.copy()
            values[list(large)] = list(large.values())
        return values

    def has(self, key: str) -> NDArray[np.bool_]:
        """Return a mask of the rows that have `key`, with a value of any type."""
        mask = present(self.column(key))
        mask[list(self.odd.get(key, ()))] = True
        return mask

    def with_any(self, keys: Sequence[str] | None) -> "Columns":
        """Return the rows that have at least one of these keys; all rows if `keys` is None."""
        if keys is None:
            return self
        mask = np.zeros(self.rows, bool)
        for key in keys:
            mask |= self.has(key)
        return self.where(mask)

    def where(
        self, rows: NDArray[np.bool_] | slice, keys: Iterable[str] | None = None
    ) -> "Columns":
        """Return the rows in a slice, or the rows for which a mask is true, with only the columns
        `keys` (None: all). A key that no row has becomes a column without numbers."""
        if isinstance(rows, slice):
            numbers = range(self.rows)[rows]
        elif rows.all():
            return self.chosen(keys)
        else:
            numbers = np.flatnonzero(rows).tolist()
        values = {
            key: self.values[key][rows] if key in self.values else absent(len(numbers))
            for key in (self.values if keys is None else keys)
        }
        odd = {
            key: {n: cells[row] for n, row in enumerate(numbers) if row in cells}
            for key in values
            if (cells := self.odd.get(key))
        }
        return replace(self, rows=len(numbers), values=values, odd=_filled(odd))

    def chosen(self, keys: Iterable[str] | None) -> "Columns":
        """Return all rows with only the columns `keys` (None: all columns)."""
        if keys is None:
            return self
        values = {key: self.column(key) for key in keys}
        return replace(self, values=values, odd={k: self.odd[k] for k in values if k in self.odd})

    def tidy(self) -> "Columns":
        """Return the rows with sorted keys. The keys of the first row come first, in their present
        order. The other keys are sorted by the first row that has them, then by name. Keys that no
        row has are dropped."""
        first: dict[str, Floats] = {}
        late: list[tuple[int, str]] = []
        for key, column in self.values.items():
            odd = self.odd.get(key, {})
            # Usually the first row has the key. The first comparison shows that fastest, since only
            # NaN differs from itself.
            if self.rows and (column[0] == column[0] or 0 in odd or present(column[:1])[0]):
                first[key] = column
                continue
            mask = present(column)
            row = min(int(mask.argmax()) if mask.any() else self.rows, *odd, self.rows)
            if row < self.rows:
                late.append((row, key))
        return replace(self, values=first | {key: self.values[key] for _, key in sorted(late)})


def _filled(odd: Mapping[str, Odd]) -> dict[str, Odd]:
    return {key: cells for key, cells in odd.items() if cells}


def join(parts: Sequence[Columns]) -> Columns:
    """Join the rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    values = {
        key: np.concatenate([part.column(key) for part in parts])
        for key in dict.fromkeys(chain.from_iterable(part.values for part in parts))
    }
    malformed = sum(part.malformed for part in parts)
    rows = sum(part.rows for part in parts)
    return Columns(rows, values, join_odd(parts), malformed, parts[-1].torn if parts else 0)


def join_odd(parts: Iterable[Columns]) -> dict[str, Odd]:
    """Join the odd values of all parts, one after the other."""
    odd: dict[str, Odd] = {}
    start = 0
    for part in parts:
        for key, cells in part.odd.items():
            odd.setdefault(key, {}).update({start + row: value for row, value in cells.items()})
        start += part.rows
    return odd


def read_columns(path: str, data: bytes, hint: Iterable[str] = ()) -> Columns:
    """Return the rows of the metrics file at `path`, whose bytes are `data`. `hint` is as in
    `parse_columns`."""
    file = MetricsFile(path)
    return parse_columns(data, None, hint) if file.by_line else _by_line(file.parse(data))


def parse_columns(
    data: bytes, keys: Sequence[str] | None = None, hint: Iterable[str] = ()
) -> Columns:
    """Return the rows in `data`, which has lines of JSON. If `keys` is not None, return exactly
    these columns, even if they have no numbers. `hint` has keys that later rows may have in
    addition to the first row's keys. Parsing is faster if it includes every such key."""
    columns = _numbers_of(data, keys, hint)
    if columns is None:
        parts: list[Columns] = []
        for lines in _pieces(data):
            parts.append(_numbers_of(lines, keys, hint) or _by_line(parse(lines)))
            hint = dict.fromkeys((*hint, *parts[-1].values))
        columns = join(parts)
    return columns.tidy() if keys is None else columns.chosen(keys)


def _by_line(parsed: Parsed) -> Columns:
    return replace(columns_of(parsed.rows), malformed=parsed.malformed, torn=parsed.torn)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut lines into pieces of at least `_PIECE` bytes; the last piece may be shorter."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _PIECE) + 1 or len(data)
        yield data[start:end]
        start = end


def _numbers_of(data: bytes, keys: Sequence[str] | None, hint: Iterable[str]) -> Columns | None:
    """Parse rows with the fast decoder. Return None if it fails or may change a value."""
    names = (*dict.fromkeys((*_first_keys(data), *hint)),) if keys is None else (*keys,)
    if not names or len(names) > _WIDEST or any(map(_AWKWARD.search, names)):
        return None
    if keys is not None and not is_text(data):  # the decoder does not check the parts that it skips
        return None
    rows = decode_lines(data, _decoder(names, keys is None))
    if rows is None:
        return None
    numbers = chain.from_iterable(map(msgspec.structs.astuple, rows))
    block = np.fromiter(numbers, np.float64, len(rows) * len(names))
    block = np.ascontiguousarray(block.reshape(len(rows), len(names)).T)
    if not (block.min() > -_EXACT and block.max() < _EXACT) and (np.abs(block) >= _EXACT).any():
        return None  # an integer may not be exact
    return Columns(len(rows), dict(zip(names, block, strict=True)))


def _first_keys(data: bytes) -> list[str]:
    """Return the keys of the first row in their order; empty if the row is very long or is not a
    JSON object."""
    rows = parse(data[: data.find(b"\n", 0, 64 * _HEAD) + 1]).rows
    return [*rows[0]] if rows else []


def decode_lines(data: bytes, decoder: "msgspec.json.Decoder[T]") -> "list[T] | None":
    """Decode lines of JSON in one call. Return None if there is no line, or if any line is
    incomplete or is not exactly one object.

    The decoder alone would accept a line with two objects, or an object on two lines. Therefore the
    numbers of lines and objects must be equal, and each line must begin and end with a brace.
    """
    starts = _line_starts(data)
    if not starts:
        return None
    try:
        rows: list[T] = decoder.decode_lines(data)  # pyright: ignore[reportAssignmentType]
    except (ValueError, RecursionError):
        return None
    return rows if len(rows) == len(starts) else None


def _line_starts(data: bytes) -> list[int]:
    """Return the offsets at which lines start; empty if any line is incomplete, or does not begin
    and end with a brace."""
    starts: list[int] = []
    start = 0
    while (end := data.find(b"\n", start)) > start:
        if data[start] != _OPEN or data[end - 1] != _CLOSE:
            return []
        starts.append(start)
        start = end + 1
    return starts if start == len(data) else []


def is_text(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8."""
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


@functools.lru_cache(maxsize=64)
def _decoder(keys: tuple[str, ...], strict: bool) -> "msgspec.json.Decoder[msgspec.Struct]":
    """Return a decoder of rows with numbers under `keys`. Other keys are rejected if `strict`,
    else skipped."""
    line_type = msgspec.defstruct(
        "Line",
        [(f"f{i}", float, ABSENT) for i in range(len(keys))],
        rename={f"f{i}": key for i, key in enumerate(keys)},
        forbid_unknown_fields=strict,
        gc=False,
    )
    return msgspec.json.Decoder(line_type)


def columns_of(rows: Sequence[Mapping[str, object]]) -> Columns:
    """Convert rows to columns."""
    values: dict[str, Floats] = {}
    odd: dict[str, Odd] = {}
    for key in dict.fromkeys(chain.from_iterable(rows)):
        cells = [row.get(key, ABSENT) for row in rows]
        if set(map(type, cells)) != {float}:
            numbers = [_exact(cell) for cell in cells]
            odd[key] = {n: cells[n] for n, number in enumerate(numbers) if number is None}
            cells = [ABSENT if number is None else number for number in numbers]
        values[key] = np.array(cells, np.float64)
    return Columns(len(rows), values, _filled(odd))


def _exact(value: object) -> float | None:
    """Return a number that a float holds exactly, or the number that a string such as NaN
    represents; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _EXACT:
        return None
    return as_number(value)


_STEP = re.compile(rb'\{"step": ?(\d{1,15})[,}]')
_BACK = 64
"""The number of lines at the end that are searched for a key. More than one line is searched,
because not every line has evaluations."""


def last_number(data: bytes, key: str) -> Point | None:
    """Return the last number of `key` in lines of JSON by parsing only lines at the end. Return
    None if none of the last `_BACK` lines has a number, or if numbers seem to be missing after the
    last number (see `are_missing`).

    Each line must begin with its step, and the steps must ascend; otherwise return None.
    """
    starts = _line_starts(data)
    steps = [int(match[1]) for match in map(_STEP.match, repeat(data), starts) if match]
    if not steps or len(steps) < len(starts) or any(map(operator.ge, steps, steps[1:])):
        return None
    ends = chain((len(data),), reversed(starts))
    lines = (data[start:end] for start, end in zip(reversed(starts), ends, strict=False))
    rows = (row for line in lines for row in parse(line).rows)
    after: list[Row] = []
    for row in islice(rows, _BACK):
        number = as_number(row.get(key))
        if number is not None:
            lacks = after and _lacks(after, [*islice(rows, len(after))], key)
            return None if lacks else Point(as_float(row.get("step")), number)
        after.append(row)
    return None


def _lacks(after: Sequence[Row], before: Sequence[Row], key: str) -> bool:
    """Return whether numbers of `key` are missing (see `are_missing`) in the rows `after` the last
    row with a number. `before` has the rows before that row, the nearest row first."""
    numbered = [as_number(row.get(key)) is not None for row in before]
    gap = numbered.index(True) if any(numbered) else len(numbered)
    return are_missing(len(after), gap, named=any(key in row for row in after))
