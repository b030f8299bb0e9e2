"""`sweeper watch`: the arithmetic and the drawings between a store and the screen."""

import math

import pytest

from sweeper.metrics import Point
from sweeper.results.progress import Reached
from sweeper.tui.charts import plot, sparkline
from sweeper.tui.model import (
    ranks,
    remaining,
    sweep_remaining,
    total_steps,
)
from sweeper.tui.series import Series
from sweeper.tui.text import ASCII, UNICODE, Glyphs, age, fit_middle, short


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_ranks(goal: str) -> None:
    values = {"a": 1.0, "b": math.nan, "c": None, "d": 3.0, "e": 1.0, "f": math.inf}
    expected = {"a": 1, "e": 1, "d": 3} if goal == "minimize" else {"d": 1, "a": 2, "e": 2}
    assert ranks(values, goal) == expected


def test_times_to_the_end() -> None:
    assert remaining(0.5, None, 0.0, 10.0) == 10.0
    assert remaining(0.5, (0.0, 0.25), None, 10.0) == 20.0
    assert remaining(0.5, (9.0, 0.5), None, 10.0) is None
    assert remaining(None, None, 0.0, 10.0) is None
    assert remaining(1.0, None, 0.0, 10.0) == 0.0
    assert sweep_remaining([10.0, 20.0], 3, 30.0, 2) == 70.0  # 10+30+30, 20+30
    assert sweep_remaining([10.0, None], 0, 30.0, 2) == 30.0
    assert sweep_remaining([], 3, None, 2) is None
    assert sweep_remaining([None], 3, None, 2) is None
    assert sweep_remaining([10.0, 20.0, 30.0], 1, 10.0, 1) == 40.0  # fewer are allowed by now
    assert sweep_remaining([], 0, None, 2) == 0.0


def test_how_many_steps_there_are_to_be() -> None:
    assert total_steps({"max_steps": 5}, {"max_steps": 9}) == 5
    assert total_steps({}, {"max_steps": 9}) == 9
    assert total_steps({"max_steps": True, "n_batches": 3}, {}) == 3
    assert total_steps({"max_steps": math.inf}, {}) is None
    assert total_steps({"max_steps": "many"}, {}) is None


@pytest.mark.parametrize(("at", "expected"), [("last", 0.001), ("best", 0.0005)])
def test_a_long_trail_is_thinned_out(at: str, expected: float) -> None:
    series = Series("x", "minimize", at)
    rows = [{"step": n, "x": 0.0005 if n == 1234 else 0.001 + (9999 - n)} for n in range(10000)]
    series.add(rows)
    assert len(series.points) <= 514 and series.points[-1] == (9999, 0.001)
    assert series.value == expected
    series.add([{"step": 9999, "x": 7.0}, {"step": 3, "x": -1.0}])
    assert series.points[-1] == (9999, 7.0)


def test_a_trail_takes_anything() -> None:
    series = Series("x")
    series.load([Point(None, math.nan)], Reached().after({"step": "no", "progress/done_frac": 7}))
    series.add([{"x": True}, {"x": None}, {"x": 10**400}, {}])
    assert math.isinf(series.value or 0.0) and series.step is None and series.done is None
    assert sparkline(series.curve, 5, UNICODE) == "     "


def test_drawings() -> None:
    assert sparkline([0, 1, 2, 3], 4, UNICODE) == "▁▃▆█"
    assert sparkline([1, 1], 3, UNICODE) == "▃▃ "
    assert sparkline([0, math.nan, 2], 3, UNICODE) == "▁ █"
    lines = plot([(0, 0), (1, 1)], 20, 5, UNICODE)
    assert len(lines) == 5 and lines[0].startswith("1 ") and lines[3].startswith("0 ")
    assert plot([(0, math.nan)], 20, 5, UNICODE) == ["nothing finite to draw"]
    seconds = (None, 2, 59, 90, 7500, 300000)
    assert [*map(short, seconds)] == ["-", "5s", "60s", "2m", "2h05m", "3d"]
    assert [*map(age, seconds)] == ["-", "now", "45s", "1m", "2h", "3d"]
    assert fit_middle("lr=1e-4,rank=8,seed=10", 16) == "lr=1e-4,…seed=10"


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_drawings_of_any_numbers(glyphs: Glyphs) -> None:
    numbers = [1.5e308, -1.5e308, 1.5e308, math.nan, math.inf, -math.inf, 5e-324, 0.0]
    for several in ([1.5e308] * 4, [0.0, 5e-324], numbers, numbers[:3]):
        for width in (1, 2, 5, 20):
            assert len(sparkline(several, width, glyphs)) == width
        assert plot([(x, x) for x in several], 40, 6, glyphs)
        for log in (False, True):
            lines = plot([*enumerate(several)], 40, 6, glyphs, [(0, 1.7e308)], log=log)
            assert all(len(line) == 40 for line in lines) or len(lines) == 1
    assert sparkline([-1.5e308, 0.0, 1.5e308], 3, ASCII) == "_+@"


def test_a_logarithmic_scale() -> None:
    """Powers of ten stand where they belong, a straight line is drawn for what shrinks by a factor,
    and what has no logarithm is left out."""
    points = [(float(x), 10.0**-x) for x in range(5)]
    lines = plot([*points, (5.0, 0.0), (6.0, -1.0)], 21, 10, ASCII, log=True)
    labels = {row: line[:7].strip() for row, line in enumerate(lines[:-1]) if line[:6].strip()}
    assert labels == {0: "1", 2: "0.1", 4: "0.01", 6: "0.001", 8: "0.0001"}
    assert lines[-1].split() == ["0", "4"]  # the axis ends where the curve does
    assert plot(points, 21, 10, ASCII)[4].split()[0] == "*"  # the same on a linear one
    assert plot([(0.0, -1.0)], 21, 10, ASCII, log=True) == ["nothing positive to draw"]
    lines = plot([(0.0, 2.0), (1.0, 3.0)], 21, 5, ASCII, log=True)
    assert [line[:5].strip() for line in lines[:4]] == ["3", "2.621", "", "2"]
