"""The figures of rollouts: rewards, pass@k, and how rollouts change by iteration. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.analysis.comparison.behaviour import BINS, Behaviour, CellBehaviour
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.figures.layouts import (
    Panel,
    colour_of,
    error_bars,
    layout,
    plain,
    rounded,
    tones,
)
from sweeper.analysis.findings.finding import cell_text
from sweeper.analysis.findings.study import Study

_SHOWN = 6


def panels(study: Study) -> Iterator[Panel]:
    """Yield the figures of rollouts, if any were read."""
    behaviour, ranking = study.behaviour, study.ranking
    if behaviour is None:
        return
    yield Panel("rollouts", "rewards", rewards(behaviour, ranking), "Histogram of rewards by cell")
    figure = passes(behaviour, ranking)
    if figure is not None:
        yield Panel("rollouts", "pass@k", figure, "pass@k by k, one line per cell")
    over = (
        ("signal", "groups with signal", "groups with signal", True),
        ("length", "length of answers", "tokens written", False),
    )
    for what, name, title, share in over:
        figure = over_iterations(behaviour, ranking, what, title, share=share)
        if figure is not None:
            yield Panel("rollouts", name, figure, f"{title} by iteration, one line per cell")


def rewards(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any]:
    """Make histograms of the rewards of the last iteration."""
    width = (behaviour.high / BINS - behaviour.low / BINS) or 1.0
    centres = rounded([behaviour.low + width * (i + 0.5) for i in range(BINS)])
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": centres,
            "y": list(cell.histogram),
            "line": {
                "width": 2.5 if not position else 1.8,
                "color": colour_of(tone),
                "shape": "hvh",
            },
            "hovertemplate": "reward about %{x}: %{y:.1%} of answers",
            "meta": {"cell": position, "tone": tone, "role": "line"},
        }
        for cell, position, tone, name in reversed(_shown(behaviour, ranking))
    ]
    laid = layout("reward at the last iteration", height=280, y_title="share of answers")
    laid["xaxis"]["rangemode"] = "normal"
    laid["yaxis"].update({"rangemode": "tozero", "tickformat": ".0%"})
    return {"data": traces, "layout": laid}


def passes(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any] | None:
    """Draw pass@k by k, with intervals over seeds."""
    traces: list[dict[str, Any]] = []
    most = 0
    for cell, position, tone, name in reversed(_shown(behaviour, ranking)):
        if not cell.passes:
            continue
        most = max(most, *cell.passes)
        means = [summary.mean or 0.0 for summary in cell.passes.values()]
        bounds = [(s.low, s.high) for s in cell.passes.values()]
        above = [
            0.0 if high is None else min(high, 1.0) - m
            for (_, high), m in zip(bounds, means, strict=True)
        ]
        below = [
            0.0 if low is None else m - max(low, 0.0)
            for (low, _), m in zip(bounds, means, strict=True)
        ]
        colour = colour_of(tone)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": list(cell.passes),
                "y": rounded(means),
                "error_y": error_bars(above, below, colour, thickness=1.2, width=3),
                "line": {"width": 2.5 if not position else 1.8, "color": colour},
                "marker": {"size": 6, "color": colour},
                "hovertemplate": "pass@%{x}: %{y:.1%}",
                "meta": {"cell": position, "tone": tone, "role": "line"},
            }
        )
    if not traces:
        return None
    laid = layout("k", height=280, y_title="pass@k")
    powers = [2**i for i in range(most.bit_length())]
    laid["xaxis"].update(
        {
            "type": "log",
            "tickvals": powers,
            "ticktext": list(map(str, powers)),
            "rangemode": "normal",
        }
    )
    laid["yaxis"].update({"tickformat": ".0%", "rangemode": "tozero"})
    return {"data": traces, "layout": laid}


def over_iterations(
    behaviour: Behaviour, ranking: Ranking, what: str, title: str, *, share: bool
) -> dict[str, Any] | None:
    """Draw `signal`, `length` or `reward` of the cells by iteration. None if it never changes, or
    if only one iteration was read."""
    traces: list[dict[str, Any]] = []
    for cell, position, tone, name in reversed(_shown(behaviour, ranking)):
        values: Mapping[int, float] = getattr(cell, what)
        if len(values) > 1:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": list(values),
                    "y": rounded(list(values.values())),
                    "line": {"width": 2.5 if not position else 1.8, "color": colour_of(tone)},
                    "marker": {"size": 6, "color": colour_of(tone)},
                    "hovertemplate": "iteration %{x}: %{y:.0%}"
                    if share
                    else "iteration %{x}: %{y}",
                    "meta": {"cell": position, "tone": tone, "role": "line"},
                }
            )
    if not traces:
        return None
    laid = layout("iteration", height=280, y_title=title)
    laid["yaxis"]["rangemode"] = "tozero"
    if share:
        laid["yaxis"]["tickformat"] = ".0%"
    return {"data": traces, "layout": laid}


def _shown(behaviour: Behaviour, ranking: Ranking) -> list[tuple[CellBehaviour, int, int, str]]:
    """Return the first cells of the ranking that have rollouts, with position, colour and name."""
    colours = tones(ranking)
    own = {cell.cell: cell for cell in behaviour.cells}
    return [
        (own[cell.name], position, colours[cell.name], plain(cell_text(cell)))
        for position, cell in enumerate(ranking.cells)
        if cell.name in own
    ][:_SHOWN]
