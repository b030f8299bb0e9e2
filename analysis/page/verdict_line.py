"""Makes a verdict of one line, for a message or the end of a launch."""

import numpy as np

from sweeper.analysis.findings.baselines import with_baseline
from sweeper.analysis.findings.study import study
from sweeper.analysis.reading.frames import SweepData, load
from sweeper.analysis.reading.last_values import settle
from sweeper.common.sanitize import sanitize
from sweeper.errors import SweeperError
from sweeper.results.origins import differences, sentences
from sweeper.results.registry import Registry


def verdict_line(registry: Registry, sweep: str) -> str | None:
    """Return one line with the best cell, its value and the label of the verdict. For a sweep with
    stages, judge the last stage that has a metric. None if the sweep has no metric or cannot be
    read."""
    try:
        plan = registry.sweep(sweep).plan
        judged = [stage.name for stage in plan.stages if stage.metric is not None]
        if plan.metric is None and not judged:
            return None
        name = f"{sweep}/{judged[-1]}" if plan.stages else sweep
        with np.errstate(all="ignore"):
            (data,) = settle(load(registry, name, None, None, rollouts=False))
            verdict = study(with_baseline(data, registry)).verdict
    except SweeperError:
        return None
    different = executed_differently(data)
    caution = f"; but the runs executed {'; '.join(different)}" if different else ""
    if verdict.number is None:
        return sanitize(f"{verdict.headline} [{verdict.label}]{caution}")
    spread = f" ({verdict.spread})" if verdict.spread else ""
    line = f"{verdict.headline}: {verdict.number}{spread} [{verdict.label}]"
    against = f"; {verdict.against}" if verdict.against else ""
    return sanitize(f"{line}{against}{caution}")


def executed_differently(data: SweepData) -> tuple[str, ...]:
    """Return sentences about differences in code, packages or data between the counted runs;
    empty if there are none."""
    return tuple(sentences(differences(run for run in data.runs if run.counts)))
