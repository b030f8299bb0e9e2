"""Reports of all kinds in a browser: no message on the console, no sideways scrolling."""

from pathlib import Path
from typing import Any

import pytest
from support import example_sweeps as examples

from sweeper import analysis

pytestmark = pytest.mark.e2e

EXAMPLES = (
    *("quickstart", "grpo", "random60", "cells184", "blocks35"),
    *("saturated", "crashes", "confirmation", "tasks", "terminal"),
)
NARROW = 390

SPILLED = """
[...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .filter((one) => !one.closest(".scroll, dialog, svg, pre, .sr"))
  .map((one) => one.outerHTML.slice(0, 120)).slice(0, 5)
"""
"""Elements that reach beyond the window, except those that scroll by themselves."""


def test_no_example_is_left_out() -> None:
    assert set(examples.MAKERS) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_narrow_page_never_scrolls_sideways(tmp_path: Path, browser: Any, name: str) -> None:
    sweeps = examples.make(tmp_path, name)
    report = analysis.analyze(str(tmp_path), sweeps, out=tmp_path / "report", pictures=False)
    with browser.opened(Path(report.html_path), width=NARROW) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW
        assert page.evaluate(SPILLED) == []
        assert page.errors == []


SHOWN = """
[...document.querySelectorAll("#cells-table tbody tr")].filter((row) => row.offsetParent).length
"""
COLOURS = """
[...new Set(document.querySelector("#curves .chart").data
  .filter((trace) => trace.visible !== false && trace.meta.role === "mean")
  .map((trace) => trace.line.color))].length
"""
DRAWN_ANEW = """
[...document.querySelectorAll(".chart")].every((one, at) => one.data !== window.before[at])
"""


def test_many_cells_are_a_strip_and_what_is_asked_for(tmp_path: Path, browser: Any) -> None:
    """20 of 184 cells are shown first; a brushed range filters; curves take a setting's colour."""
    sweeps = examples.make(tmp_path, "cells184")
    report = analysis.analyze(str(tmp_path), sweeps, out=tmp_path / "report", pictures=False)
    with browser.opened(Path(report.html_path)) as page:
        assert page.evaluate("document.querySelectorAll('.allstrip line').length") == 184
        assert page.evaluate(SHOWN) == 20
        page.evaluate("document.getElementById('all-cells').click()")
        assert page.evaluate(SHOWN) == 184
        page.evaluate("document.getElementById('all-cells').click()")
        # Eight cells have their own colours, and all others share one.
        assert page.evaluate(COLOURS) == 9
        page.evaluate("""
            window.before = [...document.querySelectorAll(".chart")].map((one) => one.data);
            const choice = document.getElementById("group");
            choice.value = [...choice.options].find((one) => one.text === "lora_rank").value;
            choice.dispatchEvent(new Event("change"));
        """)
        page.wait(DRAWN_ANEW)
        assert page.evaluate(COLOURS) == 8
        names = "[...document.querySelectorAll('.legend button')].map((one) => one.textContent)"
        assert page.evaluate(names) == ["1", "2", "4", "8", "16", "32", "64", "128"]
        # The upper end of the first axis, where the mouse is dragged.
        place = page.evaluate("""
            const chart = document.querySelector("[data-brush] .chart");
            chart.scrollIntoView({ behavior: "instant", block: "center" });
            const drag = chart.querySelector(".nsewdrag").getBoundingClientRect();
            const axis = chart._fullLayout;
            const height = (value) => drag.top + axis.yaxis.d2p(value);
            [drag.left + axis.xaxis.d2p(0), height(1), height(0.97)];
        """)
        x, top, bottom = place
        for kind, dx, y in (
            ("mousePressed", -12, top - 8), ("mouseMoved", 0, bottom - 1),
            ("mouseMoved", 12, bottom), ("mouseReleased", 12, bottom),
        ):  # fmt: skip
            event = {"type": kind, "x": x + dx, "y": y, "button": "left", "buttons": 1}
            page.call("Input.dispatchMouseEvent", **event, clickCount=1)
        page.wait("document.querySelector('#cells-table').classList.contains('all')")
        script = "document.querySelector('[data-filter=cells-table]').closest('.filter').innerText"
        assert page.evaluate(SHOWN) == 8 and "8 of 184" in page.evaluate(script)
        assert page.errors == []
