"""Reading `metrics.jsonl` and `checkpoints.jsonl`: bytes in, rows out. Pure: no disk, no pandas.

Nothing that a recipe wrote is lost for speed: a line that the quick parser refuses (`NaN` and
`Infinity`, which Python's `json.dumps` writes) is read by the slow one, a key may first appear in
the last line, values keep their types. What cannot be read is skipped and counted.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sweeper.model.decoding import decode, is_deep

__all__ = [
    "NO_ROWS",
    "Merged",
    "Parsed",
    "Point",
    "Row",
    "as_float",
    "as_step",
    "ends_final",
    "merge",
    "merge_checkpoints",
    "numbers",
    "parse",
]

Row = dict[str, object]


class Parsed(NamedTuple):
    """One file's lines.

    `rows` are its JSON objects in file order. `malformed` counts the whole lines that are no JSON
    object; `torn` is 1 when the last line was cut short by a crash, or is being written now.
    """

    rows: list[Row]
    malformed: int
    torn: int


class Merged(NamedTuple):
    """The rows of all attempts of one run: one a step, steps ascending, then the rows that have
    no step (`step` is None there), and the counts of what could not be read."""

    rows: list[Row]
    malformed: int
    torn: int


NO_ROWS = Merged([], 0, 0)


class Point(NamedTuple):
    """A value of one key and the step it was recorded at (None: a line without a step)."""

    step: float | None
    value: float


def parse(data: bytes) -> Parsed:
    """The JSON objects in `data`, one a line; blank lines count for nothing."""
    if not data:
        return Parsed([], 0, 0)
    from msgspec.json import decode as loads  # not every command reads metrics

    lines = data.split(b"\n")
    last = lines.pop()  # what follows the last newline: nothing, or a line without its end
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
    """The attempts of a run, oldest first, as one history.

    Per (step, key) the later attempt wins, and within one file the later line. Rows without a
    step cannot be told apart by anything, and an attempt that resumed begins with copies of them:
    those of the latest attempt that has any are the ones that count.
    """
    by_step: dict[float, Row] = {}
    loose: list[Row] = []
    malformed = torn = 0
    for parsed in attempts:
        own: list[Row] = []
        for row in parsed.rows:
            step = as_step(row.get("step"))
            if step is None:
                own.append({**row, "step": None})
            elif step in by_step:
                by_step[step].update(row)
            else:
                by_step[step] = dict(row)
        loose = own or loose
        malformed += parsed.malformed
        torn += parsed.torn
    rows = [by_step[step] for step in sorted(by_step)]
    return Merged(rows + loose, malformed, torn)


def as_step(value: object) -> float | None:
    """A recorded step, as it was written; None for what is none: no number, or no finite one."""
    number = as_float(value)
    return value if number is not None and math.isfinite(number) else None  # pyright: ignore[reportReturnType]


def as_float(value: object) -> float | None:
    """A recorded number as a float; None for what is none (booleans too). JSON's integers have
    no end: one that no float can hold is infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def merge_checkpoints(attempts: Iterable[Parsed]) -> list[Row]:
    """Checkpoint records of the attempts of a run, oldest first, each with its `attempt` (from
    1). A record with the name of an earlier one replaces it: a resumed attempt starts with copies
    of the records before it, and those keep the attempt that wrote them."""
    records: dict[object, Row] = {}
    for attempt, parsed in enumerate(attempts, start=1):
        for row in parsed.rows:
            name = row.get("name")
            key = name if isinstance(name, str) else json.dumps(row, sort_keys=True)
            known = records.get(key)
            if known is None or {**known, "attempt": 0} != {**row, "attempt": 0}:
                records.pop(key, None)
                records[key] = {**row, "attempt": attempt}
    return list(records.values())


def ends_final(records: Sequence[Mapping[str, object]]) -> bool:
    """Whether the last of these checkpoint records is a final one: marked so, or without a mark
    named so, as tinker-cookbook does."""
    return any(
        record.get("final", record.get("name") == "final") is True for record in records[-1:]
    )


def numbers(rows: Sequence[Row], key: str) -> list[Point]:
    """The values of `key` that are numbers, NaN and infinities among them, in the order of
    `rows`. Strings, booleans, nulls and rows without the key are passed over."""
    return [
        Point(step if isinstance(step := row["step"], int | float) else None, value)
        for row in rows
        if (value := as_float(row.get(key))) is not None
    ]
