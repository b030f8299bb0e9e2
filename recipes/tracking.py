"""Logs a run's metrics to Weights & Biases too, if a project is given, and to the trackers in
$SWEEPER_TRACK. Trackers may slow a run down but never end it. A resumed run resumes its W&B run."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import trackers
from .rundir import RunDirectory
from .settings import Place

RUN_ID = "wandb_run_id"
"""The key in a checkpoint's record for W&B's id of the run."""

# Seconds that a run's end waits for an upload: less than the time between SIGTERM and SIGKILL.
FINISH_SECONDS = 15.0

# Seconds until W&B writes logged data to its file, instead of its default of 15. If the run is
# killed, it loses the data of this time. It is set by a variable, because releases of W&B that do
# not know the setting reject it anywhere else.
FLUSH = ("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")


class Tracker:
    """The trackers of a run: its W&B run, and `others` such as Trackio. Without trackers, the
    methods do nothing."""

    def __init__(
        self,
        run: Any | None,
        last_state: Mapping[str, Any] | None,
        others: Mapping[str, trackers.Log] | None = None,
    ) -> None:
        self._run = run
        self._before = (last_state or {}).get(RUN_ID)
        self._id = self._before if run is None or run.disabled else run.id
        self._others = dict(others or {})

    @property
    def mark(self) -> dict[str, str]:
        """The W&B run's id, to be recorded with checkpoints; empty if no id is known."""
        return {RUN_ID: self._id} if self._id else {}

    def catch_up(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Log the earlier steps in `lines`, because a tracker may be new, or the run may have been
        killed before it sent these steps. W&B gets only steps that it lacks. A resumed offline W&B
        run gets no steps, because the steps in its file on disk are unknown."""
        run = self._run
        skip = run is None or (run.offline and self._before)
        first = None if run is None or skip else run.starting_step  # `run.step` is not there yet
        for line in lines:
            values = {k: v for k, v in line.items() if k != "step"}
            self._log_others(line["step"], values)
            if first is not None and line["step"] >= first:
                self._log_run(line["step"], values)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log a step's line of metrics."""
        self._log_run(step, metrics)
        self._log_others(step, metrics)

    def _log_run(self, step: int, metrics: Mapping[str, Any]) -> None:
        run, self._run = self._run, None  # stays None if logging fails
        if run is not None:
            with _harmless("no longer recorded"):
                # By default W&B holds a step back until the next step, which may never come.
                run.log(dict(metrics), step, commit=True)
                self._run = run

    def _log_others(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name in list(self._others):
            other = self._others.pop(name)
            with _harmless("no longer recorded", name):
                other.log(step, metrics)
                self._others[name] = other

    def finish(self, exit_code: int) -> None:
        """Finish all trackers. W&B waits a short time for pending uploads, and gets the run's
        exit code."""
        for name, other in self._others.items():
            with _harmless("not finished", name):
                other.finish()
        if self._run is not None:
            with _harmless("not finished"):
                self._run.finish(exit_code=exit_code)


@contextmanager
def tracked(config: Place, directory: RunDirectory, values: Mapping[str, Any]) -> Iterator[Tracker]:
    """Open the trackers for the `with` block. W&B gets exit code 0 if the block ends normally, the
    code of a SystemExit, or 1 after another exception."""
    others = _open_others(config, directory, values)
    tracker = Tracker(_start(config, directory, values), directory.last_state, others)
    code: Any = 1
    try:
        tracker.catch_up(directory.read_metrics())
        yield tracker
        code = 0
    except SystemExit as end:
        code = end.code
        raise
    finally:
        tracker.finish(code)


def _start(config: Place, directory: RunDirectory, values: Mapping[str, Any]) -> Any | None:
    """Return the W&B run. If an online run cannot be opened, return an offline run, which is stored
    on disk. Return None if no W&B project is configured, if W&B is disabled, or if the offline run
    cannot be opened either."""
    if not (config.wandb_project or os.environ.get("WANDB_PROJECT")):
        return None
    if os.environ.get("WANDB_MODE") == "disabled":
        return None

    def start(**more: Any) -> Any:
        import wandb  # imported only when needed: it is large

        os.environ.setdefault(*FLUSH)
        settings = {
            "run_id": (directory.last_state or {}).get(RUN_ID),
            "resume": "allow",
            "root_dir": directory.path,
            "finish_timeout": FINISH_SECONDS,
            "symlink": False,  # with links, a copy of a run contains files twice
        }
        return wandb.init(
            project=config.wandb_project,
            name=config.wandb_name,
            config=dict(values),
            allow_val_change=True,  # such as log_path, when a run resumes elsewhere
            settings=wandb.Settings(**{k: v for k, v in settings.items() if not _is_set(k)}),
            **more,
        )

    with _harmless("recorded on disk only"):
        return start()
    with _harmless("not recorded"):
        return start(mode="offline")
    return None


def _open_others(
    config: Place, directory: RunDirectory, values: Mapping[str, Any]
) -> dict[str, trackers.Log]:
    """Open the trackers in $SWEEPER_TRACK. Trackers that cannot be opened are left out."""
    opened: dict[str, trackers.Log] = {}
    for name in trackers.wanted():
        with _harmless("not recorded", name):
            opened[name] = trackers.OPEN[name](
                trackers.Run(
                    project=os.environ.get("SWEEPER_TRACK_PROJECT") or config.wandb_project,
                    name=os.environ.get("SWEEPER_TRACK_NAME") or config.wandb_name,
                    group=os.environ.get("SWEEPER_SWEEP"),
                    log_path=directory.path,
                    config=values,
                    resumes=directory.last_state is not None,
                )
            )
    return opened


def _is_set(setting: str) -> bool:
    """Return whether the user sets this W&B setting by its environment variable."""
    return {"root_dir": "WANDB_DIR"}.get(setting, f"WANDB_{setting.upper()}") in os.environ


@contextmanager
def _harmless(otherwise: str, tracker: str = "W&B") -> Iterator[None]:
    """Catch any exception in the `with` block. Print its effect, `otherwise`, and its message."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  what trackers raise has no common base
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"{tracker}: {otherwise}: {text}", file=sys.stderr, flush=True)
