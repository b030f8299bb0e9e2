"""Draws lines, areas, marks and text, and makes a PNG of them.

Pillow draws without antialiasing, so everything but text is drawn three times as large and scaled
down. A full plotting library takes longer to load than a report needs otherwise.
"""

import functools
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from sweeper.common.sanitize import sanitize

INK, GRID, _PAPER = "#3a3f47", "#e6e4df", "#ffffff"
_FINER = 3
_LABEL = 60
_DASHES = {"dot": (2.0, 3.0), "dash": (6.0, 4.0)}

Point = tuple[float, float]
Side = Literal["left", "middle", "right"]
_ANCHORS: dict[Side, str] = {"left": "lm", "middle": "mm", "right": "rm"}


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    data = resources.files("sweeper.analysis").joinpath("fonts", "DejaVuSans.ttf").read_bytes()
    return ImageFont.truetype(io.BytesIO(data), size, layout_engine=ImageFont.Layout.BASIC)


def _safe(text: str) -> str:
    """Return the characters of a text that a picture can show."""
    shown = sanitize(text)
    return shown if len(shown) <= _LABEL else f"{shown[: _LABEL - 1]}…"


def text_width(text: str, size: int) -> float:
    """Return the width of a text in pixels."""
    return _font(size).getlength(_safe(text))


def _mixed(colour: str, share: float) -> str:
    """Return the colour that results on paper from a partly transparent colour. With it,
    overlapping lines of one kind show no darker knots."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


class Canvas:
    """A white sheet of this many pixels. Coordinates count from the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._image = Image.new("RGB", (width * _FINER, height * _FINER), _PAPER)
        self._draw = ImageDraw.Draw(self._image, "RGBA")
        self._texts: list[tuple[Point, str, int, Side, bool]] = []

    def line(
        self,
        points: Sequence[Point],
        colour: str,
        width: float = 1.0,
        *,
        opacity: float = 1.0,
        dash: str = "",
    ) -> None:
        """Draw a line through all points."""
        colour, thick = _mixed(colour, opacity), max(1, round(width * _FINER))
        pieces = _dashed(points, _DASHES[dash]) if dash in _DASHES else [points]
        for piece in pieces:
            own = [(x * _FINER, y * _FINER) for x, y in piece]
            if len(own) > 1:
                self._draw.line(own, colour, thick, joint="curve" if thick > _FINER else None)

    def area(self, outline: Sequence[Point], colour: str, opacity: float) -> None:
        """Fill an outline with a partly transparent colour."""
        if len(outline) > 2:
            red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
            own = [(x * _FINER, y * _FINER) for x, y in outline]
            self._draw.polygon(own, (red, green, blue, round(255 * opacity)))

    def mark(self, at: Point, colour: str, size: float, symbol: str = "circle") -> None:
        """Draw a dot, an open circle ("circle-open") or a cross ("x") of this width in pixels."""
        (x, y), half = (at[0] * _FINER, at[1] * _FINER), size * _FINER / 2
        box = (x - half, y - half, x + half, y + half)
        if symbol == "x":
            self._draw.line((box[0], box[1], box[2], box[3]), colour, _FINER * 2)
            self._draw.line((box[0], box[3], box[2], box[1]), colour, _FINER * 2)
        elif symbol == "circle-open":
            self._draw.ellipse(box, outline=colour, width=round(1.5 * _FINER))
        else:
            self._draw.ellipse(box, fill=colour)

    def text(
        self, at: Point, text: str, size: int = 12, side: Side = "middle", *, upright: bool = False
    ) -> None:
        """Draw a line of text that is centred at a point, or begins or ends there."""
        self._texts.append((at, _safe(text), size, side, upright))

    def png(self) -> bytes:
        """Return the drawing as a PNG. The same strokes give the same bytes."""
        image = self._image.reduce(_FINER)
        draw = ImageDraw.Draw(image)
        for at, text, size, side, upright in self._texts:
            font = _font(size)
            if upright:
                wide, high = math.ceil(font.getlength(text)) + 2, 2 * size
                strip = Image.new("L", (wide, high), 0)
                ImageDraw.Draw(strip).text((wide / 2, high / 2), text, 255, font, anchor="mm")
                turned = strip.rotate(90, expand=True)
                corner = (round(at[0] - high / 2), round(at[1] - wide / 2))
                image.paste(INK, corner, turned)
            else:
                draw.text(at, text, INK, font, anchor=_ANCHORS[side])
        out = io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()


def _dashed(points: Sequence[Point], pattern: tuple[float, float]) -> Iterator[list[Point]]:
    """Yield the dashes of a line: drawn for some pixels, left out for some, and so on."""
    left, drawn = pattern[0], True
    stroke: list[Point] = list(points[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length, done = math.hypot(x1 - x0, y1 - y0), 0.0
        while length - done > left:
            done += left
            at = (x0 + (x1 - x0) * done / length, y0 + (y1 - y0) * done / length)
            if drawn:
                yield [*stroke, at]
            drawn = not drawn
            left, stroke = pattern[0 if drawn else 1], [at]
        left -= length - done
        stroke.append((x1, y1))
    if drawn:
        yield stroke
