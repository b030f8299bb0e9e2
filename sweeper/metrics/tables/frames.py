"""Columns of many runs as one table: for pandas, and for SQL."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sweeper.metrics.tables.columns import ABSENT, Columns, Floats, present
from sweeper.sweep.run_record import RUN_KEY

if TYPE_CHECKING:
    import pandas

_WHOLE = 2.0**53


class Part(NamedTuple):
    """The rows of one run: what is the same in all of them, then columns. `notes` say what is odd
    about its files."""

    common: Mapping[str, str]
    columns: Columns
    notes: tuple[str, ...] = ()


Rename = Callable[[str], str]


def _keys(parts: Sequence[Part], first: Sequence[str]) -> list[str]:
    names = dict.fromkeys(first)
    for part in parts:
        names.update(dict.fromkeys(part.columns.values))
    return list(names)


def _stacked(parts: Sequence[Part], keys: Sequence[str]) -> Floats:
    """Return one row per key, the runs' columns one after the other."""
    total = sum(part.columns.rows for part in parts)
    block = np.empty((len(keys), total))
    for place, key in enumerate(keys):
        start = 0
        row = block[place]
        for part in parts:
            end = start + part.columns.rows
            row[start:end] = part.columns.values.get(key, ABSENT)
            start = end
    return block


def _odd(parts: Sequence[Part], keys: frozenset[str]) -> dict[str, dict[int, object]]:
    cells: dict[str, dict[int, object]] = {}
    start = 0
    for part in parts:
        for key, odd in part.columns.odd.items():
            if key in keys:
                cells.setdefault(key, {}).update({start + row: v for row, v in odd.items()})
        start += part.columns.rows
    return cells


def _is_whole(column: Floats) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(((column == np.floor(column)) & (np.abs(column) < _WHOLE)).all())


def numbers_frame(
    parts: Sequence[Part],
    first: Sequence[str],
    rename: Rename = str,
    whole: Sequence[str] = (),
    common: Sequence[str] = RUN_KEY,
) -> "pandas.DataFrame":
    """Return a DataFrame: a category for each common value, the keys `first`, then the others in
    order of appearance. A column is float64 (NaN also where there is nothing); int64 if named in
    `whole` and all integers; objects, with None, where a key has anything but numbers."""
    import pandas

    keys = _keys(parts, first)
    block = _stacked(parts, keys)
    odd = _odd(parts, frozenset(keys))
    frame = pandas.DataFrame(block.T, columns=_index([rename(key) for key in keys]), copy=False)
    for place, key in enumerate(keys):
        if key in odd:
            values = _objects(block[place], odd[key])
            frame[rename(key)] = _series(values, frame.index)
        elif key in whole and len(frame) and _is_whole(block[place]):
            frame[rename(key)] = block[place].astype(np.int64)
    counts = [part.columns.rows for part in parts]
    for place, name in enumerate(common):
        texts = dict.fromkeys(part.common[name] for part in parts)
        codes = {text: code for code, text in enumerate(texts)}
        column = np.repeat([codes[part.common[name]] for part in parts], counts)
        made = pandas.Categorical.from_codes(
            column.astype(np.int64), dtype=pandas.CategoricalDtype(_index(list(texts)))
        )
        frame.insert(place, name, pandas.Series(made, index=frame.index))
    return frame


def _index(names: Sequence[str]) -> "pandas.Index[str]":
    """Return names as an index; as plain objects if one has a lone surrogate, which pandas'
    texts refuse."""
    import pandas

    try:
        return pandas.Index(names)
    except UnicodeEncodeError:
        plain: Any = object
        return pandas.Index(names, dtype=plain)


def _series(values: list[object], index: "pandas.Index[int] | None" = None) -> "pandas.Series":
    import pandas

    try:
        return pandas.Series(values, index=index)
    except UnicodeEncodeError:
        return pandas.Series(values, index=index, dtype=object)


def rows_frame(rows: Sequence[Mapping[str, object]], first: Sequence[str]) -> "pandas.DataFrame":
    """Return rows of Python values as a DataFrame: the columns `first`, then the others in order of
    appearance. A column is of the type that pandas sees in it."""
    import pandas

    names = dict.fromkeys(first)
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = [_series([row.get(name) for row in rows]) for name in names]
    frame = pandas.DataFrame(dict(enumerate(columns)))
    return frame.set_axis(_index(list(names)), axis=1)


def _objects(column: Floats, odd: Mapping[int, object]) -> list[object]:
    values: list[object] = column.tolist()
    for row in np.flatnonzero(~present(column)).tolist():
        values[row] = odd.get(row)
    return values


def numbers_table(
    parts: Sequence[Part],
    first: Sequence[str],
    rename: Rename = str,
    whole: Sequence[str] = (),
    common: Sequence[str] = RUN_KEY,
) -> object:
    """Return the same as an Arrow table for SQL, where NULL (nothing there) is not NaN (recorded).
    What is no number is a text column of the key's name, or `<key>.text` if the key has numbers
    too."""
    pyarrow = _pyarrow()
    keys = _keys(parts, first)
    odd = _odd(parts, frozenset(keys))
    counts = [part.columns.rows for part in parts]
    arrays: list[object] = []
    names: list[str] = []
    for name in common:
        labels = {text: n for n, text in enumerate(dict.fromkeys(p.common[name] for p in parts))}
        codes = np.repeat([labels[part.common[name]] for part in parts], counts).astype(np.int32)
        values = pyarrow.array([_text(label) for label in labels], "string")
        coded = pyarrow.array(codes)
        arrays.append(pyarrow.DictionaryArray.from_arrays(coded, values))
        names.append(name)
    for key in keys:
        [column] = _stacked(parts, [key])
        mask = present(column)
        if mask.any() or key not in odd:
            if key in whole and _is_whole(column[mask]):
                column = np.where(mask, column, 0).astype(np.int64)
            arrays.append(pyarrow.array(column, mask=~mask, from_pandas=False))
            names.append(rename(key))
        if key in odd:
            texts: list[str | None] = [None] * len(column)
            for row, value in odd[key].items():
                texts[row] = _text(value)
            arrays.append(pyarrow.array(texts, "string"))
            names.append(rename(key) + (".text" if mask.any() else ""))
    return pyarrow.table(arrays, names=_apart([_text(name) or "" for name in names]))


def _pyarrow() -> ModuleType:
    """Return pyarrow, which has no types to speak of."""
    return importlib.import_module("pyarrow")


def _apart(names: Sequence[str]) -> list[str]:
    """Return names that SQL tells apart: it ignores case, so a second one gets a number."""
    seen: set[str] = set()
    different: list[str] = []
    for name in names:
        other, count = name, 1
        while other.lower() in seen:
            other, count = f"{name}_{count}", count + 1
        seen.add(other.lower())
        different.append(other)
    return different


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value if value is None else value.encode("utf-8", "replace").decode()
    return json.dumps(value)


def plain_column(values: Sequence[Any]) -> object:
    """Return Python values of one kind as an Arrow column, other values as texts (JSON, except for
    what is a text already)."""
    pyarrow = _pyarrow()
    kinds: set[object] = {type(value) for value in values if value is not None}
    if not kinds:
        return pyarrow.array(values, "string")
    if kinds == {bool}:
        return pyarrow.array(values, "bool")
    if kinds == {int} and all(v is None or -(2**63) <= v < 2**63 for v in values):
        return pyarrow.array(values, "int64")
    if kinds <= {int, float} and all(
        v is None or abs(v) < _WHOLE or type(v) is float for v in values
    ):
        floats = [None if v is None else float(v) for v in values]
        return pyarrow.array(floats, "float64", from_pandas=False)
    return pyarrow.array([_text(value) for value in values], "string")


def _is_number(value: object) -> bool:
    """Return whether a column of 64-bit floats can hold a value as it is."""
    return type(value) is float or (type(value) is int and abs(value) < _WHOLE)


def _split(name: str, values: Sequence[object]) -> list[tuple[str, Sequence[object]]]:
    """Split a column of numbers and other values into two, as in `numbers_table`, so that the
    numbers can be compared."""
    numbers = [value if _is_number(value) else None for value in values]
    others = [None if _is_number(value) else value for value in values]
    mixed = any(value is not None for value in numbers) and any(v is not None for v in others)
    if not mixed or all(value is None or type(value) is int for value in values):
        return [(name, values)]
    return [(name, numbers), (f"{name}.text", [_text(value) for value in others])]


def plain_table(rows: Sequence[Mapping[str, object]], first: Sequence[str]) -> object:
    """Return rows of Python values as an Arrow table. A key with numbers and other values has two
    columns: the others are texts in `<key>.text`."""
    pyarrow = _pyarrow()
    names = dict.fromkeys(first)
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = [part for name in names for part in _split(name, [row.get(name) for row in rows])]
    arrays = [plain_column(values) for _, values in columns]
    return pyarrow.table(arrays, names=_apart([_text(name) or "" for name, _ in columns]))
