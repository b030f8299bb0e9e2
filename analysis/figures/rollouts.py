"""The figures of rollouts: rewards, pass@k, and changes over the iterations. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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
    for quantity, name, title, share in over:
        figure = over_iterations(behaviour, ranking, quantity, title, share=share)
        if figure is not None:
            yield Panel("rollouts", name, figure, f"{title} by iteration, one line per cell")


def rewards(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any]:
    """Draw histograms of the rewards of the last iteration."""
    width = (behaviour.high / BINS - behaviour.low / BINS) or 1.0
    centres = rounded([behaviour.low + width * (i + 0.5) for i in range(BINS)])
    hover = "reward about %{x}: %{y:.1%} of answers"
    traces = [
        _line(shown, centres, shown.cell.histogram, hover, stepped=True)
        for shown in reversed(_shown(behaviour, ranking))
    ]
    laid = layout("reward at the last iteration", height=280, y_title="share of answers")
    laid["xaxis"]["rangemode"] = "normal"
    laid["yaxis"].update({"rangemode": "tozero", "tickformat": ".0%"})
    return {"data": traces, "layout": laid}


def passes(behaviour: Behaviour, ranking: Ranking) -> dict[str, Any] | None:
    """Draw pass@k against k, with intervals over seeds. None if no cell has pass@k."""
    traces: list[dict[str, Any]] = []
    most = 0
    for shown in reversed(_shown(behaviour, ranking)):
        passed = shown.cell.passes
        if not passed:
            continue
        most = max(most, *passed)
        rates = [(s.mean or 0.0, s.low, s.high) for s in passed.values()]
        above = [0.0 if high is None else min(high, 1.0) - mean for mean, _, high in rates]
        below = [0.0 if low is None else mean - max(low, 0.0) for mean, low, _ in rates]
        bars = error_bars(above, below, colour_of(shown.tone), thickness=1.2, width=3)
        means = rounded([mean for mean, *_ in rates])
        traces.append(_line(shown, passed, means, "pass@%{x}: %{y:.1%}") | {"error_y": bars})
    if not traces:
        return None
    laid = layout("k", height=280, y_title="pass@k")
    powers = [2**i for i in range(most.bit_length())]
    ticks = {"tickvals": powers, "ticktext": list(map(str, powers))}
    laid["xaxis"].update({"type": "log", "rangemode": "normal", **ticks})
    laid["yaxis"].update({"tickformat": ".0%", "rangemode": "tozero"})
    return {"data": traces, "layout": laid}


def over_iterations(
    behaviour: Behaviour, ranking: Ranking, quantity: str, title: str, *, share: bool
) -> dict[str, Any] | None:
    """Draw the `quantity` ("signal", "length" or "reward") of the cells by iteration, in percent if
    `share` is set. None if no cell has values for two iterations."""
    traces: list[dict[str, Any]] = []
    hover = "iteration %{x}: %{y:.0%}" if share else "iteration %{x}: %{y}"
    for shown in reversed(_shown(behaviour, ranking)):
        values: Mapping[int, float] = getattr(shown.cell, quantity)
        if len(values) > 1:
            traces.append(_line(shown, values, rounded(list(values.values())), hover))
    if not traces:
        return None
    laid = layout("iteration", height=280, y_title=title)
    laid["yaxis"]["rangemode"] = "tozero"
    if share:
        laid["yaxis"]["tickformat"] = ".0%"
    return {"data": traces, "layout": laid}


class _Shown(NamedTuple):
    """A cell with rollouts, its position in the ranking, its tone and its name."""

    cell: CellBehaviour
    position: int
    tone: int
    name: str


def _shown(behaviour: Behaviour, ranking: Ranking) -> list[_Shown]:
    """Return the first cells of the ranking that have rollouts."""
    colours = tones(ranking)
    by_name = {cell.cell: cell for cell in behaviour.cells}
    return [
        _Shown(by_name[cell.name], position, colours[cell.name], plain(cell_text(cell)))
        for position, cell in enumerate(ranking.cells)
        if cell.name in by_name
    ][:_SHOWN]


def _line(
    shown: _Shown,
    x: Iterable[float | None],
    y: Iterable[Any],
    hover: str,
    *,
    stepped: bool = False,
) -> dict[str, Any]:
    """Draw a cell's values as a line with markers, or as the outline of a histogram
    (`stepped`)."""
    colour = colour_of(shown.tone)
    line: dict[str, Any] = {"width": 1.8 if shown.position else 2.5, "color": colour}
    if stepped:
        mode, marks = "lines", {}
        line["shape"] = "hvh"
    else:
        mode, marks = "lines+markers", {"marker": {"size": 6, "color": colour}}
    return {
        "type": "scatter",
        "mode": mode,
        "name": shown.name,
        "x": list(x),
        "y": list(y),
        "line": line,
        **marks,
        "hovertemplate": hover,
        "meta": {"cell": shown.position, "tone": shown.tone, "role": "line"},
    }
