"""Trackers that log on the run's machine: Trackio (a SQLite database) and TensorBoard (event
files). $SWEEPER_TRACK has the names of the trackers to open; only these are imported."""

import importlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol


class Run(NamedTuple):
    """The facts about a run that a tracker needs. `resumes` says whether the run continues from
    a checkpoint."""

    project: str | None
    name: str | None
    group: str | None
    log_path: str
    config: Mapping[str, Any]
    resumes: bool


class Log(Protocol):
    """An open tracker."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step. A step that is logged again is shown only once."""
        ...

    def finish(self) -> None:
        """Write all pending data and close the tracker."""
        ...


class _Trackio:
    def __init__(self, run: Run) -> None:
        self._run = importlib.import_module("trackio").init(
            project=run.project or "sweeper",
            name=run.name,
            group=run.group,
            config=json.loads(json.dumps(run.config, default=str)),
            # Unless this run resumes, an existing run of that name belongs to another sweep.
            resume="allow" if run.resumes and run.name else "never",
            embed=False,
        )
        # Trackio keeps both values of a step that is logged twice.
        self._first: int = getattr(self._run, "_next_step", 0)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step >= self._first:
            self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class _TensorBoard:
    """Event files in the run's folder, which TensorBoard shows under the run's name."""

    def __init__(self, run: Run) -> None:
        folder = os.path.join(run.log_path, "tensorboard")
        if run.name:
            folder = os.path.join(folder, run.name.replace(os.sep, "_"))
        # All steps are logged again, so `purge_step` hides the steps of earlier files.
        again = os.path.isdir(folder) and bool(os.listdir(folder))
        writer = importlib.import_module("tensorboardX").SummaryWriter
        self._writer = writer(folder, purge_step=0 if again else None)
        self._writer.add_text("config", json.dumps(run.config, default=str, indent=2), 0)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


OPEN: dict[str, Callable[[Run], Log]] = {"trackio": _Trackio, "tensorboard": _TensorBoard}
"""The trackers by name."""


def wanted() -> list[str]:
    """Return the names in $SWEEPER_TRACK. Unknown names, which a newer version of sweeper may
    set, are left out."""
    return [name for name in os.environ.get("SWEEPER_TRACK", "").split(",") if name in OPEN]
