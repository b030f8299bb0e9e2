"""Makes the table of the parts of each cell's step times, as texts. Pure."""

from collections.abc import Mapping
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.figures.layouts import named_rows
from sweeper.results.step_times import mean_times

LINKED = "file://"
"""The prefix of addresses that a browser can open."""
_CELLS = 40
_PARTS = 8
ABOUT = (
    "Mean seconds of a step, and the share of each part. A part is the time in which the run "
    "waited for this kind of work. Requests are pipelined, so the work itself may take longer. "
    "Parts that tinker-cookbook recorded may overlap."
)


def time_table(ranking: Ranking) -> dict[str, Any] | None:
    """Return a table of step times with a row for each cell: the shares of the longest parts of a
    step, and the timelines of one run. None if no run recorded step times."""
    named = named_rows(ranking)
    drawn: dict[str, Mapping[str, str]] = {
        cell.name: run.timelines
        for cell in ranking.cells
        for run in reversed(cell.runs)
        if run.timelines
    }
    times = {
        cell.name: mean
        for cell in ranking.cells
        if (mean := mean_times([run.times for run in cell.runs if run.times is not None]))
    }
    whole = mean_times(list(times.values()))
    if whole is None:
        return None
    parts = list(whole.parts)[:_PARTS]
    rows = [
        {
            **named[cell],
            "seconds": labels.number(mean.seconds, 3),
            "shares": [
                f"{mean.share(part):.0%}".replace("%", " %") if part in mean.parts else labels.NONE
                for part in parts
            ],
            "timelines": drawn.get(cell, {}),
        }
        for cell, mean in times.items()
    ]
    return {
        "parts": parts,
        "parts_left": len(whole.parts) - len(parts),
        "rows": rows[:_CELLS],
        "cells_left": max(len(rows) - _CELLS, 0),
        "timelines": not drawn.keys().isdisjoint(times),
    }
