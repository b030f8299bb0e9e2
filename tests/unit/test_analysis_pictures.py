"""Pictures: what stands where on them, and the marks of their axes."""

import io
import math
from typing import Any

import pytest
from PIL import Image

from sweeper.analysis.figures.canvas import Canvas
from sweeper.analysis.figures.layouts import layout, on_scale
from sweeper.analysis.figures.pictures import picture
from sweeper.analysis.figures.ticks import linear_ticks, log_ticks, tick_text

RED, BLUE = (255, 0, 0), (0, 0, 255)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def where(image: Image.Image, colour: tuple[int, int, int]) -> list[tuple[int, int]]:
    wide, high = image.size
    return [(x, y) for y in range(high) for x in range(wide) if image.getpixel((x, y)) == colour]


def dots(ys: list[Any], colour: str, **more: Any) -> dict[str, Any]:
    marker = {"size": 12, "color": colour}
    own = {"x": list(range(len(ys))), "y": ys, "mode": "markers", "marker": marker, **more}
    return {"type": "scatter", "name": "", "meta": {"role": "point"}, **own}


def test_values_on_a_logarithmic_axis_stand_where_their_marks_are():
    laid = layout("step", low=0.01, high=100.0, y_title="loss")
    assert laid["yaxis"]["type"] == "log"
    traces = [dots([0.01, 1.0, 100.0], "#ff0000"), dots([None, math.nan, 1e300], "#0000ff")]
    image = opened(picture({"data": traces, "layout": laid}, "title"))
    assert where(image, BLUE) == []
    columns: dict[int, list[int]] = {}
    for x, y in where(image, RED):
        columns.setdefault(x // 100, []).append(y)
    low, middle, high = (sum(ys) / len(ys) for _, ys in sorted(columns.items()))
    assert low > middle > high and middle == pytest.approx((low + high) / 2, abs=1.0)


def test_a_line_has_gaps_and_an_area_is_seen_through():
    laid = layout("step", low=0.0, high=1.0)
    gaps = dots([0.5, 0.5, None, 0.5, 0.5], "#ff0000", mode="lines", line={"color": "#ff0000"})
    image = opened(picture({"data": [gaps], "layout": laid}, ""))
    found = {x for x, _ in where(image, RED)}
    assert found and not found & set(range(430, 560)) and max(found) > 600
    area = {**gaps, "fill": "toself", "opacity": 0.5, "x": [0, 4, 4, 0], "y": [0, 0, 1, 1]}
    seen = opened(picture({"data": [area], "layout": laid}, ""))
    assert seen.getpixel((470, 215))[0] == 255 and 100 < seen.getpixel((470, 215))[1] < 160


def test_the_same_strokes_give_the_same_bytes_and_any_text_can_be_shown():
    def drawn() -> bytes:
        canvas = Canvas(300, 60)
        canvas.line([(0, 0), (300, 60)], "#ff0000", 2, dash="dot")
        canvas.text((150, 30), "lr $x$ \u00d7 \u03b2 \u2212 \x1b[31m " + "long " * 40)
        canvas.text((20, 30), "upright", upright=True)
        return canvas.png()

    assert drawn() == drawn()


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
def test_the_marks_of_a_logarithmic_axis_are_round_and_whole_numbers(
    low: float, high: float, texts: str
):
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
