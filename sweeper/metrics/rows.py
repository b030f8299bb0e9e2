"""Reads `metrics.jsonl` and `checkpoints.jsonl`: bytes in, rows out, without disk access or pandas.
A slower parser reads lines that the quick one rejects (`NaN`, `Infinity`). Bad lines are
counted."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeper.common.json_values import decode, is_deep

Row = dict[str, object]

_SHOWN = 3
_LONGEST = 60
"""The maximum number of characters that a message quotes. `_SHOWN` is the maximum number of keys
that it names."""


class Parsed(NamedTuple):
    """The content of one file. `rows` are its JSON objects in file order. `malformed` counts the
    complete lines that are not JSON objects. `torn` is 1 if the last line is incomplete (after a
    crash, or while a program is writing it)."""

    rows: list[Row]
    malformed: int
    torn: int


class Merged(NamedTuple):
    """The merged rows of a run's attempts: one row per step, by ascending step, then the rows
    without a step (`step` is None). `malformed` and `torn` are the sums over the attempts."""

    rows: list[Row]
    malformed: int
    torn: int


NO_ROWS = Merged([], 0, 0)


class Point(NamedTuple):
    """A value of one key, and the step at which it was recorded (None for a line without a
    step)."""

    step: float | None
    value: float


def parse(data: bytes) -> Parsed:
    """Parse lines with one JSON object each. Blank lines are ignored."""
    if not data:
        return Parsed([], 0, 0)
    from msgspec.json import decode as loads  # imported late: many commands read no metrics

    lines = data.split(b"\n")
    last = lines.pop()  # the part after the last newline is empty or an incomplete line
    rows: list[Row] = []
    malformed = 0
    for line in lines:
        row = _parse_object(line, loads)
        if row is not None:
            rows.append(row)
        elif line.strip():
            malformed += 1
    row = _parse_object(last, loads)
    if row is not None:
        rows.append(row)
    return Parsed(rows, malformed, int(row is None and bool(last.strip())))


def _parse_object(line: bytes, loads: Callable[[bytes], object]) -> Row | None:
    try:
        value: object = decode(line) if is_deep(line) else loads(line)
    except (ValueError, RecursionError):
        if not line.strip():
            return None
        try:
            value = decode(line)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]


def merge(attempts: Iterable[Parsed]) -> Merged:
    """Merge the attempts of a run, oldest first, into one history.

    If the lowest step of an attempt is 10, rows of earlier attempts from step 10 on are dropped,
    because this attempt trained these steps again. A resumed attempt begins with copies of earlier
    rows, so its rows are the whole history. If one attempt has several values of a key at one step,
    the last is kept. Rows without a step are kept only of the latest attempt that has such rows.
    """
    by_step: dict[float, Row] = {}
    loose: list[Row] = []
    malformed = torn = 0
    for parsed in attempts:
        without_step: list[Row] = []
        steps = [as_step(row.get("step")) for row in parsed.rows]
        begin = min((step for step in steps if step is not None), default=math.inf)
        by_step = {step: row for step, row in by_step.items() if step < begin}
        for step, row in zip(steps, parsed.rows, strict=True):
            if step is None:
                without_step.append({**row, "step": None})
            elif step in by_step:
                by_step[step].update(row)
            else:
                by_step[step] = dict(row)
        loose = without_step or loose
        malformed += parsed.malformed
        torn += parsed.torn
    rows = [by_step[step] for step in sorted(by_step)]
    return Merged(rows + loose, malformed, torn)


def written(attempts: Sequence[Parsed]) -> list[Row]:
    """Return the rows that each attempt of a run wrote itself, one row for each of its steps. Rows
    that a later attempt discarded are included. The copies of earlier rows with which a resumed
    attempt begins are left out."""
    rows: list[Row] = []
    for number, parsed in enumerate(attempts):
        copies = max(
            (_alike(parsed.rows, earlier.rows) for earlier in attempts[:number]), default=0
        )
        rows += merge([parsed._replace(rows=parsed.rows[copies:])]).rows
    return rows


def _alike(rows: Sequence[Row], others: Sequence[Row]) -> int:
    """Return how many rows at the beginning of two lists are pairwise equal. Rows with the same
    `repr` are equal too, because NaN is not equal to itself."""
    count = 0
    for row, other in zip(rows, others, strict=False):
        if row != other and repr(row) != repr(other):
            break
        count += 1
    return count


def describe(value: object) -> str:
    """Describe a recorded value that is not a number: `an object with loss and acc`."""
    if isinstance(value, dict):
        keys = [str(key) for key in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        more = ", ..." if len(keys) > _SHOWN else ""
        return f"an object with {', '.join(keys[:_SHOWN])}{more}" if keys else "an empty object"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value[:_LONGEST] if isinstance(value, str) else value)


_FORMATS = (
    (b"version https://git-lfs", "it is a Git LFS pointer, not the file: run `git lfs pull`"),
    (b"\xff\xfe", "it is UTF-16: convert it to UTF-8"),
    (b"\xfe\xff", "it is UTF-16: convert it to UTF-8"),
    (b"\x1f\x8b", "it is compressed with gzip: decompress it"),
)


def describe_malformed(data: bytes) -> str:
    """Describe why lines at the beginning of a file are not JSON objects. Name the file's format;
    if the format is unknown, quote the first line that is not a JSON object."""
    for begin, words in _FORMATS:
        if data.startswith(begin):
            return words
    if data[1:2] == b"\0" or data[:1] == b"\0":
        return "it is UTF-16: convert it to UTF-8"
    lines = data.split(b"\n")
    first = next((line for line in lines if parse(line + b"\n").malformed), b"")
    return f"the first: {shorten(first.decode('utf-8', 'replace').strip())}"


def shorten(text: str) -> str:
    """Shorten a string that a message quotes."""
    return f"{text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}"


def as_step(value: object) -> float | None:
    """Return a recorded step unchanged; None if it is not a finite number."""
    number = as_float(value)
    return value if number is not None and math.isfinite(number) else None  # pyright: ignore[reportReturnType]


def as_float(value: object) -> float | None:
    """Return a recorded number as a float; None for anything else, including booleans. An
    integer that is too large for a float becomes infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_NOT_FINITE = {
    f"{sign}{word}": -value if sign == "-" else value
    for sign in ("", "+", "-")
    for word, value in (("nan", math.nan), ("inf", math.inf), ("infinity", math.inf))
}


def as_number(value: object) -> float | None:
    """Return a recorded metric as a float: a number, or a string for NaN or an infinity, which
    strict JSON lacks. None for anything else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value.strip().lower())
    return as_float(value)


_PASSING = 2
"""The number of rows at the end that may lack the metric because they have other contents, such as
a summary."""


def are_missing(after: int, gap: int, *, named: bool) -> bool:
    """Return whether the last `after` rows, which have no number for a metric, should have one.
    `gap` is the largest number of consecutive earlier rows without a number, for example between
    two evaluations. `named` is True if one of the last rows has the metric's key, as with null."""
    return after > gap and (named or after > _PASSING)


def merge_checkpoints(attempts: Iterable[Parsed]) -> list[Row]:
    """Return the checkpoint records of a run's attempts, oldest first. The key `attempt` of each
    record is the number of the attempt that wrote it (from 1). A record replaces an earlier record
    of the same name. A resumed attempt starts with copies of earlier records; a copy keeps the
    number of the attempt that wrote the original."""
    records: dict[object, Row] = {}
    for attempt, parsed in enumerate(attempts, start=1):
        for row in parsed.rows:
            name = row.get("name")
            key = name if isinstance(name, str) else json.dumps(row, sort_keys=True)
            earlier = records.get(key)
            if earlier is None or {**earlier, "attempt": 0} != {**row, "attempt": 0}:
                records.pop(key, None)
                records[key] = {**row, "attempt": attempt}
    return list(records.values())


def ends_final(records: Sequence[Mapping[str, object]]) -> bool:
    """Return whether the last of these checkpoint records is final: its key `final` is true. A
    record without this key is final if its name is `final`, as in tinker-cookbook."""
    return any(
        record.get("final", record.get("name") == "final") is True for record in records[-1:]
    )


def numbers(rows: Sequence[Row], key: str) -> list[Point]:
    """Return the values of `key` that are numbers (see `as_number`), including NaN and infinities,
    in the order of `rows`. All other values, and rows without the key, are skipped."""
    return [
        Point(step if isinstance(step := row["step"], int | float) else None, value)
        for row in rows
        if (value := as_number(row.get(key))) is not None
    ]
