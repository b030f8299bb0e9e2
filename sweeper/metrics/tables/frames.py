"""Joins columns of many runs into one table, for pandas and for SQL."""

import importlib
import json
import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sweeper.metrics.tables.columns import Columns, Floats, join_odd, present
from sweeper.sweep.run_record import RUN_KEY

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

_WHOLE = 2.0**53


class Part(NamedTuple):
    """Rows of one run. `common` has values that apply to every row, such as the run's name. `notes`
    describes problems of the run's files."""

    common: Mapping[str, str]
    columns: Columns
    notes: tuple[str, ...] = ()


Rename = Callable[[str], str]


def _keys(parts: Sequence[Part], first: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(chain(first, *(part.columns.values for part in parts)))]


def _stacked(parts: Sequence[Part], keys: Sequence[str]) -> Floats:
    """Return an array with one row per key: the values of all parts, one part after the other."""
    shape = len(keys), sum(part.columns.rows for part in parts)
    # numpy would use large pages, and the kernel may need 0.5 s to make room for them.
    pages = mmap.mmap(-1, max(1, 8 * math.prod(shape)), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = np.frombuffer(pages, np.float64, math.prod(shape)).reshape(shape)
    for row, key in zip(block, keys, strict=True):
        if parts:
            np.concatenate([part.columns.column(key) for part in parts], out=row)
    return block


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
    """Return all rows as a DataFrame. It has a categorical column for each name in `common`, then a
    column for each key: the keys `first`, then the other keys in order of appearance.

    If a key has values that floats cannot hold exactly, such as strings, its column has Python
    objects, with None for missing values. Otherwise the column is int64 if the key is in `whole`
    and has an integer in every row, else float64, with NaN for missing values.
    """
    import pandas

    keys = _keys(parts, first)
    block = _stacked(parts, keys)
    odd = join_odd([part.columns for part in parts])
    frame = pandas.DataFrame(block.T, columns=_index([rename(key) for key in keys]), copy=False)
    for place, key in enumerate(keys):
        if key in odd:
            values = _objects(block[place], odd[key])
            frame[rename(key)] = _made(pandas.Series, values)
        elif key in whole and len(frame) and _is_whole(block[place]):
            frame[rename(key)] = block[place].astype(np.int64)
    for place, name in enumerate(common):
        codes, texts = _coded(parts, name)
        labels = pandas.CategoricalDtype(_index(texts))
        frame.insert(place, name, pandas.Series(pandas.Categorical.from_codes(codes, dtype=labels)))
    return frame


def _coded(parts: Sequence[Part], name: str) -> tuple[NDArray[np.int32], list[str]]:
    """Encode the common column `name`: return the index of each row's value in the list of distinct
    values, and this list."""
    texts = [*dict.fromkeys(part.common[name] for part in parts)]
    places = {text: place for place, text in enumerate(texts)}
    counts = [part.columns.rows for part in parts]
    return np.repeat([places[part.common[name]] for part in parts], counts).astype(np.int32), texts


def _index(names: Sequence[str]) -> "pandas.Index[str]":
    import pandas

    return _made(pandas.Index, names)


def _made(make: Callable[..., T], values: Sequence[object]) -> T:
    """Call `make` with the values. If a string has a lone surrogate, which pandas' string type
    rejects, call `make` with `dtype=object`."""
    try:
        return make(values)
    except UnicodeEncodeError:
        return make(values, dtype=object)


def rows_frame(rows: Sequence[Mapping[str, object]], first: Sequence[str]) -> "pandas.DataFrame":
    """Return rows of Python values as a DataFrame: the columns `first`, then the other columns in
    order of appearance. pandas infers the types."""
    import pandas

    names = dict.fromkeys(chain(first, *rows))
    columns = [_made(pandas.Series, [row.get(name) for row in rows]) for name in names]
    return pandas.DataFrame(dict(enumerate(columns))).set_axis(_index(list(names)), axis=1)


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
    """Return an Arrow table for SQL with the columns of `numbers_frame`. Missing numbers are NULL,
    and recorded NaNs stay NaN. Values other than numbers are in a text column. The text column has
    the key's name, or `<key>.text` if the key has numbers too."""
    pyarrow = _pyarrow()
    keys = _keys(parts, first)
    odd = join_odd([part.columns for part in parts])
    arrays: list[object] = []
    names: list[str] = []
    for name in common:
        codes, texts = _coded(parts, name)
        labels = pyarrow.array([*map(_text, texts)], "string")
        arrays.append(pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes), labels))
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
            others: list[str | None] = [None] * len(column)
            for row, value in odd[key].items():
                others[row] = _text(value)
            arrays.append(pyarrow.array(others, "string"))
            names.append(rename(key) + (".text" if mask.any() else ""))
    return pyarrow.table(arrays, names=_apart([_text(name) or "" for name in names]))


def _pyarrow() -> ModuleType:
    """Return the module pyarrow as an untyped module, because it has almost no types."""
    return importlib.import_module("pyarrow")


def _apart(names: Sequence[str]) -> list[str]:
    """Make names distinct for SQL, which ignores case: append a number to each name that repeats an
    earlier name."""
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
    """Return Python values as an Arrow column of booleans, integers or floats. If none of these
    types fits all values, the column has strings, and values other than strings are written as
    JSON."""
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
    """Return whether a value is a number that a 64-bit float holds exactly."""
    return type(value) is float or (type(value) is int and abs(value) < _WHOLE)


def _split(name: str, values: Sequence[object]) -> list[tuple[str, Sequence[object]]]:
    """Split a column that has numbers and other values into two columns, as in `numbers_table`, so
    that the numbers can be compared. Return any other column unchanged."""
    numbers = [value if _is_number(value) else None for value in values]
    others = [None if _is_number(value) else value for value in values]
    mixed = any(value is not None for value in numbers) and any(v is not None for v in others)
    if not mixed or all(value is None or type(value) is int for value in values):
        return [(name, values)]
    return [(name, numbers), (f"{name}.text", [_text(value) for value in others])]


def plain_table(rows: Sequence[Mapping[str, object]], first: Sequence[str]) -> object:
    """Return rows of Python values as an Arrow table. A key with numbers and other values has two
    columns; `<key>.text` has the other values as strings."""
    pyarrow = _pyarrow()
    names = dict.fromkeys(chain(first, *rows))
    columns = [part for name in names for part in _split(name, [row.get(name) for row in rows])]
    arrays = [plain_column(values) for _, values in columns]
    return pyarrow.table(arrays, names=_apart([_text(name) or "" for name, _ in columns]))
