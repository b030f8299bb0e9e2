"""Weights & Biases: a run's metrics go there too, when it is told a project.

W&B can slow a run down but never end it. Where it does not answer, or has no key, what it was to
get is kept in `log_path/wandb`, for `wandb sync` to send; where it fails later the run goes on
without it. W&B's own variables (WANDB_MODE, WANDB_RUN_GROUP, WANDB_TAGS, ...) count as ever; of
project and name the configuration's come first.

A run that goes on from a checkpoint goes on in the W&B run recorded with it: W&B gets the steps
that it has missed, and ignores those it has already. One that begins again is another run there,
unless WANDB_RUN_ID says otherwise.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .rundir import RunDirectory
from .settings import Place

RUN_ID = "wandb_run_id"
"""Under which a checkpoint's record has W&B's id of the run."""

# How long the end of a run waits for an upload: less than one has between SIGTERM and SIGKILL.
FINISH_SECONDS = 15.0

# Seconds, instead of W&B's 15, after which what is logged is in its file: what a kill may cost.
# By a variable, since releases of W&B that do not know the setting refuse it anywhere else.
FLUSH = ("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")


class Tracker:
    """The W&B run of a run, or nothing: then its methods do nothing either."""

    def __init__(self, run: Any | None, last_state: Mapping[str, Any] | None) -> None:
        self._run = run
        self._before = (last_state or {}).get(RUN_ID)
        self._id = self._before if run is None or run.disabled else run.id

    @property
    def mark(self) -> dict[str, str]:
        """What a checkpoint's record needs to have for the run to go on at W&B."""
        return {RUN_ID: self._id} if self._id else {}

    def catch_up(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Log the steps that W&B has missed: killed with the run before it could send them, or
        given a project only now. What it has on disk from before cannot be known."""
        run = self._run
        if run is None or (run.offline and self._before):
            return
        first = run.starting_step  # `run.step` is not there yet
        for line in lines:
            if line["step"] >= first:
                self.log(line["step"], {k: v for k, v in line.items() if k != "step"})

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step's line of metrics."""
        run, self._run = self._run, None  # for good, should it fail
        if run is not None:
            with _harmless("recorded no more"):
                # By itself W&B keeps a step back until it hears of the next: maybe never.
                run.log(dict(metrics), step, commit=True)
                self._run = run

    def finish(self, exit_code: int) -> None:
        """Wait a little for what is still to be sent, and say how the run ended."""
        if self._run is not None:
            with _harmless("not finished"):
                self._run.finish(exit_code=exit_code)


@contextmanager
def tracked(config: Place, directory: RunDirectory, values: Mapping[str, Any]) -> Iterator[Tracker]:
    """The W&B run for the time of the block, whose exit code it gets."""
    tracker = Tracker(_start(config, directory, values), directory.last_state)
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
    """W&B's run, kept on disk if need be; None without a project, or if that fails as well."""
    if not (config.wandb_project or os.environ.get("WANDB_PROJECT")):
        return None

    def start(**more: Any) -> Any:
        import wandb  # not before somebody asks for it: it is large

        os.environ.setdefault(*FLUSH)
        settings = {
            "run_id": (directory.last_state or {}).get(RUN_ID),
            "resume": "allow",
            "root_dir": directory.path,
            "finish_timeout": FINISH_SECONDS,
            "symlink": False,  # who copies a run would copy it twice
        }
        return wandb.init(
            project=config.wandb_project,
            name=config.wandb_name,
            config=dict(values),
            allow_val_change=True,  # log_path, say, when a run goes on elsewhere
            settings=wandb.Settings(**{k: v for k, v in settings.items() if not _is_set(k)}),
            **more,
        )

    with _harmless("recorded on disk only"):
        return start()
    with _harmless("not recorded"):
        return start(mode="offline")
    return None


def _is_set(setting: str) -> bool:
    """Whether a variable of W&B's says what a setting is to be."""
    return {"root_dir": "WANDB_DIR"}.get(setting, f"WANDB_{setting.upper()}") in os.environ


@contextmanager
def _harmless(otherwise: str) -> Iterator[None]:
    """Where W&B fails in the block, in whatever way: a line on stderr, and nothing else."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  what W&B raises has no common base
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"W&B: {otherwise}: {text}", file=sys.stderr, flush=True)
