"""Rollout summaries as columns: what `flat` says of each record, many at a time.

A record goes through a decoder made for the metrics seen so far, all of them numbers, and from
there to columns in one go. A record that it refuses (a new metric, a text among the numbers, no
JSON) is read by the slow parser: what `flat` makes of it counts. Pure: bytes in, arrays out.
"""

import bisect
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sweeper.common.json_values import list_of, table_of
from sweeper.metrics.rows import Row, parse
from sweeper.metrics.tables.columns import (
    ABSENT,
    AWKWARD,
    EXACT,
    Columns,
    Floats,
    Odd,
    absent,
    columns_of,
    is_text,
    line_ends,
    present,
)
from sweeper.metrics.tables.summary_rows import (
    COLUMNS,
    LABELS,
    SummaryFile,
    flat,
    labels_of,
    metric_column,
)

_RECORDED = tuple(key for key in COLUMNS if key not in ("turns", "ob_len", "ac_len", "attempt"))
"""Those that a record has as they are."""
_TOTALS = ("ob_len", "ac_len")
_WIDEST = 500
_NEWLINE = 0x0A
_UNSAID_BITS = 0x7FF8_0000_5357_4551
[_UNSAID] = struct.unpack("<d", struct.pack("<Q", _UNSAID_BITS))
"""Where a record does not have the field at all: another NaN than ABSENT."""


def _texts(
    file: SummaryFile, split: str | msgspec.UnsetType, tags: tuple[str, ...]
) -> tuple[str, str, str]:
    """The same of a decoded record."""
    return file.name, file.name if split is msgspec.UNSET else split, ",".join(tags)


class _Line(NamedTuple):
    """What one decoder and some number of turns have in common: where in the bytes of a record each
    number stands, and how many bytes those are."""

    places: Mapping[tuple[str, int, str], int]
    size: int


class _Decoder:
    """Decodes records with numbers under the metrics `turns` in turns, `whole` beside them."""

    def __init__(self, turns: Sequence[str], whole: Sequence[str]) -> None:
        self.turns, self.whole = tuple(turns), tuple(whole)
        own = _numbers("Metrics", self.turns, strict=True)
        total = _numbers("TrajectoryMetrics", self.whole, strict=True)
        lengths = [(key, float, ABSENT) for key in _TOTALS]
        metrics = ("metrics", own, msgspec.field(default_factory=own))
        turn = msgspec.defstruct("Turn", [metrics, *lengths], gc=False)
        self.made = msgspec.defstruct(
            "Record",
            [
                ("steps", list[turn], msgspec.field(default_factory=list[object])),
                ("trajectory_metrics", total, msgspec.field(default_factory=total)),
                *((key, float | None, _UNSAID) for key in _RECORDED),
                ("split", str | msgspec.UnsetType, msgspec.UNSET),
                ("tags", tuple[str, ...], ()),
            ],
            gc=False,
        )
        self._turn, self._own, self._total = turn, own, total
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.made)
        self.decode, self.decode_lines = decoder.decode, decoder.decode_lines
        self._lines: dict[int, _Line | None] = {}

    def line(self, turns: int) -> _Line | None:
        """How MessagePack lays a record with so many turns out, found by one in which each number
        is another; None when its bytes tell nothing."""
        if turns not in self._lines:
            self._lines[turns] = self._laid_out(turns)
        return self._lines[turns]

    def _laid_out(self, turns: int) -> _Line | None:
        values = map(float, range(1, 1 << 20))
        told: dict[tuple[str, int, str], float] = {}

        def numbered(kind: str, turn: int, keys: Sequence[str]) -> list[float]:
            found = [next(values) + 0.5 for _ in keys]
            told.update({(kind, turn, key): n for key, n in zip(keys, found, strict=True)})
            return found

        steps = [
            self._turn(
                self._own(*numbered("turn", turn, self.turns)), *numbered("total", turn, _TOTALS)
            )
            for turn in range(turns)
        ]
        whole = self._total(*numbered("whole", 0, self.whole))
        record = self.made(steps, whole, *numbered("record", 0, _RECORDED), None, None)
        raw = _PACKER.encode(record)
        sought = {place: struct.pack(">Bd", _FLOAT, value) for place, value in told.items()}
        if any(raw.count(one) != 1 for one in sought.values()):
            return None
        return _Line({place: raw.index(one) + 1 for place, one in sought.items()}, len(raw))


_PACKER = msgspec.msgpack.Encoder()
_FLOAT = 0xCB
"""How MessagePack begins a float of eight bytes."""
_TEXTS, _STEPS = operator.attrgetter("split", "tags"), operator.attrgetter("steps")
_TEXTLESS = 2
"""Bytes that the two texts take once they are None: they stand last, after all numbers."""


def _numbers(name: str, keys: Sequence[str], strict: bool) -> type[msgspec.Struct]:
    fields = [(f"f{i}", float, ABSENT) for i in range(len(keys))]
    rename = {f"f{i}": key for i, key in enumerate(keys)}
    return msgspec.defstruct(name, fields, rename=rename, forbid_unknown_fields=strict, gc=False)


class _Chunk(NamedTuple):
    """Lines that were read as they are, from the row `start` on: of which files, and how many."""

    start: int
    data: bytes
    files: list[tuple[SummaryFile, int]]

    def record(self, row: int) -> tuple[Row, SummaryFile]:
        """The record of a row, by the slow parser, and its file."""
        at = row - self.start
        [record] = parse(self.data.split(b"\n")[at] + b"\n").rows
        for file, count in self.files:
            if at < count:
                return record, file
            at -= count
        raise IndexError(row)


class _Taken(NamedTuple):
    """Records of one decoder that have so many turns and, when they are encoded, `texts` bytes of
    texts each; and the rows that they are."""

    decoder: _Decoder
    turns: int
    texts: int
    records: list[msgspec.Struct]
    rows: NDArray[np.intp]


class SummaryReader:
    """Reads the summaries of run after run: what it has seen in one saves time with the next."""

    def __init__(self) -> None:
        self._decoder = _Decoder((), ())

    def read(self, files: Sequence[tuple[SummaryFile, bytes]]) -> "Summaries":
        """The rows of these files, one file after the other."""
        return _Reading(self, files).result()

    @property
    def decoder(self) -> _Decoder:
        """The decoder for all that was seen."""
        return self._decoder

    def learn(self, record: Mapping[str, object]) -> None:
        """Know the metrics of a record from now on."""
        old = self._decoder
        steps = [table_of(step) for step in list_of(record.get("steps"))]
        turns = dict.fromkeys(
            (*old.turns, *(key for step in steps for key in _plain(step.get("metrics"))))
        )
        whole = dict.fromkeys((*old.whole, *_plain(record.get("trajectory_metrics"))))
        known = len(old.turns) + len(old.whole)
        if known < len(turns) + len(whole) <= _WIDEST:
            self._decoder = _Decoder([*turns], [*whole])


def _plain(metrics: object) -> list[str]:
    """The keys that a decoder can be made for: numbers, whose columns nothing else is called."""
    return [
        key
        for key, value in table_of(metrics).items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (AWKWARD.search(key) or key.startswith("metrics."))
    ]


class Summaries(NamedTuple):
    """Rows of numbers, of which those called as in `LABELS` number the texts in `labels`; and of
    each file how many of them are its, and how many lines could not be read."""

    columns: Columns
    labels: dict[str, list[str]]
    rows: list[int]
    malformed: list[int]


class _Reading:
    """One reading of some files."""

    def __init__(self, reader: SummaryReader, files: Sequence[tuple[SummaryFile, bytes]]) -> None:
        self._reader = reader
        self._files = files
        self._count = 0
        self._chunks: list[_Chunk] = []
        self._taken: list[_Taken] = []
        self._slow: list[tuple[int, Row]] = []
        self._texts: dict[tuple[str, str, str], int] = {}
        self._labels: list[int] = []

    def result(self) -> Summaries:
        malformed = [0] * len(self._files)
        plain = self._take_whole(self._files)
        rows: list[int] = plain or []
        if plain is None:
            for number, (file, data) in enumerate(self._files):
                before = self._count
                if self._take_whole([(file, data)]) is None:
                    malformed[number] = sum([self._take(file, line) for line in data.split(b"\n")])
                rows.append(self._count - before)
        columns, labels = self._columns()
        return Summaries(columns, labels, rows, malformed)

    def _take_whole(self, files: Sequence[tuple[SummaryFile, bytes]]) -> list[int] | None:
        """Files that are plain throughout at once; gives the rows of each. Else takes none."""
        data = b"".join(data for _, data in files)
        if not data:
            return [0] * len(files)
        ends = line_ends(data)
        if ends is None or any(one and one[-1] != _NEWLINE for _, one in files):
            return None
        sizes = np.cumsum([len(one) for _, one in files])
        rows: list[int] = np.diff(np.searchsorted(ends, sizes), prepend=0).tolist()
        counts = [(file, count) for (file, _), count in zip(files, rows, strict=True)]
        try:
            read = self._reader.decoder.decode_lines(data) if is_text(data) else []
        except (ValueError, RecursionError):
            return None
        if len(read) != len(ends):
            return None
        self._chunks.append(_Chunk(self._count, data, counts))
        self._keep(counts, read)
        return rows

    def _take(self, file: SummaryFile, line: bytes) -> bool:
        """One line; whether it is one that cannot be read."""
        try:
            read = [self._reader.decoder.decode(line)] if is_text(line) else []
        except (ValueError, RecursionError):
            read = []
        if read:
            self._chunks.append(_Chunk(self._count, line, [(file, 1)]))
            self._keep([(file, 1)], read)
            return False
        rows = parse(line + b"\n").rows
        if not rows:
            return bool(line.strip())
        self._reader.learn(rows[0])
        self._slow.append((self._count, flat(rows[0], file)))
        self._labels.append(self._number(labels_of(rows[0], file)))
        self._count += 1
        return False

    def _number(self, texts: tuple[str, str, str]) -> int:
        return self._texts.setdefault(texts, len(self._texts))

    def _keep(self, files: Sequence[tuple[SummaryFile, int]], records: list[Any]) -> None:
        """Records of a decoder, so many of each file: their texts are numbered, and they are parted
        by how many bytes they will take."""
        told = [*map(_TEXTS, records)]
        size = _TEXTLESS
        if len(set(told)) == 1 and told[0][0] is not msgspec.UNSET:
            split, tags = told[0]
            size = len(_PACKER.encode(split)) + len(_PACKER.encode(tags))
            for file, count in files:
                self._labels += [self._number(_texts(file, split, tags))] * count
        else:
            files_of = (file for file, count in files for _ in range(count))
            for record, file, (split, tags) in zip(records, files_of, told, strict=True):
                self._labels.append(self._number(_texts(file, split, tags)))
                record.split = record.tags = None
        decoder, start = self._reader.decoder, self._count
        self._count += len(records)
        turns = [*map(len, map(_STEPS, records))]
        if len(set(turns)) == 1:
            rows = np.arange(start, self._count)
            self._taken.append(_Taken(decoder, turns[0], size, records, rows))
            return
        for count in dict.fromkeys(turns):
            own = [row for row, other in enumerate(turns) if other == count]
            some = [records[row] for row in own]
            self._taken.append(_Taken(decoder, count, size, some, np.array(own) + start))

    def _columns(self) -> tuple[Columns, dict[str, list[str]]]:
        values: dict[str, Floats] = {}
        again: set[int] = set()
        for taken in self._joined():
            found = _values(taken)
            if found is None:
                again.update(taken.rows.tolist())
                continue
            rows = taken.rows
            beside = rows[-1] - rows[0] == len(rows) - 1  # a slice is quicker
            place = slice(rows[0], rows[-1] + 1) if beside else rows
            large = np.zeros(len(rows), bool)
            for key, column in found.items():
                if key not in values:
                    values[key] = absent(self._count)
                values[key][place] = column
                large |= np.abs(column) >= EXACT
            again.update(rows[large].tolist())
        self._file_numbers(values)
        slow = dict(self._slow)
        for row in again:  # what a float does not hold exactly, or was not laid out as thought
            slow[row] = flat(*self._record(row))
        odd = self._put_slow(slow, values)
        labels = self._put_labels(values)
        return Columns(self._count, values, odd), labels

    def _joined(self) -> list[_Taken]:
        """Those of one kind as one."""
        if len(self._taken) == 1:
            return self._taken
        found: dict[tuple[int, int, int], list[_Taken]] = {}
        for taken in self._taken:
            kind = id(taken.decoder), taken.turns, taken.texts
            found.setdefault(kind, []).append(taken)
        return [
            several[0]._replace(
                records=[record for one in several for record in one.records],
                rows=np.concatenate([one.rows for one in several]),
            )
            for several in found.values()
        ]

    def _file_numbers(self, values: dict[str, Floats]) -> None:
        """What the place of a file says of its rows."""
        for chunk in self._chunks:
            start = chunk.start
            for file, count in chunk.files:
                own = slice(start, start + count)
                start += count
                if "attempt" not in values:
                    values["attempt"] = absent(self._count)
                values["attempt"][own] = file.attempt
                if "iteration" in values:
                    iterations = values["iteration"][own]
                    iterations[iterations.view(np.uint64) == _UNSAID_BITS] = file.iteration
        for key in _RECORDED:
            if key in values:
                values[key][values[key].view(np.uint64) == _UNSAID_BITS] = ABSENT

    def _record(self, row: int) -> tuple[Row, SummaryFile]:
        starts = [chunk.start for chunk in self._chunks]
        return self._chunks[bisect.bisect_right(starts, row) - 1].record(row)

    def _put_slow(self, slow: Mapping[int, Row], values: dict[str, Floats]) -> dict[str, Odd]:
        if not slow:
            return {}
        made, rows = columns_of([*slow.values()]), [*slow]
        for column in values.values():
            column[rows] = ABSENT
        for key, column in made.values.items():
            if key not in values:
                values[key] = absent(self._count)
            values[key][rows] = column
        return {k: {rows[at]: v for at, v in found.items()} for k, found in made.odd.items()}

    def _put_labels(self, values: dict[str, Floats]) -> dict[str, list[str]]:
        numbered: dict[str, dict[str, int]] = {label: {} for label in LABELS}
        codes = [
            [
                known.setdefault(text, len(known))
                for known, text in zip(numbered.values(), texts, strict=True)
            ]
            for texts in self._texts
        ]
        own = np.array(self._labels, np.intp)
        table = np.array(codes, np.float64).reshape(-1, len(LABELS))
        for place, label in enumerate(LABELS):
            values[label] = table[own, place] if self._labels else absent(0)
        return {label: [*known] for label, known in numbered.items()}


def _values(taken: _Taken) -> dict[str, Floats] | None:
    """The columns of records of one kind; None when they are laid out in no way that is known."""
    line, decoder, count = taken.decoder.line(taken.turns), taken.decoder, len(taken.records)
    if line is None:
        return None
    head = 1 if count < 16 else 3 if count < 1 << 16 else 5
    size = line.size - _TEXTLESS + taken.texts
    raw = _PACKER.encode(taken.records)
    if len(raw) != head + count * size:
        for record in taken.records:
            for key in _RECORDED:
                if getattr(record, key) is None:
                    setattr(record, key, ABSENT)
        raw = _PACKER.encode(taken.records)
        if len(raw) != head + count * size:
            return None

    def numbers(kind: str, turn: int, key: str) -> Floats:
        place = head + line.places[kind, turn, key]
        return np.ndarray((count,), ">f8", raw, place, (size,)).astype(np.float64)

    found = {key: numbers("record", 0, key) for key in _RECORDED}
    found["turns"] = np.full(count, float(taken.turns))
    turns = range(taken.turns)
    for key in _TOTALS:
        found[key] = _added([numbers("total", turn, key) for turn in turns], count)[0]
    for key in decoder.turns:
        total, having = _added([numbers("turn", turn, key) for turn in turns], count)
        with np.errstate(invalid="ignore"):
            found[metric_column(key)] = np.where(having > 0, total / np.maximum(having, 1), ABSENT)
    for key in decoder.whole:
        own = numbers("whole", 0, key)
        name = metric_column(key)
        found[name] = np.where(present(own), own, found[name]) if name in found else own
    return found


def _added(columns: Sequence[Floats], count: int) -> tuple[Floats, NDArray[np.intp]]:
    """The sum of what is there in each row, and of how many that is."""
    total, having = np.zeros(count), np.zeros(count, np.intp)
    for column in columns:
        there = present(column)
        total[there] += column[there]
        having += there
    return total, having
