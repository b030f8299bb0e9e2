"""Reading metrics.jsonl: nothing is lost, what cannot be read is counted."""

import json
import math

import pytest

from sweeper.metrics.objective import judged, missing_in
from sweeper.metrics.rows import as_float, merge, merge_checkpoints, numbers, parse
from sweeper.metrics.tables.columns import parse_columns
from sweeper.metrics.tables.merging import merge_columns
from sweeper.results.metrics_reader import missing_at_end


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_nan_and_infinities_are_read():
    parsed = parse(b'{"step":1,"a":NaN,"b":Infinity,"c":-Infinity}\n{"step":2,"a":1.5}\n')
    assert parsed.malformed == parsed.torn == 0
    first = parsed.rows[0]
    assert math.isnan(first["a"])
    assert (first["b"], first["c"]) == (math.inf, -math.inf)
    assert parsed.rows[1]["a"] == 1.5


@pytest.mark.parametrize("tail", [b'{"step":3,"a"', b'{"step":3,"a":1', b"\x00\x00\x00", b"\xff{"])
def test_a_torn_last_line_is_skipped_and_counted(tail: bytes):
    parsed = parse(lines({"step": 1}, {"step": 2}) + tail)
    assert [row["step"] for row in parsed.rows] == [1, 2]
    assert (parsed.malformed, parsed.torn) == (0, 1)


def test_a_whole_last_line_needs_no_newline():
    parsed = parse(b'{"step":1}\n{"step":2}')
    assert [row["step"] for row in parsed.rows] == [1, 2]
    assert parsed.torn == 0


def test_malformed_lines_are_skipped_and_counted_and_blank_ones_are_nothing():
    data = b'{"step":1}\nnot json\n\n[1,2]\n"text"\n  \n{"step":2}\n' + b"[" * 100_000 + b"\n"
    parsed = parse(data)
    assert [row["step"] for row in parsed.rows] == [1, 2]
    assert (parsed.malformed, parsed.torn) == (4, 0)


def test_an_empty_file_has_no_rows():
    assert parse(b"") == ([], 0, 0)


def test_values_keep_their_types():
    row = {"step": 1, "s": "text", "big": 2**70, "flag": True, "none": None, "list": [1], "é": 1}
    assert parse(lines(row)).rows == [row]


def test_rows_of_one_step_become_one_and_the_later_line_wins_per_key():
    merged = merge(
        [parse(lines({"step": 2, "x": 1}, {"step": 1, "a": 1}, {"step": 1, "a": 2, "b": 3}))]
    )
    assert merged.rows == [{"step": 1, "a": 2, "b": 3}, {"step": 2, "x": 1}]


def test_an_attempt_takes_the_place_of_the_rows_from_its_first_step_on():
    """What an attempt trained beyond the step at which the next one began was given up: the value
    of a run never comes from it."""
    first = parse(lines(*({"step": n, "a": n, "only": 7} for n in (1, 2, 3, 9))))
    resumed = parse(lines({"step": 3, "a": 30}, {"step": 4, "a": 40}))
    assert merge([first, resumed]).rows == [
        {"step": 1, "a": 1, "only": 7},
        {"step": 2, "a": 2, "only": 7},
        {"step": 3, "a": 30},
        {"step": 4, "a": 40},
    ]
    anew = parse(lines({"step": 1, "a": 10}))
    assert merge([first, resumed, anew]).rows == [{"step": 1, "a": 10}]
    assert merge([first, parse(b"")]).rows == merge([first]).rows


def test_merging_leaves_its_input_alone():
    parsed = parse(lines({"step": 1, "a": 1}, {"step": 1, "a": 2}))
    merge([parsed])
    assert [row["a"] for row in parsed.rows] == [1, 2]


def test_rows_without_a_step_are_kept_once_however_often_an_attempt_copied_them():
    first = parse(lines({"note": "start"}, {"step": 1, "a": 1}))
    resumed = parse(lines({"note": "start"}, {"step": 1, "a": 1}, {"step": "x", "b": 2}))
    merged = merge([first, resumed, parse(b"")])
    assert merged.rows == [
        {"step": 1, "a": 1},
        {"note": "start", "step": None},
        {"step": None, "b": 2},
    ]


def test_a_key_that_appears_late_is_kept():
    rows = [{"step": i, "a": i} for i in range(5000)] + [{"step": 5000, "late": 1}]
    merged = merge([parse(lines(*rows))])
    assert numbers(merged.rows, "late") == [(5000, 1.0)]


def test_only_numbers_are_numbers():
    rows = merge(
        [parse(lines(*({"step": i, "a": v} for i, v in enumerate([1, "2", True, None, 2.5]))))]
    )
    assert numbers(rows.rows, "a") == [(0, 1.0), (4, 2.5)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("NaN", math.nan),
        ("nan", math.nan),
        ("-nan", math.nan),
        ("Infinity", math.inf),
        ("inf", math.inf),
        ("+Inf", math.inf),
        ("-inf", -math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_texts_that_stand_for_nan_and_infinities_are_such_numbers(text: str, number: float):
    """Strict JSON has no NaN, so that many programs write a text: a diverged run must not be
    judged by its last finite value because of that."""
    rows = merge([parse(lines({"step": 0, "a": 1.0}, {"step": 1, "a": text}))]).rows
    point = judged(numbers(rows, "a"), "minimize", "last")
    assert point is not None and str(point.value) == str(number)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ([3, 2, 1], 0),
        ([3, 2, None], 1),
        ([3, 2, "broken"], 1),
        ([3, 2, math.nan], 0),
        ([3, ..., ...], 0),  # a summary, for example
        ([3, 2, ..., ..., ...], 3),
        ([3, ..., ..., ..., 2, ..., ..., ...], 0),  # each fourth row has one
        ([3, None, 2, None], 0),
        ([3, None, 2, None, None], 2),
        ([None, None], 0),
        ([..., ..., 1, None], 0),
    ],
)
def test_a_metric_that_ends_before_its_run_is_missing(values: list[object], missing: int):
    """Null, and nothing at all, is what some programs write for NaN."""
    rows = [
        {"step": n, "other": 0, **({} if value is ... else {"a": value})}
        for n, value in enumerate(values)
    ]
    for recorded in (rows, [*rows, {"step": None, "other": 1}]):
        assert missing_in(recorded, "a") == missing
    columns = merge_columns([parse_columns(lines(*rows))])
    assert missing_at_end(columns, "a") == missing


def test_a_number_too_large_for_a_float_is_infinite_and_no_step():
    huge = "7" * 400
    data = f'{{"step":1,"a":{huge}}}\n{{"step":2,"a":-{huge}}}\n{{"step":{huge},"a":5}}\n'
    rows = merge([parse(data.encode())]).rows
    assert numbers(rows, "a") == [(1, math.inf), (2, -math.inf), (None, 5.0)]
    assert as_float(10**400) == math.inf and as_float(2) == 2.0
    assert as_float(True) is None and as_float("2") is None and as_float(None) is None


@pytest.mark.parametrize(
    ("goal", "at", "expected"),
    [
        ("minimize", "last", (3, 2.0)),
        ("minimize", "best", (1, 1.0)),
        ("maximize", "best", (0, 5.0)),
        ("maximize", "mean_of_last=3", (3, 1.5)),
        ("maximize", "mean_of_last=99", (3, 8 / 3)),
    ],
)
def test_what_a_run_is_judged_by(goal: str, at: str, expected: tuple[int, float]):
    points = numbers([{"step": i, "a": v} for i, v in enumerate([5, 1, math.nan, 2])], "a")
    assert judged(points, goal, at) == expected


def test_a_last_nan_is_the_last_value_and_never_the_best():
    points = numbers([{"step": 0, "a": 1.0}, {"step": 1, "a": math.nan}], "a")
    last = judged(points, "minimize", "last")
    assert last is not None and math.isnan(last.value)
    best = judged(points, "maximize", "best")
    assert best is not None and best.value == 1.0
    assert judged([], "minimize", "best") is None


def test_a_value_with_a_step_goes_before_one_without():
    points = numbers([{"step": 1, "a": 1.0}, {"step": None, "a": 9.0}], "a")
    assert judged(points, "minimize", "last") == (1, 1.0)
    assert judged(points[1:], "minimize", "last") == (None, 9.0)


def test_checkpoints_keep_the_attempt_that_wrote_them():
    first = parse(lines({"name": "000010", "path": "a"}, {"name": "000020", "path": "b"}))
    resumed = parse(lines({"name": "000010", "path": "a"}, {"name": "000020", "path": "c"}))
    assert merge_checkpoints([first, resumed]) == [
        {"name": "000010", "path": "a", "attempt": 1},
        {"name": "000020", "path": "c", "attempt": 2},
    ]
