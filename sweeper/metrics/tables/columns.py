"""`metrics.jsonl` as columns of floats: as exact as `metrics.parse`, and several times faster.

Each line goes through a decoder made for the keys seen so far, all of them numbers. A line that
it refuses (a new key, a text, `NaN`, no JSON at all) is read by the slow parser: what that makes
of it counts. Pure: bytes in, arrays out.
"""

import functools
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.rows import as_float, as_number, parse

Floats = NDArray[np.float64]
Odd = dict[int, object]
"""Row number -> a value that is no number a float holds exactly."""

_BITS = 0x7FF8_0000_5357_4550
ABSENT: float = struct.unpack("<d", struct.pack("<Q", _BITS))[0]
"""Stands in a column where a row has no number. It is a NaN, but not the NaN that is recorded:
`present` tells them apart by their bits."""

EXACT = 2.0**53
"""From here on a float holds not every integer."""
_WIDEST = 2000
_OPEN, _CLOSE, _NEWLINE = b"{}\n"
AWKWARD = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""What a key that a decoder is made for cannot have in it."""
_TOGETHER = 250
"""Lines that are tried at once: when one of them is not plain, each is tried alone."""


def present(column: Floats) -> NDArray[np.bool_]:
    """Where a column has a number; a recorded NaN is one."""
    return column.view(np.uint64) != _BITS


def absent(rows: int) -> Floats:
    """A column without a number."""
    return np.full(rows, ABSENT)


@dataclass(frozen=True)
class Columns:
    """The rows of one file, or of one run.

    `values` maps each key to its numbers, in order of the keys' first appearance; `odd` holds what
    else there is: texts, booleans, nulls, lists, objects, integers beyond 2**53. `malformed` and
    `torn` count as in `metrics.Parsed`.
    """

    rows: int = 0
    values: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    odd: Mapping[str, Odd] = field(default_factory=dict[str, Odd])
    malformed: int = 0
    torn: int = 0

    def column(self, key: str) -> Floats:
        """The numbers of `key`, ABSENT where there is none."""
        found = self.values.get(key)
        return absent(self.rows) if found is None else found

    def numbers(self, key: str) -> Floats:
        """The same with integers beyond 2**53, as near as a float is."""
        values = self.column(key)
        odd = ((row, as_float(value)) for row, value in self.odd.get(key, {}).items())
        found = {row: number for row, number in odd if number is not None}
        if found:
            values = values.copy()
            values[list(found)] = list(found.values())
        return values

    def has(self, key: str) -> NDArray[np.bool_]:
        """Which rows have `key`, whatever its value."""
        mask = present(self.column(key))
        for row in self.odd.get(key, ()):
            mask[row] = True
        return mask

    def with_any(self, keys: Sequence[str] | None) -> "Columns":
        """The rows that have one of these keys; all with None."""
        if keys is None:
            return self
        mask = np.zeros(self.rows, bool)
        for key in keys:
            mask |= self.has(key)
            if mask.all():
                return self
        return self if mask.all() else self.where(mask)

    def where(self, mask: NDArray[np.bool_]) -> "Columns":
        """The rows for which `mask` is true."""
        place = np.cumsum(mask) - 1
        values = {key: column[mask] for key, column in self.values.items()}
        odd = {
            key: {int(place[row]): value for row, value in found.items() if mask[row]}
            for key, found in self.odd.items()
        }
        odd = {key: found for key, found in odd.items() if found}
        return Columns(int(mask.sum()), values, odd, self.malformed, self.torn)

    def tidy(self) -> "Columns":
        """The keys that some row has, and not those that were only expected. Those of the first row
        as they stand, then the others by the rows that first have them and their names: nobody can
        tell by their order what was expected."""
        first: dict[str, Floats] = {}
        late: list[tuple[int, str]] = []
        for key, column in self.values.items():
            odd = self.odd.get(key, {})
            # Mostly the first row has it; NaN is not equal to itself.
            if self.rows and (column[0] == column[0] or 0 in odd or present(column[:1])[0]):
                first[key] = column
                continue
            there = present(column)
            row = int(there.argmax()) if there.any() else self.rows
            row = min(row, *odd) if odd else row
            if row < self.rows:
                late.append((row, key))
        values = first | {key: self.values[key] for _, key in sorted(late)}
        return Columns(self.rows, values, self.odd, self.malformed, self.torn)

    def head(self, rows: int) -> "Columns":
        """The first `rows` rows."""
        values = {key: column[:rows] for key, column in self.values.items()}
        cut = {k: {r: v for r, v in odd.items() if r < rows} for k, odd in self.odd.items()}
        return Columns(rows, values, {k: odd for k, odd in cut.items() if odd}, self.malformed)

    def then(self, later: "Columns") -> "Columns":
        """These rows and after them those of `later`."""
        return join((self, later))


def join(parts: Sequence[Columns]) -> Columns:
    """The rows of all, one after the other."""
    values = {
        key: np.concatenate([part.column(key) for part in parts])
        for key in dict.fromkeys(chain.from_iterable(part.values for part in parts))
    }
    odd: dict[str, Odd] = {}
    start = 0
    for part in parts:
        for key, found in part.odd.items():
            odd.setdefault(key, {}).update({start + row: value for row, value in found.items()})
        start += part.rows
    malformed = sum(part.malformed for part in parts)
    return Columns(start, values, odd, malformed, parts[-1].torn if parts else 0)


def parse_columns(
    data: bytes | memoryview, keys: Sequence[str] | None = None, hint: Iterable[str] = ()
) -> Columns:
    """The rows in `data` as columns: of all keys, or of those named (each then is there, with or
    without numbers). `hint`: keys to expect, to save the finding out."""
    end = line_end(data)
    last = bytes(data[end:])
    whole = data[:end] if last else data
    if keys is None:
        found = _Reader((*_first_keys(whole), *hint), strict=True)
    else:
        # What is passed over must be text too: the decoder does not look.
        plain = is_text(data) and not any(map(AWKWARD.search, keys))
        found = _Reader(keys, strict=not plain, wanted=frozenset(keys))
    if not found.take_whole(whole):
        lines = bytes(whole).split(b"\n")
        for start in range(0, len(lines), _TOGETHER):
            found.take_all(lines[start : start + _TOGETHER])
    columns = found.columns()
    if not last.strip():
        return columns.tidy() if keys is None else columns
    tail = parse(last)
    if tail.rows:
        if keys is None and not columns.rows:  # it is the first row
            columns = Columns(malformed=columns.malformed)
        ending = _Reader(columns.values, found.strict, found.wanted)
        ending.take(last)
        columns = columns.then(ending.columns())
    else:
        columns = replace(columns, torn=tail.torn)
    return columns.tidy() if keys is None else columns


def _first_keys(data: bytes | memoryview) -> list[str]:
    """The keys of the first row, as they stand there."""
    size = 1 << 12
    while True:
        head = bytes(data[:size])
        for line in head[: head.rfind(b"\n") + 1].split(b"\n"):
            rows = parse(line).rows
            if rows:
                return [*rows[0]]
        if size >= len(data):
            return []
        size *= 8


def line_end(data: bytes | memoryview) -> int:
    """Where the last whole line ends."""
    if len(data) and data[-1] == _NEWLINE:
        return len(data)
    return bytes(data).rfind(b"\n") + 1


def line_ends(data: bytes | memoryview) -> NDArray[np.intp] | None:
    """Where the lines end, if all are whole and each begins and ends with a brace; else None.

    A decoder takes objects with any blanks between them. They are one a line when there are as many
    objects as such lines: an object that went on in the next line would have `}` and `{` with
    nothing between, which is no JSON.
    """
    if len(data) < 3 or data[0] != _OPEN or data[-1] != _NEWLINE:
        return None
    letters = np.frombuffer(data, np.uint8)
    ends = _where(letters == _NEWLINE)
    if (letters[ends - 1] != _CLOSE).any() or (letters[ends[:-1] + 1] != _OPEN).any():
        return None
    return ends


def _where(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The places of the few that are true, in half the time of `flatnonzero`: eight at a look."""
    whole = len(mask) // 8 * 8
    eights = mask[:whole].reshape(-1, 8)
    [some] = (eights.view(np.uint64)[:, 0] != 0).nonzero()
    rows, columns = eights[some].nonzero()
    return np.concatenate((some[rows] * 8 + columns, whole + np.flatnonzero(mask[whole:])))


def is_text(data: bytes | memoryview) -> bool:
    """Whether it is UTF-8 throughout."""
    if not len(data) or np.frombuffer(data, np.uint8).max() < 128:
        return True
    try:
        bytes(data).decode()
    except UnicodeDecodeError:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _decoder(keys: tuple[str, ...], strict: bool) -> "msgspec.json.Decoder[msgspec.Struct]":
    """A decoder of lines with numbers under `keys`; other keys are an error, or passed over."""
    fields = [(f"f{i}", float, ABSENT) for i in range(len(keys))]
    made = msgspec.defstruct(
        "Line",
        fields,
        rename={f"f{i}": key for i, key in enumerate(keys)},
        forbid_unknown_fields=strict,
        gc=False,
    )
    return msgspec.json.Decoder(made)


class _Reader:
    """Takes lines, gives columns. `wanted` None: all keys."""

    def __init__(
        self, keys: Iterable[str], strict: bool, wanted: frozenset[str] | None = None
    ) -> None:
        self.wanted = wanted
        self._keys = dict.fromkeys(key for key in keys if not AWKWARD.search(key))
        self.strict = strict
        self._rows = 0
        self._malformed = 0
        self._read: list[
            msgspec.Struct
        ] = []  # what the decoder made of lines, and which rows they are
        self._places: list[int] = []
        self._lines: list[bytes] = []
        self._block: bytes | memoryview | None = None  # or instead of the lines, all of them
        self._parts: list[_Part] = []
        self._slow: list[tuple[int, dict[str, object]]] = []
        self._decode = self._make()

    def _make(self) -> Callable[[bytes], msgspec.Struct]:
        return _decoder(tuple(self._keys), self.strict).decode if self._keys else _refuse

    def take_whole(self, data: bytes | memoryview) -> bool:
        """Whole lines at once, if all are plain; else takes none."""
        ends = line_ends(data) if self._keys else None
        if ends is None:
            return False
        count = len(ends)
        try:
            read = _decoder(tuple(self._keys), self.strict).decode_lines(data)
        except (ValueError, RecursionError):
            return False
        if len(read) != count:
            return False
        self._read, self._block, self._places = read, data, list(range(count))
        self._rows = count
        return True

    def take_all(self, lines: list[bytes]) -> None:
        try:
            read = [*map(self._decode, lines)]  # all or, when one is refused, none
        except (ValueError, RecursionError):
            for line in lines:
                self.take(line)
            return
        self._read += read
        self._lines += lines
        self._places += range(self._rows, self._rows + len(lines))
        self._rows += len(lines)

    def take(self, line: bytes) -> None:
        try:
            self._read.append(self._decode(line))
        except (ValueError, RecursionError):
            self._take_slowly(line)
            return
        self._lines.append(line)
        self._places.append(self._rows)
        self._rows += 1

    def _take_slowly(self, line: bytes) -> None:
        rows = parse(line + b"\n").rows
        if not rows:
            self._malformed += bool(line.strip())
            return
        row = self._chosen(rows[0])
        self._slow.append((self._rows, row))
        self._rows += 1
        new = [key for key in row if key not in self._keys and not AWKWARD.search(key)]
        if new and len(self._keys) + len(new) <= _WIDEST:
            self._flush()
            self._keys.update(dict.fromkeys(new))
            self._decode = self._make()

    def _chosen(self, row: dict[str, object]) -> dict[str, object]:
        if self.wanted is None:
            return row
        return {key: value for key, value in row.items() if key in self.wanted}

    def _flush(self) -> None:
        """What was read quickly becomes an array."""
        if not self._read:
            return
        keys = tuple(self._keys)
        block = _turned(self._read, len(keys))
        rows = _large(block)
        if rows and self._block is not None:
            self._lines = bytes(self._block).split(b"\n")
        for row in rows:
            # So large that an integer would not be exact: read again, slowly.
            found = parse(self._lines[row] + b"\n").rows[0]
            self._slow.append((self._places[row], self._chosen(found)))
            block[:, row] = ABSENT
        self._parts.append(_Part(keys, block, np.array(self._places)))
        self._read, self._places, self._lines, self._block = [], [], [], None

    def columns(self) -> Columns:
        self._flush()
        if len(self._parts) == 1 and not self._slow:
            only = self._parts[0]
            values = dict(zip(only.keys, only.block, strict=True))
            return Columns(self._rows, values, {}, self._malformed)
        values = {key: absent(self._rows) for key in self._keys}
        for part in self._parts:
            for key, column in zip(part.keys, part.block, strict=True):
                values[key][part.places] = column
        odd = _put(self._slow, values, self._rows)
        return Columns(self._rows, values, odd, self._malformed)


def _large(block: Floats) -> list[int]:
    """The columns in which a number is so large that a float may not hold it exactly."""
    # Two quick looks are enough, but where there is a NaN.
    if block.size and block.min() > -EXACT and block.max() < EXACT:
        return []
    return np.flatnonzero((np.abs(block) >= EXACT).any(axis=0)).tolist()


def _put(
    rows: Iterable[tuple[int, Mapping[str, object]]], values: dict[str, Floats], count: int
) -> dict[str, Odd]:
    """Enter rows into columns, each in its place of `count`; gives what is no number."""
    odd: dict[str, Odd] = {}
    for place, row in rows:
        for key, value in row.items():
            if key not in values:
                values[key] = absent(count)
            number = _exact(value)
            if number is None:
                odd.setdefault(key, {})[place] = value
            else:
                values[key][place] = number
    return odd


def columns_of(rows: Sequence[Mapping[str, object]]) -> Columns:
    """Rows as columns."""
    values: dict[str, Floats] = {}
    odd = _put(enumerate(rows), values, len(rows))
    return Columns(len(rows), values, odd)


class _Part(NamedTuple):
    """Rows that one decoder read (a row of `block` a key), and their places in the file."""

    keys: tuple[str, ...]
    block: Floats
    places: NDArray[np.intp]


_PACKER = msgspec.msgpack.Encoder()
_AT_A_TIME = 500
"""Fewer tuples than it takes for Python to look for garbage among all there is."""


def _turned(read: Sequence[msgspec.Struct], width: int) -> Floats:
    """The numbers of structs of floats, a row a field. MessagePack is the quickest way to have them
    in memory one after the other: each is a byte that says so and eight that are the number, and
    before those of a struct stands their count (before all of them the count of structs)."""
    block = np.empty((width, len(read)))
    for begin in range(0, len(read), _AT_A_TIME):
        some = read[begin : begin + _AT_A_TIME]
        raw = _PACKER.encode([*map(msgspec.structs.astuple, some)])
        head, stride = _head(len(some)), _head(width) + 9 * width
        if len(raw) != head + len(some) * stride:
            raise RuntimeError("msgspec does not write floats as nine bytes")
        start = head + _head(width) + 1
        found = np.ndarray((width, len(some)), ">f8", raw, start, (9, stride))
        block[:, begin : begin + len(some)] = found
    return block


def _head(count: int) -> int:
    """The bytes that MessagePack takes to say how long an array is."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _refuse(_: bytes) -> NoReturn:
    raise ValueError("no key is known yet")


def _exact(value: object) -> float | None:
    """A number that a float holds exactly, or a text that stands for NaN or an infinity; None for
    anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= EXACT:
        return None
    return as_number(value)
