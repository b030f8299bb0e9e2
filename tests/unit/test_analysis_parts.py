"""Curves, edges of the grid, and the words that numbers become."""

import math

import pytest

from analysis import words
from analysis.curves import band, thin
from analysis.edges import find_edges
from sweeper.metrics import Point


def test_thinning_keeps_the_ends_and_every_spike():
    values = [0.0] * 10_000
    values[1234], values[7777] = 50.0, -50.0
    kept = thin(list(range(10_000)), values)
    assert len(kept) <= 240 and kept == sorted(set(kept))
    assert {0, 1234, 7777, 9999} <= set(kept)


def test_short_curves_are_left_alone():
    assert thin([0, 1, 2], [3, 2, 1]) == [0, 1, 2]


def test_a_band_covers_the_steps_that_all_runs_share():
    runs = [
        [Point(0, 1.0), Point(10, 2.0), Point(20, 4.0), Point(None, 99.0)],
        [Point(0, 3.0), Point(5, 9.0), Point(10, 4.0), Point(20, math.nan)],
    ]
    assert band(runs) == ([0, 10], [2.0, 3.0], [1.0, 2.0], [3.0, 4.0])
    assert band([]).steps == []


def test_a_band_of_enormous_values_is_finite():
    found = band([[Point(0, 1.7e308)], [Point(0, 1.5e308)]])
    assert found.mean == [pytest.approx(1.6e308)]


@pytest.mark.parametrize(
    ("values", "best", "side", "suggestion"),
    [
        ([1e-4, 1e-3, 1e-2], 1e-2, "largest", 0.1),
        ([1e-3, 5e-3, 2e-2], 2e-2, "largest", 0.08),
        ([1e-4, 1e-3, 1e-2], 1e-4, "smallest", 1e-5),
        ([8, 16, 32], 32, "largest", 64),
        ([8, 16, 32], 8, "smallest", 4),
        ([1, 2, 4], 1, "smallest", None),
        ([0.0, 0.1, 0.2], 0.0, "smallest", None),
        ([0.5, 0.6, 0.7], 0.7, "largest", 0.8),
        ([-1.0, 0.0, 1.0], -1.0, "smallest", -2.0),
        # Two digits would fall back into the grid.
        ([0.991, 0.992, 0.993], 0.993, "largest", 0.994),
        ([0.991, 0.992, 0.993], 0.991, "smallest", 0.99),
        ([1001.5, 1002.5, 1003.5], 1003.5, "largest", 1004.0),
        ([-0.993, -0.992, -0.991], -0.993, "smallest", -0.994),
        ([1.0, 1e200, 1e308], 1e308, "largest", None),
        ([1e307, 1e308, 1.7e308], 1.7e308, "largest", None),
    ],
)
def test_a_best_value_at_the_edge(
    values: list[float], best: float, side: str, suggestion: float | None
):
    (edge,) = find_edges({"axis": best}, [{"axis": value} for value in values])
    assert (edge.side, edge.suggestion) == (side, pytest.approx(suggestion))


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([1, 2, 3], 2),
        ([1, 2], 2),
        (["a", "b", "c"], "c"),
        ([1, 2, "3"], 2),
        ([False, True], True),
        ([3, 3, 3, 4], 4),
        ([1, 2, 10**400], 1),
        ([1, 2, None], 2),
    ],
)
def test_no_edge(values: list[object], best: object):
    assert find_edges({"axis": best}, [{"axis": value} for value in values]) == []


def test_a_value_planned_further_out_is_no_edge_but_one_that_is_missing_is_no_value():
    tried = [{"lr": 1}, {"lr": 2}, {"lr": 3}, {"other": 9}]
    assert find_edges({"lr": 3}, tried, [*tried, {"lr": 4}]) == []
    (edge,) = find_edges({"lr": 3}, tried, [*tried, {"lr": 2.5}])
    assert (edge.side, edge.suggestion) == ("largest", 4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.21349, "0.2135"),
        (1234.5, "1234"),
        (-0.5, "\u22120.5000"),
        (1.5e-9, "1.500e-9"),
        (0.0, "0"),
        (None, "\u2013"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value: float | None, text: str):
    assert words.number(value) == text


def test_values_that_belong_together_have_the_same_decimals():
    assert words.together(0.2504, 0.1552, 0.3457) == ["0.250", "0.155", "0.346"]
    assert words.together(1234.5, 1300.25) == ["1234", "1300"]
    assert words.together(0.9, None, math.nan) == ["0.900", "\u2013", "NaN"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-4, "1e-4"),
        (5e-3, "5e-3"),
        (0.02, "0.02"),
        (1e20, "1e20"),
        (True, "true"),
        (8, "8"),
        (None, "null"),
        ([1, None, "x"], '[1, null, "x"]'),
    ],
)
def test_settings_read_as_in_a_grid(value: object, text: str):
    assert words.setting(value) == text


def test_durations_and_lists():
    found = [words.duration(s) for s in (0.25, 48.2, 200.0, 7500.0, None)]
    assert found == ["0.2 s", "48 s", "3 min 20 s", "2 h 05 min", "\u2013"]
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.listed(list("abcdefg"), 3) == "a, b, c and 4 more"
