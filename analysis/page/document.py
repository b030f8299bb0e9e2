"""Makes the content of `report.json`: all numbers and findings. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sweeper.analysis.comparison.behaviour import Behaviour, CellBehaviour
from sweeper.analysis.comparison.blocks import rows
from sweeper.analysis.comparison.cells import Cell, Ranking
from sweeper.analysis.comparison.power import lead_text, power_table
from sweeper.analysis.comparison.stability import RULE
from sweeper.analysis.findings.finding import method
from sweeper.analysis.findings.heldout import HeldOut
from sweeper.analysis.findings.study import Study
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import RunData
from sweeper.analysis.statistics.inference import Estimate
from sweeper.metrics.objective import SMOOTH
from sweeper.store.documents import strict


def document(study: Study) -> dict[str, Any]:
    """Return the content of `report.json`, with only types that JSON has."""
    data = study.data
    content = {
        "schema": 1,
        "sweep": data.name,
        "metric": None if data.metric is None else asdict(data.metric),
        "verdict": _verdict(study),
        "method": _method(study.ranking),
        "completeness": {
            "planned": len(data.own_runs),
            "retired": data.retired,
            "used": data.used,
            "places": [asdict(place) for place in data.places],
            "states": dict(sorted(Counter(run.state for run in data.own_runs).items())),
        },
        "failures": [
            {"why": f.why, "last_line": f.last_line, "runs": [run.name for run in f.runs]}
            for f in study.failures
        ],
        "findings": [finding.document() for finding in study.findings],
        "axes": [{**asdict(axis), "effect": axis.effect._asdict()} for axis in study.axes],
        "blocks": None
        if study.blocks is None
        else {
            "by": study.blocks.by,
            "asked": study.blocks.requested,
            "rows": rows(study.blocks, study.ranking.cells),
        },
        "model": None if study.surface is None else asdict(study.surface),
        "interactions": [asdict(pair) for pair in study.pairs],
        "next_grid": None if study.next is None else asdict(study.next),
        "tradeoffs": [asdict(content) for content in study.tradeoffs],
        "stability": {
            "diverged": [run.name for run in study.stability.diverged],
            "unstable": [asdict(run) for run in study.stability.unstable],
            "rates": [asdict(rate) for rate in study.stability.rates],
        },
        "items": [asdict(task) for task in study.items],
        "held_out": _held_out(study.held_out),
        "tasks": None if study.tasks is None else asdict(study.tasks),
        "checkpoints": None if study.checkpoints is None else asdict(study.checkpoints),
        "episodes": [asdict(split) for split in study.episodes],
        "rollouts": None if study.behaviour is None else _behaviour(study.behaviour),
        "notes": [note._asdict() for note in data.noted.notes],
        "tags": {run: list(tags) for run, tags in data.noted.tags.items()},
        "cells": [_cell_row(cell, study) for cell in study.ranking.cells],
        "runs": [_run_row(run, study.prices) for run in data.runs],
    }
    return strict(content)


def _verdict(study: Study) -> dict[str, object]:
    data, ranking, verdict = study.data, study.ranking, study.verdict
    return {
        "kind": verdict.kind,
        "label": verdict.label,
        "text": verdict.text(data.name),
        "best": None if ranking.best is None else ranking.best.name,
        "tied": [cell.name for cell in ranking.tied],
        "told_apart": [cell.name for cell in ranking.apart],
        "not_compared": [cell.name for cell in ranking.not_compared],
        "lead": _lead(study),
        "baseline": data.baseline,
        "against": verdict.against,
        "checkpoint": None if verdict.checkpoint is None else asdict(verdict.checkpoint),
        "checks": [check._asdict() for check in verdict.checks],
        "seeds_to_part": study.needed,
        "power": [
            {**row._asdict(), "text": lead_text(ranking, row.lead)} for row in power_table(ranking)
        ],
        "next": list(verdict.steps),
    }


def _method(ranking: Ranking) -> dict[str, object]:
    return {
        "scale": ranking.scale,
        "interval": "Student's t, 95 %; wider for the best cell, because the same runs chose it",
        "noise": ranking.noise.document(),
        "comparison": method(ranking.scale, ranking.noise),
        "unstable": RULE,
        "smoothed": f"mean of the last {SMOOTH:.0%} of the points",
    }


def _held_out(held: HeldOut | None) -> dict[str, Any] | None:
    if held is None:
        return None
    return {
        "metric": held.metric.name,
        "training": held.training,
        "judged_in_training": held.judged,
        "gap": _estimate(held.gap),
        "cells": [
            {
                "cell": side.cell,
                "training": side.training._asdict(),
                "held_out": side.held_out._asdict(),
            }
            for side in held.sides
        ],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate._asdict()


def _lead(study: Study) -> dict[str, Any] | None:
    lead = study.lead
    if lead is None:
        return None
    compared = lead.comparison
    interval = None if compared is None else compared.interval()
    return {
        "second": lead.second.name,
        "difference": None if compared is None else compared.difference,
        "ratio": None if compared is None else compared.ratio,
        "low": None if interval is None else interval[0],
        "high": None if interval is None else interval[1],
        "p": None if compared is None else compared.p,
        "paired": _estimate(lead.paired),
    }


def _behaviour(behaviour: Behaviour) -> dict[str, Any]:
    return {
        "split": behaviour.split,
        "bins": {"low": behaviour.low, "high": behaviour.high},
        "cells": [_cell_behaviour(cell) for cell in behaviour.cells],
        "disagreements": [asdict(question) for question in behaviour.disagreements],
        "flags": [asdict(flag) for flag in behaviour.flags],
    }


def _cell_behaviour(cell: CellBehaviour) -> dict[str, Any]:
    passes = {str(k): summary._asdict() for k, summary in cell.passes.items()}
    return {**asdict(cell), "passes": passes}


def _cell_row(cell: Cell, study: Study) -> dict[str, Any]:
    ranking = study.ranking
    comparison = ranking.comparisons.get(cell.name)
    log = ranking.scale == "log"
    return {
        "cell": cell.name,
        "settings": dict(cell.settings),
        **cell.summary._asdict(),
        "planned": len(cell.runs),
        "states": dict(sorted(cell.states.items())),
        "diverged": cell.diverged,
        "wall_s": cell.wall_s,
        "difference": None if comparison is None or log else comparison.difference,
        "ratio": None if comparison is None else comparison.ratio,
        "p": None if comparison is None else comparison.p,
        "told_apart": None if comparison is None else comparison.told_apart,
        "paired": _estimate(study.paired.get(cell.name)),
    }


def _run_row(run: RunData, prices: Mapping[str, float]) -> dict[str, Any]:
    return {
        "run": run.id,
        "name": run.name,
        "cell": run.cell,
        "seed": run.seed,
        "state": run.state,
        "attempts": run.attempts,
        "reason": run.reason,
        "wall_s": run.wall_s,
        "code": None if run.origin is None else run.origin.code,
        "commit": None if run.origin is None else run.origin.commit,
        "value": run.value,
        "step": run.step,
        "last": run.last,
        "best": run.best,
        "smoothed": run.smoothed,
        "steps": run.cost.steps,
        "tokens": dict(run.cost.tokens),
        "times": None if run.times is None else run.times._asdict(),
        "dollars": dollars(run.cost, prices),
        "diverged": run.diverged,
        "missing": run.missing,
        "counts": run.counts,
        "wandb": run.link,
        "alarms": [alarm.rule for alarm in run.alarms],
    }


def flat_row(row: Mapping[str, Any], nested: str) -> dict[str, Any]:
    """Return a row of the document for a DataFrame. The entries of the mapping `row[nested]` become
    columns, with the prefix `config.` if the row has a key of the same name."""
    flat: dict[str, Any] = {"cell": row["cell"]}
    for key, value in row[nested].items():
        flat[f"config.{key}" if key in row else key] = value
    left = {
        key: value for key, value in row.items() if key not in (nested, "cell", "paired", "states")
    }
    return flat | left
