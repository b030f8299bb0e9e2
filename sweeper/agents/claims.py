"""Checks a claim that one cell is better than another: seeds, intervals, and the same data."""

import re
from typing import TYPE_CHECKING

from sweeper.errors import UsageError
from sweeper.results.registry import Registry

if TYPE_CHECKING:
    from sweeper.analysis.statistics.inference import Estimate

_DATA = re.compile(r"(^|[._])(task|data|dataset|eval|test|bench\w*|suite|prompts?|grader|split)")
"""Matches settings that may change the data on which runs are judged."""


def check_claim(
    registry: Registry, better: str, worse: str, metric: str | None
) -> dict[str, object]:
    """Check the claim that the cell `better` (sweep/cell) beats `worse`. The answer has `holds`
    (None if it cannot be decided), `because`, and the figures. Raises `NotFound`, `UsageError`."""
    from sweeper import analysis

    if "/" not in better or "/" not in worse:
        raise UsageError("name two cells, each as sweep/cell: of whole sweeps none is better")
    comparison = analysis.versus(registry, better, worse, metric=metric)
    if len(comparison.rows) != 1:
        raise UsageError("these are not two cells that can be compared")
    row, minimize = comparison.rows[0], comparison.metric.goal == "minimize"
    a, b = row.a.summary, row.b.summary
    figures: dict[str, object] = {
        "metric": comparison.metric.name,
        "goal": comparison.metric.goal,
        "better": {"cell": comparison.a, "n": a.n, "mean": a.mean},
        "worse": {"cell": comparison.b, "n": b.n, "mean": b.mean},
        "difference": row.difference._asdict(),
        "scale": comparison.scale,
        "changed": [key for key, _, _ in comparison.changed],
    }
    holds, why = _judged(a.n, b.n, row.difference, minimize)
    other = [key for key, _, _ in comparison.changed if _DATA.search(key)]
    if other:
        holds, why = None, f"they are judged on other data, or may be: {', '.join(other)} differ"
    return {"holds": holds, "because": why, **figures}


def _judged(a: int, b: int, difference: "Estimate", minimize: bool) -> tuple[bool | None, str]:
    """Judge by the difference, `worse` minus `better`, and its interval."""
    if not a or not b:
        return None, "one of them has no run that counts"
    if min(a, b) < 2:
        return None, (
            f"{a} seed against {b}: one seed shows nothing, as another seed of the same cell may "
            "differ by as much; give both three seeds or more"
        )
    if difference.low is None or difference.p is None:
        return None, "no interval is known: more seeds tell"
    ahead = difference.value > 0 if minimize else difference.value < 0
    interval = f"95 % interval {difference.low:.4g} to {difference.high:.4g}"
    if difference.p >= 0.05:
        return None, f"noise can explain the difference ({interval}, p {difference.p:.2g})"
    if not ahead:
        return False, f"it is the other way round ({interval}, p {difference.p:.2g})"
    return True, f"the difference is beyond the noise ({interval}, p {difference.p:.2g})"
