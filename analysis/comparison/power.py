"""Simulates which leads can be detected with a number of seeds. A lead is the distance of the
best cell from the other cells, if these are equally good. With the smallest lead that can be
detected, four of five sweeps name the best cell alone. Only `before_launch` does I/O."""

import functools
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.last_values import settle
from sweeper.analysis.statistics.distributions import student_quantile
from sweeper.analysis.statistics.inference import CONFIDENCE
from sweeper.analysis.statistics.noise import FEW, Spread
from sweeper.results.cells import exp
from sweeper.results.registry import Registry
from sweeper.sweep.metric import lenders
from sweeper.sweep.plan import Plan

SEEDS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100)
_DRAWS = 4000
_SHARE = 0.8


class SmallestLead(NamedTuple):
    """The smallest lead that can be detected with `seeds` seeds per cell, in 4 of 5 sweeps."""

    seeds: int
    lead: float


@functools.lru_cache(maxsize=256)
def lead_found(cells: int, seeds: int, known_df: float = math.inf) -> float:
    """Return the smallest lead that is detected in 4 of 5 sweeps. The unit is the standard
    deviation between seeds. If this deviation is an estimate with `known_df` degrees of freedom,
    the result allows for its error."""
    cells = max(cells, 2)
    rng = np.random.default_rng([17, cells, seeds])
    # If there are few cells, each has its own noise. Welch's test of two cells then has about two
    # thirds of their degrees of freedom.
    df = (seeds - 1) * (cells if cells >= FEW else 4 / 3)
    drawn: Any = rng.chisquare(df, _DRAWS)
    reach: Any = student_quantile((1 + CONFIDENCE) / 2, df) * np.sqrt(2 * drawn / df)
    rival: Any = rng.standard_normal((_DRAWS, cells - 1)).max(axis=1)
    needed = rival - rng.standard_normal(_DRAWS) + reach
    if known_df < math.inf:
        needed = needed * np.sqrt(known_df / rng.chisquare(known_df, _DRAWS))
    return float(np.quantile(needed, _SHARE)) / math.sqrt(seeds)


def seeds_for(lead: float, cells: int, known_df: float = math.inf) -> int | None:
    """Return how many seeds per cell are enough to detect `lead` in 4 of 5 sweeps. The unit of
    `lead` is the standard deviation between seeds. Return None if more than 100 seeds are
    needed."""
    return next((n for n in SEEDS if lead_found(cells, n, known_df) <= lead), None)


def smallest_lead(ranking: Ranking, cells: int, seeds: int) -> float | None:
    """Return the smallest lead that can be detected with `seeds` seeds per cell and the noise of
    `ranking`, on the scale of the comparison. Return None if the noise is unknown."""
    spread = usual_spread(ranking)
    return None if spread is None else lead_found(cells, seeds, spread.df) * spread.sd


def usual_spread(ranking: Ranking) -> Spread | None:
    """Return the noise of a typical cell: the shared noise, or the root mean square of the noise of
    all cells. For the mean square, each cell's noise is limited to three times the median. Return
    None if the noise is unknown."""
    noise = ranking.noise.between or ranking.noise
    spreads = sorted(noise.spreads.values(), key=lambda spread: spread.sd)
    if not spreads:
        return None
    middle = spreads[len(spreads) // 2]
    if noise.shared:
        return middle
    # A single cell may be many times noisier than the others, for example if it diverged.
    sds = [min(spread.sd, 3 * middle.sd) for spread in spreads]
    return Spread(math.hypot(*sds) / math.sqrt(len(sds)), sum(spread.df for spread in spreads))


def noise_of(
    registry: Registry, sweep: str, metric: str | None, goal: str | None = None
) -> tuple[Ranking, float | None]:
    """Rank the cells of a sweep. Return the ranking and the standard deviation between seeds, on
    the scale of the comparison (None if the noise is unknown)."""
    (data,) = settle(load(registry, sweep, metric, goal, rollouts=False))
    ranking = rank(data)
    spread = usual_spread(ranking)
    return ranking, None if spread is None else spread.sd


def power_table(ranking: Ranking) -> list[SmallestLead]:
    """Return the smallest lead that can be detected, for several numbers of seeds per cell. Return
    an empty list if the noise is unknown."""
    cells = len([cell for cell in ranking.measured if not cell.diverged])
    leads = [(seeds, smallest_lead(ranking, cells, seeds)) for seeds in SEEDS[:10]]
    return [SmallestLead(seeds, lead) for seeds, lead in leads if lead is not None]


def lead_text(ranking: Ranking, lead: float) -> str:
    """Return a lead as text: a percentage on a log scale, otherwise a difference."""
    if ranking.scale == "log":
        return f"{100 * (exp(lead) - 1):.2g} %"
    return labels.number(lead, 2)


def before_launch(registry: Registry, plan: Plan) -> str | None:
    """Return a sentence about the smallest lead that the planned seeds can detect. The noise comes
    from the first sweep in `noise: {from: ...}` with a known noise. Without `from`, it comes from
    the earlier runs of this sweep. Return None if the noise is unknown, if there is no metric, if
    the sweep has stages, or if there are fewer than two cells or two seeds."""
    metric = plan.metric
    cells = Counter(run.cell for run in plan.runs if not run.retired)
    seeds = max(cells.values(), default=0)
    if metric is None or plan.stages or seeds < 2 or len(cells) < 2:
        return None
    for name in lenders(metric.noise) or (plan.name,):
        if not registry.has_sweep(name):
            continue
        ranking, _ = noise_of(registry, name, metric.name, metric.goal)
        lead = smallest_lead(ranking, len(cells), seeds)
        if lead is not None:
            return (
                f"{seeds} seeds find a lead of {lead_text(ranking, lead)} or more in 4 of 5 "
                f"sweeps (by the noise of {name})"
            )
    return None
