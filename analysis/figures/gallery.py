"""The figures of a report, in the order of the report."""

from sweeper.analysis.figures import axes, cells, learning_curves, rollouts
from sweeper.analysis.figures.layouts import Panel
from sweeper.analysis.findings.study import Study


def gallery(study: Study) -> list[Panel]:
    """Return all figures of the report."""
    modules = (learning_curves, axes, cells, rollouts) if study.data.runs else ()
    return [panel for module in modules for panel in module.panels(study)]
