"""Reading metrics.jsonl: no row is lost, and unreadable lines are counted."""

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


def test_nan_and_infinities_are_numbers():
    parsed = parse(b'{"step":1,"a":NaN,"b":Infinity,"c":-Infinity}\n{"step":2,"a":1.5}\n')
    assert parsed.malformed == parsed.torn == 0
    first = parsed.rows[0]
    assert math.isnan(first["a"])
    assert (first["b"], first["c"]) == (math.inf, -math.inf)
    assert parsed.rows[1]["a"] == 1.5


TWO = lines({"step": 1}, {"step": 2})
MIXED = b'{"step":1}\nnot json\n\n[1,2]\n"text"\n  \n{"step":2}\n' + b"[" * 100_000 + b"\n"


@pytest.mark.parametrize(
    ("data", "steps", "malformed", "torn"),
    [
        (TWO[:-1], [1, 2], 0, 0),  # a complete last line needs no newline
        *(
            (TWO + tail, [1, 2], 0, 1)
            for tail in (b'{"step":3,"a"', b'{"step":3,"a":1', b"\0", b"\xff{")
        ),
        (MIXED, [1, 2], 4, 0),  # blank lines are not counted
        (b"", [], 0, 0),
    ],
)
def test_torn_and_malformed_lines_are_skipped_and_counted(
    data: bytes, steps: list[int], malformed: int, torn: int
):
    parsed = parse(data)
    assert [row["step"] for row in parsed.rows] == steps
    assert (parsed.malformed, parsed.torn) == (malformed, torn)


def test_values_keep_their_types():
    row = {"step": 1, "s": "text", "big": 2**70, "flag": True, "none": None, "list": [1], "é": 1}
    assert parse(lines(row)).rows == [row]


def test_rows_of_one_step_are_merged_with_later_values_winning():
    merged = merge(
        [parse(lines({"step": 2, "x": 1}, {"step": 1, "a": 1}, {"step": 1, "a": 2, "b": 3}))]
    )
    assert merged.rows == [{"step": 1, "a": 2, "b": 3}, {"step": 2, "x": 1}]


def test_a_resumed_attempt_replaces_rows_from_its_first_step_on():
    """Rows beyond the step at which the next attempt began are never the value of a run."""
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


def test_merging_does_not_change_its_input():
    parsed = parse(lines({"step": 1, "a": 1}, {"step": 1, "a": 2}))
    merge([parsed])
    assert [row["a"] for row in parsed.rows] == [1, 2]


def test_copied_rows_without_a_step_are_kept_once():
    first = parse(lines({"note": "start"}, {"step": 1, "a": 1}))
    resumed = parse(lines({"note": "start"}, {"step": 1, "a": 1}, {"step": "x", "b": 2}))
    merged = merge([first, resumed, parse(b"")])
    assert merged.rows == [
        {"step": 1, "a": 1},
        {"note": "start", "step": None},
        {"step": None, "b": 2},
    ]


def test_texts_and_booleans_are_not_numbers():
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
def test_texts_for_nan_and_infinities_count_as_numbers(text: str, number: float):
    """Many programs write a text for NaN, and a diverged run must count as diverged."""
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
def test_a_metric_that_ends_before_its_run_counts_as_missing(values: list[object], missing: int):
    """Some programs write null, or nothing, for NaN."""
    rows = [
        {"step": n, "other": 0, **({} if value is ... else {"a": value})}
        for n, value in enumerate(values)
    ]
    for recorded in (rows, [*rows, {"step": None, "other": 1}]):
        assert missing_in(recorded, "a") == missing
    columns = merge_columns([parse_columns(lines(*rows))])
    assert missing_at_end(columns, "a") == missing


def test_numbers_too_large_for_a_float_are_infinite():
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
def test_the_value_of_a_run_by_goal_and_choice(goal: str, at: str, expected: tuple[int, float]):
    points = numbers([{"step": i, "a": v} for i, v in enumerate([5, 1, math.nan, 2])], "a")
    assert judged(points, goal, at) == expected


def test_checkpoints_name_the_attempt_that_wrote_them():
    first = parse(lines({"name": "000010", "path": "a"}, {"name": "000020", "path": "b"}))
    resumed = parse(lines({"name": "000010", "path": "a"}, {"name": "000020", "path": "c"}))
    assert merge_checkpoints([first, resumed]) == [
        {"name": "000010", "path": "a", "attempt": 1},
        {"name": "000020", "path": "c", "attempt": 2},
    ]
