"""Decides what a new attempt starts from, and whether a run has finished. For this sweeper reads a
few of a recipe's own files, by tinker-cookbook's names and shapes."""

import json
import os

from sweeper.metrics import ends_final
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout
from sweeper.storage.local import open_regular

__all__ = ["has_checkpoints", "has_final_checkpoint", "read_records", "record_folders", "seed"]

_APPENDED = ("metrics.jsonl", "items.jsonl", "episodes.jsonl", "checkpoints.jsonl")
_COPIED = ("config.json",)
_DEEP = 8


def seed(store: Store, layout: Layout, run: str, attempt: int, mode: str) -> int | None:
    """Copy into the folder of `attempt` what an earlier one left, so that the recipe resumes.

    With `mode` `auto` that is the last attempt that recorded a checkpoint; with `always` the last
    that left anything, if none recorded one. Returns the attempt that was copied, None if none was.
    """
    target = store.local_path(layout.log_path(run, attempt))
    folders = {
        earlier: folder
        for earlier in range(attempt - 1, 0, -1)
        if (folder := store.local_path(layout.log_path(run, earlier))) and os.path.isdir(folder)
    }
    # Checkpoints are copied last, so an attempt that was killed while it was seeded has none.
    chosen = [number for number, folder in folders.items() if has_checkpoints(folder, layout)]
    if mode == "always":
        # The launcher writes the diff before anything runs: it is nothing that the attempt left.
        chosen += [n for n in folders if set(os.listdir(folders[n])) - {"code.diff"}]
    if not chosen or target is None:
        return None
    source = folders[chosen[0]]
    for name in (*_COPIED, *_APPENDED):
        for inner in record_folders(source, layout):
            path = os.path.join(source, inner, name)
            if os.path.exists(path):
                os.makedirs(os.path.join(target, inner), exist_ok=True)
                copy(path, os.path.join(target, inner, name), lines=name in _APPENDED)
    return chosen[0]


def record_folders(log_path: str, layout: Layout) -> list[str]:
    """The folders inside a recipe's own that may hold records: itself (""), and for a program of
    several stages (`launch.metrics_dir`) each folder below it."""
    found = [""]
    if not layout.inner:
        return found
    for folder, inner, _ in os.walk(log_path):
        below = os.path.relpath(folder, log_path)
        inner[:] = sorted(name for name in inner if not name.startswith((".", "iteration_")))
        if below.count(os.sep) + 1 >= _DEEP:
            inner.clear()
        if below != ".":
            found.append(below)
    return found


def has_checkpoints(log_path: str, layout: Layout) -> bool:
    """Whether a recipe's folder records a checkpoint."""
    return any(
        read_records(os.path.join(log_path, inner, "checkpoints.jsonl"))
        for inner in record_folders(log_path, layout)
    )


def has_final_checkpoint(log_path: str) -> bool | None:
    """Whether the last recorded checkpoint is final: marked `final`, or named so. None for a recipe
    that records no checkpoints."""
    path = os.path.join(log_path, "checkpoints.jsonl")
    if not os.path.exists(path):
        return None
    return ends_final(read_records(path))


def read_records(path: str) -> list[dict[str, object]]:
    """Read the records of a small JSONL file, without lines that are torn or hold no object."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    records: list[dict[str, object]] = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)  # pyright: ignore[reportUnknownArgumentType]
    return records


def copy(source: str, target: str, *, lines: bool = False) -> None:
    """Copy a small file; with `lines` only its whole lines, without a torn last one."""
    with open(source, "rb", opener=open_regular) as file:
        data = file.read()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "wb") as file:
        file.write(data[: data.rfind(b"\n") + 1] if lines else data)
