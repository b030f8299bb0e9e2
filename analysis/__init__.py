"""From a sweep's records to a report that says what won, and whether that can be believed.

    import analysis
    report = analysis.analyze("sweeps", "quickstart")
    print(report.verdict)
    report.cells          # a DataFrame, a row a cell

Read through `sweeper.registry`; what is heavy is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report import Report, analyze

__all__ = ["Report", "analyze"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    return getattr(importlib.import_module("analysis.report"), name)
