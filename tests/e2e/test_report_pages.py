"""Reports of sweeps of every kind, in a real browser: they draw without a word on the console, and
nothing makes a narrow page scroll sideways."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper import analysis

pytestmark = pytest.mark.e2e

EXAMPLES = (
    *("quickstart", "grpo", "random60", "cells184", "blocks35"),
    *("saturated", "crashes", "confirmation", "tasks"),
)
NARROW = 390

SPILLED = """
[...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .filter((one) => !one.closest(".scroll, dialog, svg, pre, .sr"))
  .map((one) => one.outerHTML.slice(0, 120)).slice(0, 5)
"""
"""What reaches beyond the window, but for what scrolls by itself."""


@pytest.fixture(scope="module")
def examples(load_support: Callable[[str], ModuleType]) -> ModuleType:
    return load_support("example_sweeps")


@pytest.fixture(scope="module")
def browser(load_support: Callable[[str], ModuleType]) -> Iterator[Any]:
    chromium = load_support("chromium")
    if chromium.PROGRAM is None:
        pytest.skip("chromium is not installed: the report is not tried in a browser")
    with chromium.Browser() as found:
        yield found


def test_no_example_is_left_out(examples: ModuleType) -> None:
    assert set(examples.MAKERS) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_narrow_page_never_scrolls_sideways(
    tmp_path: Path, written: ModuleType, examples: ModuleType, browser: Any, name: str
) -> None:
    sweeps = examples.make(tmp_path, name, written)
    report = analysis.analyze(str(tmp_path), sweeps, out=tmp_path / "report", pictures=False)
    with browser.opened(Path(report.html_path), width=NARROW) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW
        assert page.evaluate(SPILLED) == []
        assert page.errors == []
