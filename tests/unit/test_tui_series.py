"""`sweeper watch`: a metric's values, downsampled."""

import math

import pytest

from sweeper.metrics.rows import Point
from sweeper.results.progress import Reached
from sweeper.tui.charts import sparkline
from sweeper.tui.series import Series
from sweeper.tui.text import UNICODE


@pytest.mark.parametrize(("at", "expected"), [("last", 0.001), ("best", 0.0005)])
def test_a_long_series_is_downsampled(at: str, expected: float) -> None:
    series = Series("x", "minimize", at)
    rows = [{"step": n, "x": 0.0005 if n == 1234 else 0.001 + (9999 - n)} for n in range(10000)]
    series.add(rows)
    assert len(series.points) <= 514 and series.points[-1] == (9999, 0.001)
    assert series.value == expected
    series.add([{"step": 9999, "x": 7.0}, {"step": 3, "x": -1.0}])
    assert series.points[-1] == (9999, 7.0)


def test_a_series_accepts_any_values() -> None:
    series = Series("x")
    series.load([Point(None, math.nan)], Reached().after({"step": "no", "progress/done_frac": 7}))
    series.add([{"x": True}, {"x": None}, {"x": 10**400}, {}])
    assert math.isinf(series.value or 0.0) and series.step is None and series.done is None
    assert sparkline(series.curve, 5, UNICODE) == "     "
