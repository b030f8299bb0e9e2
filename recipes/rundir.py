"""The files of a run in its `log_path`, with tinker-cookbook's names and formats. After a crash,
a file may end in an incomplete line. Such lines are ignored, and removed before the next line is
written."""

# config.json        the configuration, written at the start
# metrics.jsonl      {"step": n, ...}: one line per step, each line one write
# checkpoints.jsonl  {"name", "batch", "state_path", "sampler_path", "final"}: saved checkpoints;
#                    `batch` is the number of steps trained by then
# items.jsonl        answers of an evaluation, one line per sample; see eval.py
# episodes.jsonl     episodes since the last checkpoint, one per line, so that a resumed run does
#                    not run them again; see terminal.py
# iteration_000000/  files with the samples of a step; see rollouts.py

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .service import RecipeError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
ITEMS = "items.jsonl"
EPISODES = "episodes.jsonl"

PARENT = "parent_path"
"""The key in a checkpoint's record for the address of the weights that its run started from."""


class RunDirectory:
    """Reads and writes the files of a run. `last_state` is the record of the checkpoint to
    resume from, None for a new run."""

    def __init__(self, path: str, last_state: dict[str, Any] | None) -> None:
        self.path = path
        self.last_state = last_state

    @property
    def finished(self) -> bool:
        """Whether the run had finished: its last checkpoint was saved at the end of training."""
        return bool(self.last_state and self.last_state.get("final"))

    @property
    def start_step(self) -> int:
        """The number of steps trained before the checkpoint to resume from; 0 for a new run."""
        return int(self.last_state["batch"]) if self.last_state else 0

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json, replacing an older one."""
        text = json.dumps(dict(config), indent=2) + "\n"
        replace_file(os.path.join(self.path, CONFIG), text.encode())

    def drop_steps_from(self, step: int) -> None:
        """Remove the metrics of `step` and later steps, which the run will log again."""
        _keep_lines(os.path.join(self.path, METRICS), lambda line: line.get("step", step) < step)

    def log_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of a step as a line. NaN is written as `NaN`."""
        self._append(METRICS, {"step": step, **metrics})

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all complete lines of metrics."""
        return _read_lines(os.path.join(self.path, METRICS))

    def record_checkpoint(self, record: Mapping[str, Any]) -> None:
        """Append a checkpoint's record."""
        self._append(CHECKPOINTS, record)

    @property
    def last_record(self) -> dict[str, Any] | None:
        """The last record of checkpoints.jsonl, with or without saved weights; None if the file
        has no record."""
        records = _read_lines(os.path.join(self.path, CHECKPOINTS))
        return records[-1] if records else None

    def read_items(self) -> list[dict[str, Any]]:
        """Return the recorded answers."""
        return _read_lines(os.path.join(self.path, ITEMS))

    def append_items(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append answers to items.jsonl in one write."""
        self._append(ITEMS, *rows)

    def replace_items(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace all recorded answers."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        replace_file(os.path.join(self.path, ITEMS), text.encode())

    def drop_items_after(self, step: int) -> None:
        """Drop the answers of steps after `step`, because they come from weights that are lost."""
        _keep_lines(os.path.join(self.path, ITEMS), lambda line: line.get("step", step) <= step)

    def read_episodes(self) -> list[dict[str, Any]]:
        """Return the recorded episodes; for a training run, those since the last checkpoint."""
        return _read_lines(os.path.join(self.path, EPISODES))

    def append_episode(self, record: Mapping[str, Any]) -> None:
        """Append an episode. The record's `step` is the step that the episode belongs to."""
        self._append(EPISODES, record)

    def drop_episodes_before(self, step: int) -> None:
        """Remove the episodes of steps before `step`, which a resumed run does not need."""
        _keep_lines(os.path.join(self.path, EPISODES), lambda line: line.get("step", -1) >= step)

    def write_iteration(self, step: int, name: str, text: str) -> None:
        """Write a file of a step's directory, replacing an older one."""
        directory = os.path.join(self.path, f"iteration_{step:06d}")
        os.makedirs(directory, exist_ok=True)
        replace_file(os.path.join(directory, name), text.encode())

    def _append(self, name: str, *records: Mapping[str, Any]) -> None:
        # One unbuffered write to a file opened for appending: neither a reader nor a crash ever
        # sees part of a line followed by another line.
        with open(os.path.join(self.path, name), "ab", buffering=0) as file:
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())


def open_run(path: str, config: Mapping[str, Any], free: frozenset[str]) -> RunDirectory:
    """Open the directory `path` for a new or resumed run. Remove incomplete lines from its JSONL
    files, except metrics.jsonl (see `drop_steps_from`). Raises RecipeError if an earlier run in the
    directory had other settings; only the settings in `free` may differ."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"cannot write to log_path={path}: {error.strerror}") from None
    _check_same_run(path, config, free)
    # A record appended after an incomplete line would be lost with it.
    for name in (CHECKPOINTS, ITEMS, EPISODES):
        _keep_lines(os.path.join(path, name), lambda _: True)
    states = _states(path)
    return RunDirectory(path, states[-1] if states else None)


def state_path(checkpoint: str) -> str:
    """Return the address of saved weights: `checkpoint` if it is an address, else the address of
    the last checkpoint of the run in the directory `checkpoint`. Raises RecipeError if the
    directory has no checkpoint."""
    if checkpoint.startswith("tinker://"):
        return checkpoint
    states = _states(checkpoint)
    if not states:
        raise RecipeError(f"no checkpoint in {os.path.join(checkpoint, CHECKPOINTS)}")
    return states[-1]["state_path"]


def sampler_path(checkpoint: str) -> str:
    """Return the address of saved weights to sample from: `checkpoint` if it is an address, else
    the sampler address of the last checkpoint of the run in the directory `checkpoint`. If this
    checkpoint has no sampler address, return its training address (see `state_path`). Raises
    RecipeError if the directory has no checkpoint."""
    if checkpoint.startswith("tinker://"):
        return checkpoint
    state_path(checkpoint)
    last = _states(checkpoint)[-1]
    return last.get("sampler_path") or last["state_path"]


def last_state(path: str) -> dict[str, Any]:
    """Return the record of the last checkpoint in a run's directory; {} without a checkpoint."""
    states = _states(path)
    return states[-1] if states else {}


def has_checkpoint(path: str) -> bool:
    """Return whether a directory has a run with a checkpoint."""
    return bool(_states(path))


def _states(path: str) -> list[dict[str, Any]]:
    records = _read_lines(os.path.join(path, CHECKPOINTS))
    return [record for record in records if "state_path" in record and "batch" in record]


def _check_same_run(path: str, config: Mapping[str, Any], free: frozenset[str]) -> None:
    try:
        with open(os.path.join(path, CONFIG), encoding="utf-8") as file:
            before: Any = json.load(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise RecipeError(f"cannot read {os.path.join(path, CONFIG)}: {error}") from None
    for key, value in json.loads(json.dumps(dict(config))).items():
        if key not in free and key in before and before[key] != value:
            raise RecipeError(
                f"log_path={path} holds a run with {key}={before[key]}, not {value}: "
                "use another log_path"
            )


def _read_lines(path: str) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        parsed = [_parse(line) for line in file]
    return [record for record in parsed if record is not None]


def _keep_lines(path: str, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a file without incomplete lines and without lines that `keep` rejects. Other lines
    keep their bytes."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        lines = list(file)
    remaining: list[bytes] = []
    for line in lines:
        record = _parse(line)
        if record is not None and keep(record):
            remaining.append(line)
    if len(remaining) < len(lines):
        replace_file(path, b"".join(remaining))


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; None if the line is incomplete or not a JSON object."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def replace_file(path: str, content: bytes) -> None:
    """Replace a file atomically: readers see either the old content or the new content."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
