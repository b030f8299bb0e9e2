"""What a new attempt starts from, and what tells that a run has finished: the few things that
sweeper reads of a recipe's own files (tinker-cookbook's names and shapes)."""

import json
import os
from typing import Any

from sweeper.store.files import Store
from sweeper.store.layout import Layout

__all__ = ["has_final_checkpoint", "seed"]

_APPENDED = ("metrics.jsonl", "checkpoints.jsonl")
_COPIED = ("config.json",)


def seed(store: Store, layout: Layout, run: str, attempt: int, mode: str) -> int | None:
    """Copy into the folder of `attempt` what an earlier one left, so that the recipe resumes.

    `mode` is `auto` (from the last attempt that recorded a checkpoint, if any did) or `always`
    (without a checkpoint too, from the last that left anything). Returns the attempt that was
    copied, None where there was none to copy.
    """
    target = store.local_path(layout.log_path(run, attempt))
    folders = {
        earlier: folder
        for earlier in range(attempt - 1, 0, -1)
        if (folder := store.local_path(layout.log_path(run, earlier))) and os.path.isdir(folder)
    }
    # An attempt that was killed while it was being seeded has no checkpoints yet: they come last.
    chosen = [n for n in folders if read_records(os.path.join(folders[n], "checkpoints.jsonl"))]
    if mode == "always":
        # The launcher puts the diff there, before anything has run.
        chosen += [n for n in folders if set(os.listdir(folders[n])) - {"code.diff"}]
    if not chosen or target is None:
        return None
    source = folders[chosen[0]]
    for name in _COPIED:
        if os.path.exists(os.path.join(source, name)):
            copy(os.path.join(source, name), os.path.join(target, name))
    for name in _APPENDED:
        if os.path.exists(os.path.join(source, name)):
            copy(os.path.join(source, name), os.path.join(target, name), lines=True)
    return chosen[0]


def has_final_checkpoint(log_path: str) -> bool | None:
    """Whether the last checkpoint on record is a final one: marked `final`, or named so. None for
    a recipe that records no checkpoints."""
    path = os.path.join(log_path, "checkpoints.jsonl")
    if not os.path.exists(path):
        return None
    records = read_records(path)
    return any(r.get("final") is True or r.get("name") == "final" for r in records[-1:])


def read_records(path: str) -> list[dict[str, Any]]:
    """The records of a small JSONL file; lines that are torn or no object are passed over."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    records: list[dict[str, Any]] = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)  # pyright: ignore[reportUnknownArgumentType]
    return records


def copy(source: str, target: str, *, lines: bool = False) -> None:
    """Copy a small file; with `lines` the whole lines of it: a last one that was torn is left
    behind."""
    with open(source, "rb") as file:
        data = file.read()
    with open(target, "wb") as file:
        file.write(data[: data.rfind(b"\n") + 1] if lines else data)
