"""Quick readers of metrics give the same as the slow parser, whatever a file contains."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.metrics.rows import as_number, merge, parse
from sweeper.metrics.tables.columns import ABSENT, Columns, parse_columns, present
from sweeper.metrics.tables.merging import merge_columns

KEYS = ["a", "b", "late", "\u00e9", "run", 'a"b', "a\\", "\x01", "\ud800", ""]
values = st.one_of(
    st.floats(),
    st.integers(-5, 5),
    st.sampled_from([2**53, 2**53 + 1, 2**70 + 1, -(2**64), 10**400, 1e300, -0.0, 5e-324]),
    st.sampled_from(
        [None, True, False, "1.5", "NaN", "-Infinity", "x\u00e9\ud800", [1, math.nan], {"a": 1}]
    ),
)
steps = st.one_of(
    st.integers(0, 6), st.sampled_from([1.0, 2.5, None, "3", math.nan, math.inf, True])
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
stepped = st.tuples(steps, objects).map(lambda pair: {"step": pair[0], **pair[1]})
rows = st.one_of(objects, stepped)
broken = st.sampled_from(
    [b"", b"  ", b"text", b"[1]", b'{"a":1}{"b":2}', b'{"a":', b'"b":1}', b'{"a":1e400}',
     b'{"a":01}', b'{"a":[{}', b'{}]}', b'{"a":{}', b'{"b":1}}',
     b'{"x":"\xff","a":1}', b'{"\xff":2,"a":1}', b'{"a":1,"a":2}', b'{"x":1.2.3,"a":1}',
     b'{"a":1,}',
     b'{"x":"\\q","a":1}', b"\xef\xbb\xbf{\"a\":1}", b'{"\\u0061":7}', b' {"a":1}\r', b"{}"]
)  # fmt: skip
lines = st.one_of(rows.map(lambda row: json.dumps(row).encode()), broken)
files = st.builds(
    lambda made, end: b"\n".join(made) + end,
    st.lists(lines, max_size=8),
    st.sampled_from([b"", b"\n", b'\n{"a"', b'\n{"a":3}']),
)


def as_rows(columns: Columns) -> list[dict[str, Any]]:
    """Return columns as rows."""
    made: list[dict[str, Any]] = [{} for _ in range(columns.rows)]
    for key, column in columns.values.items():
        for row, (number, there) in enumerate(zip(column.tolist(), present(column), strict=True)):
            if there:
                made[row][key] = number
    for key, odd in columns.odd.items():
        for row, value in odd.items():
            assert key not in made[row]
            made[row][key] = value
    return made


def normal(value: Any) -> str:
    """Return equal texts for equal values: NaN, 1 and 1.0; not for 1 and True."""
    if isinstance(value, str) and as_number(value) is not None:
        value = as_number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        value = float(value)
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def same(read: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> bool:
    return [{k: normal(v) for k, v in row.items()} for row in read] == [
        {k: normal(v) for k, v in row.items()} for row in wanted
    ]


@settings(max_examples=60)
@given(
    data=files,
    keys=st.sampled_from([None, ["step", "a"], ["step", "late", "\u00e9"], ["step", *KEYS]]),
)
def test_columns_equal_the_rows_of_the_slow_parser(data: bytes, keys: list[str] | None):
    slow, quick = parse(data), parse_columns(data, keys)
    wanted = [{k: v for k, v in row.items() if keys is None or k in keys} for row in slow.rows]
    assert same(as_rows(quick), wanted)
    assert (quick.malformed, quick.torn) == (slow.malformed, slow.torn)


@settings(max_examples=60)
@given(attempts=st.lists(files, max_size=3))
def test_merged_columns_equal_merged_rows(attempts: list[bytes]):
    slow = merge([parse(data) for data in attempts])
    quick = merge_columns([parse_columns(data) for data in attempts])
    wanted = [
        {k: v for k, v in row.items() if not (k == "step" and v is None)} for row in slow.rows
    ]
    assert same(as_rows(quick), wanted)
    assert (quick.malformed, quick.torn) == (slow.malformed, slow.torn)


@pytest.mark.parametrize("keys", [None, ["step", "late"]])
def test_a_key_that_first_appears_at_step_50000_is_kept(keys: list[str] | None):
    plain = b"".join(b'{"step":%d,"a":%d.5}\n' % (i, i) for i in range(50_000))
    columns = parse_columns(plain + b'{"step":50000,"a":1,"late":7}\n{"step":50001,"a":2}\n', keys)
    assert columns.rows == 50_002
    assert columns.column("late")[50_000] == 7 and present(columns.column("late")).sum() == 1
    assert keys is not None or columns.column("a")[-1] == 2


def test_an_escaped_key_is_read_from_a_line_without_newline():
    columns = parse_columns(b'{"a\\"b": 1.0}\n{"a\\"b": 2.0}', ['a"b'])
    assert columns.column('a"b').tolist() == [1, 2]


def test_a_recorded_nan_differs_from_an_absent_number():
    columns = parse_columns(b'{"a":NaN}\n{"b":1}\n')
    assert present(columns.column("a")).tolist() == [True, False]
    assert math.isnan(columns.column("a")[0]) and math.isnan(ABSENT)
    assert columns.has("b").tolist() == [False, True] and not columns.has("c").any()


def test_an_expected_key_without_values_is_absent():
    columns = parse_columns(b'{"a":1}\n{"a":2,"note":"x"}\n', None, ("a", "b", "note"))
    assert list(columns.values) == ["a", "note"]
    assert columns.odd == {"note": {1: "x"}} and columns.column("a").tolist() == [1, 2]


def test_expected_keys_do_not_change_the_order_of_columns():
    rows: list[dict[str, Any]] = [{"b": 1, "a": 2}, {"a": 1, "z": math.nan, "y": "text"}, {"c": 1}]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    hints = [(), ("a", "b"), ("c", "z", "y", "x", "b"), ("z", "y")]
    for end in (len(data), len(data) - 1, data.index(b"\n") + 1, data.index(b"\n")):
        orders = {tuple(parse_columns(data[:end], None, hint).values) for hint in hints}
        assert len(orders) == 1, orders
    assert tuple(parse_columns(data).values) == ("b", "a", "y", "z", "c")
