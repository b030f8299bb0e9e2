"""`sweeper watch`: numbers and texts drawn as characters."""

import math

import pytest

from sweeper.tui.charts import plot, sparkline
from sweeper.tui.text import ASCII, UNICODE, Glyphs, age, fit_middle, short


def test_sparklines_plots_and_times() -> None:
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
def test_any_numbers_can_be_drawn(glyphs: Glyphs) -> None:
    numbers = [1.5e308, -1.5e308, 1.5e308, math.nan, math.inf, -math.inf, 5e-324, 0.0]
    for several in ([1.5e308] * 4, [0.0, 5e-324], numbers, numbers[:3]):
        for width in (1, 2, 5, 20):
            assert len(sparkline(several, width, glyphs)) == width
        assert plot([(x, x) for x in several], 40, 6, glyphs)
        for log in (False, True):
            lines = plot([*enumerate(several)], 40, 6, glyphs, [(0, 1.7e308)], log=log)
            assert all(len(line) == 40 for line in lines) or len(lines) == 1
    assert sparkline([-1.5e308, 0.0, 1.5e308], 3, ASCII) == "_+@"


def test_plots_on_a_logarithmic_scale() -> None:
    """The axis has labels at powers of ten; numbers without a logarithm are left out."""
    points = [(float(x), 10.0**-x) for x in range(5)]
    lines = plot([*points, (5.0, 0.0), (6.0, -1.0)], 21, 10, ASCII, log=True)
    labels = {row: line[:7].strip() for row, line in enumerate(lines[:-1]) if line[:6].strip()}
    assert labels == {0: "1", 2: "0.1", 4: "0.01", 6: "0.001", 8: "0.0001"}
    assert lines[-1].split() == ["0", "4"]  # the axis ends where the curve does
    assert plot(points, 21, 10, ASCII)[4].split()[0] == "*"  # the same points on a linear scale
    assert plot([(0.0, -1.0)], 21, 10, ASCII, log=True) == ["nothing positive to draw"]
    lines = plot([(0.0, 2.0), (1.0, 3.0)], 21, 5, ASCII, log=True)
    assert [line[:5].strip() for line in lines[:4]] == ["3", "2.621", "", "2"]
