"""Pictures: what is drawn where, and the ticks of the axes."""

import math
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.figures.cells import cells_figure
from sweeper.analysis.figures.layouts import categories, colour_of, error_bars, layout, on_scale
from sweeper.analysis.figures.pictures import drawing, picture
from sweeper.analysis.figures.ticks import linear_ticks, log_ticks, tick_text
from sweeper.analysis.reading.frames import load
from sweeper.results.registry import Registry

RED = "#ff0000"


def dots(ys: list[Any], **more: Any) -> dict[str, Any]:
    base = {"x": list(range(len(ys))), "y": ys, "mode": "markers", "marker": {"color": RED}}
    return {"type": "scatter", "name": "", "meta": {"role": "point"}, **base, **more}


def drawn(traces: list[dict[str, Any]], laid: dict[str, Any], title: str = "") -> Any:
    (axes,) = drawing({"data": traces, "layout": laid}, title).axes
    return axes


def points(artist: Any) -> list[tuple[float, float]]:
    return [(x, y) for x, y in artist.get_xydata() if not np.isnan((x, y)).any()]


def test_values_that_an_axis_cannot_show_are_left_out():
    laid = layout("step", low=0.01, high=100.0, y_title="loss")
    ys = [0.01, 1.0, 100.0, None, math.nan, 1e300, -1.0, 0.0]
    axes = drawn([dots(ys)], laid, "title")
    assert (axes.get_yscale(), axes.get_ylabel(), axes.get_xlabel()) == ("log", "loss", "step")
    (line,) = axes.lines
    assert points(line) == [(0, 0.01), (1, 1), (2, 100)] and to_hex(line.get_color()) == RED
    low, high = axes.get_ylim()
    assert 0 < low < 0.01 and 100 < high < 1e4 and axes.get_xlim()[0] == 0


def test_a_line_has_gaps_and_an_area_is_seen_through():
    line = {"color": RED, "dash": "dot", "shape": "hvh", "width": 3}
    gaps = dots([0.5, 0.5, None, 0.5, 0.5], mode="lines", line=line)
    (drawn_line,) = drawn([gaps], layout("step")).lines
    assert np.isnan(drawn_line.get_ydata()).tolist() == [False, False, True, False, False]
    assert drawn_line.get_linestyle() == ":" and drawn_line.get_drawstyle() == "steps-mid"
    assert drawn_line.get_linewidth() == 3 and drawn_line.get_marker() == "none"
    outline = {"x": [0, 4, 4, 0], "y": [0, 0, 1, 1], "mode": "lines", "meta": {"role": "band"}}
    axes = drawn([gaps, dots([]) | outline | {"fill": "toself", "opacity": 0.14}], layout("step"))
    (area,) = axes.patches
    assert area.get_alpha() == 0.14 and area.get_zorder() < axes.lines[0].get_zorder()


def test_error_bars_reach_from_end_to_end():
    bars = error_bars([0.5, 1.0], [0.25, 2.0], RED, thickness=1.6, width=5)
    axes = drawn([dots([1.0, 3.0], error_y=bars)], layout("lr"))
    (ends,) = [part.get_segments() for part in axes.collections]
    assert [segment[:, 1].tolist() for segment in ends] == [[0.75, 1.5], [1.0, 4.0]]


def test_texts_have_places_and_turn_where_they_are_too_long_to_stand_side_by_side():
    texts = [f"org/model-of-{count}-b" for count in range(12)]
    laid = layout("model")
    categories(laid, texts)
    axes = drawn([dots([1.0] * 12, x=texts), dots([2.0], x=texts[3:4])], laid)
    assert points(axes.lines[1]) == [(3, 2.0)]
    labels = axes.get_xticklabels()
    assert len({label.get_text() for label in labels}) == 12
    assert {label.get_rotation() for label in labels} == {30}
    short = drawn([dots([1.0, 2.0], x=["a", "b &lt;"])], layout("kind") | {"height": 300})
    assert [label.get_text() for label in short.get_xticklabels()] == ["a", "b <"]
    assert {label.get_rotation() for label in short.get_xticklabels()} == {0}


def test_the_cells_have_a_row_each_with_their_runs_mean_and_interval(tmp_path):
    written.measured(tmp_path, [({"lr": lr}, [lr, lr + 0.1, lr + 0.3]) for lr in (3, 1, 2)])
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    figure = cells_figure(ranking, "loss")
    assert figure is not None
    (axes,) = drawing(figure, "").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lr=1", "lr=2", "lr=3"]
    for row, cell in enumerate(ranking.cells):
        in_row = [line for line in axes.lines if set(line.get_ydata()) == {-row}]
        assert {to_hex(line.get_color()) for line in in_row} == {colour_of(row)}
        xs = [[x for x, _ in points(line)] for line in in_row]
        assert [cell.summary.low, cell.summary.high] in xs and [cell.summary.mean] in xs
        assert cell.values in xs and len(xs) == 3


def test_the_same_figure_gives_the_same_bytes_whatever_its_texts_and_the_users_settings():
    title = "lr $x$ \u00d7 \u03b2 \u2212 \u4e2d \x1b[31m " + "long " * 40
    figure = {"data": [dots([1.0, 2.0])], "layout": layout("$\\frac{$")}
    plain = picture(figure, title)
    with mpl.rc_context({"text.usetex": True, "lines.linewidth": 9, "figure.dpi": 300}):
        assert picture(figure, title) == plain
        assert mpl.rcParams["figure.dpi"] == 300


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.082, 7.2, "0.1 0.2 0.5 1 2 5"),
        (0.9, 3.1, "0.9 1 2 3"),
        (0.3, 0.32, "0.3 0.305 0.31 0.315 0.32"),
        (100, 39_000, "100 300 1000 3000 10000 30000"),
        (1e-9, 5, "1e-8 1e-6 1e-4 0.01 1"),
        (1e-300, 1e300, "1e-268 1e-201 1e-134 1e-67 1 1e67 1e134 1e201 1e268"),
        (0.0, 5.0, ""),
    ],
)
def test_the_marks_of_a_logarithmic_axis_are_round_and_whole_numbers(low, high, texts):
    assert " ".join(map(tick_text, log_ticks(low, high))) == texts


def test_the_marks_of_a_linear_axis_are_few_and_round():
    assert linear_ticks(0, 80) == [0, 20, 40, 60, 80]
    assert linear_ticks(-0.3, 0.2) == [-0.3, -0.2, -0.1, 0, 0.1, 0.2]
    assert linear_ticks(3, 3) == [3] and len(linear_ticks(1e307, 1.7e308)) < 8


def test_an_axis_that_is_switched_takes_its_marks_along():
    laid = layout("step", low=0.1, high=100.0)
    assert laid["yaxis"]["ticktext"] == laid["meta"]["ticks"]["ticktext"]
    on_scale(laid, "linear")
    assert "tickvals" not in laid["yaxis"] and laid["meta"]["ticks"]["tickvals"]
