"""Findings: statements about a sweep, computed from its data. `report.json` lists them as
`{kind, cells, evidence, text}`, and the page shows them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Cell
from sweeper.analysis.statistics.noise import Noise
from sweeper.analysis.statistics.seeds import Comparison
from sweeper.results.cells import SPAN, Scale
from sweeper.sweep.labels import plural

_SHARED = (
    "For each cell a test at the 5 % level asks whether it may be the best (Cox and Shi 2023), "
    "with the noise that all cells share. Differences from the best have Tukey's intervals."
)
_OWN = (
    "Each cell is compared with the best at the 5 % level (Welch's test with Bonferroni's bound), "
    "with the noise of each."
)
_RATIOS = (
    "Cells are compared by ratios, on a log scale, because all values are positive, the means of "
    f"the cells span more than a factor of {SPAN:g}, and the noise grows with them."
)


@dataclass(frozen=True)
class Finding:
    """A statement about the sweep. `level` is "good", "note" or "warning"; `evidence` has the
    numbers behind `text`."""

    kind: str
    level: str
    text: str
    cells: tuple[str, ...] = ()
    evidence: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return the finding as an entry of `report.json`."""
        document = asdict(self)
        return {**document, "cells": list(self.cells), "evidence": dict(self.evidence or {})}


def noise_text(noise: Noise) -> str | None:
    """Describe the noise on which intervals and comparisons are based; None if the noise is
    unknown."""
    if noise.kind == "none":
        return None
    parts = [_noise_source(noise)]
    if noise.trend:
        parts.append(f"It changes along {noise.trend}: each cell has the noise of its value there.")
    if noise.shares:
        parts.append("The noise of a share follows from its mean, as for counts of answers.")
    if noise.between is not None:
        parts.append("All ran the same seeds: the effect of a seed on all cells does not count.")
    return " ".join(parts)


def _noise_source(noise: Noise) -> str:
    """Describe from which cells the noise is estimated, and whether cells share this estimate."""
    cells = plural(noise.repeated, "repeated cell")
    lent = f"{plural(noise.lent_cells, 'cell')} of {labels.listed(noise.lent)}"
    behind = f"{cells} and {lent}" if noise.repeated else lent
    freedom = f"{plural(round(noise.total), 'degree')} of freedom"
    behind = f"{behind if noise.lent else cells} ({freedom})"
    tested = f", as their variances do not differ (Bartlett's test, {labels.p_value(noise.p)})"
    tested = tested if noise.p is not None else ""
    if noise.kind == "pooled":
        return f"All cells share one noise, that of {behind}{tested}."
    if noise.kind == "moderated":
        return (
            f"Cells share their noise, that of {behind}{tested}: each cell's variance is drawn "
            f"toward the common one, which has the weight of {noise.prior_df:.0f} runs."
        )
    if noise.p is not None:
        return (
            f"Each cell has its own noise, because the variances of {behind} differ more than "
            f"normal noise allows (Bartlett's test, {labels.p_value(noise.p)})."
        )
    if noise.rule == "own":
        return "Each cell has its own noise, as requested."
    return (
        f"Each cell has its own noise: {behind} are too few to test whether they share it."
        if noise.repeated > 1
        else f"The noise is that of {behind}, for this cell alone."
    )


def method(scale: Scale, noise: Noise) -> str:
    """Describe in sentences how cells are compared."""
    if noise.kind == "none":
        return "The noise between seeds is unknown, so cells are not compared."
    text = _SHARED if noise.shared else _OWN
    return f"{text} {_RATIOS}" if scale == "log" else text


def short_name(cell: Cell) -> str:
    """Return the name of a cell. The baseline is called `the baseline NAME`, and a cell without a
    name `the only configuration`."""
    name = cell.name or "the only configuration"
    return f"the baseline {name}" if cell.baseline else name


def cell_text(cell: Cell) -> str:
    """Describe a cell by its settings: `learning_rate 5e-3, lora_rank 16`."""
    parts = [f"{axis} {text}" for axis, text in cell.texts.items()]
    parts += [f"{axis} not set" for axis in cell.unset]
    text = ", ".join(parts)
    return (f"the baseline ({text})" if cell.baseline else text) if text else short_name(cell)


class Behind(NamedTuple):
    """The distance of a cell from the best, with its interval, as strings: a difference, or a
    multiple of the best if cells are compared by ratios."""

    amount: str
    interval: str
    ratio: bool

    def worse(self, amount: str) -> str:
        """Return a phrase for the difference: `worse by 0.2`, `1.3 times the best`."""
        return f"{amount} times the best" if self.ratio else f"worse by {amount}"


def behind(comparison: Comparison, sign: float) -> Behind:
    """Return the distance of a cell from the best."""
    low, high = comparison.interval()
    if comparison.ratio is not None:
        ratio, *ends = labels.within(comparison.ratio, low, high)
        return Behind(ratio, " to ".join(ends), ratio=True)
    gap, *ends = labels.within(sign * comparison.difference, *sorted((sign * low, sign * high)))
    return Behind(gap, " to ".join(ends), ratio=False)


def names_of(cells: Sequence[Cell]) -> list[str]:
    """Return the short names of cells."""
    return [short_name(cell) for cell in cells]
