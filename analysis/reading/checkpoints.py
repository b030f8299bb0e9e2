"""Chooses the weights of the best run. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.reading.frames import RunData
from sweeper.metrics.rows import as_float, ends_final
from sweeper.sweep.labels import plural


@dataclass(frozen=True)
class Checkpoint:
    """The weights of the best run. `path` is a path for sampling if the run recorded one, else a
    path for training. `expires` says when the checkpoint expires; None if this is unknown."""

    run: str
    name: str
    path: str
    step: float | None
    expires: str | None
    note: str | None


def choose_checkpoint(run: RunData, at: str) -> Checkpoint | None:
    """Choose a checkpoint of a run: the final checkpoint, or the last one if none is final. With
    `at` "best", prefer the checkpoint at the step of the best value. None if the run has no
    checkpoint."""
    usable = [record for record in run.checkpoints if _path(record) is not None]
    if not usable:
        return None
    final = [record for record in usable if ends_final([record])]
    chosen = (final or usable)[-1]
    note = None
    if at == "best" and run.step is not None and chosen.get("batch") != run.step:
        exact = [record for record in usable if record.get("batch") == run.step]
        chosen = exact[-1] if exact else chosen
        if not exact:
            note = f"the best value was at step {run.step:g}, which has no checkpoint"
    # `batch` starts again in every epoch, so it is the step only in the first.
    step = None if chosen.get("epoch") else chosen.get("batch")
    return Checkpoint(
        run=run.name or run.id,
        name=str(chosen.get("name", "")),
        path=_path(chosen) or "",
        step=step if isinstance(step, int | float) else None,
        expires=_expires(chosen),
        note=note,
    )


def _path(record: Mapping[str, Any]) -> str | None:
    for key in ("sampler_path", "state_path", "path"):
        if isinstance(record.get(key), str) and record[key]:
            return record[key]
    return None


def _expires(record: Mapping[str, Any]) -> str | None:
    for key in ("expires_at", "expires"):
        if record.get(key):
            return f"expires {record[key]}"
    seconds = as_float(record.get("ttl_seconds"))
    if seconds is not None and math.isfinite(seconds):
        days = seconds / 86400
        span = plural(round(days), "day") if days >= 1 else labels.duration(seconds)
        return f"deleted {span} after it was saved"
    return None
