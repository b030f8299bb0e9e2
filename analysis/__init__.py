"""Turns a sweep's records into a report that names the best settings and says how certain this
result is: `analyze("sweeps", "quickstart").verdict`, `compare(runs, ...)`, `best(...)`. Imports are
lazy."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeper.analysis.comparing import Compared, compare
    from sweeper.analysis.page.best_cells import Best, best
    from sweeper.analysis.page.report import Report, analyze
    from sweeper.analysis.pairwise import Versus, versus

__all__ = ["Best", "Compared", "Report", "Versus", "analyze", "best", "compare", "versus"]

_HOMES = {
    "Best": "page.best_cells",
    "Compared": "comparing",
    "Report": "page.report",
    "Versus": "pairwise",
    "analyze": "page.report",
    "best": "page.best_cells",
    "compare": "comparing",
    "versus": "pairwise",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sweeper.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sweeper.analysis.{_HOMES[name]}"), name)
