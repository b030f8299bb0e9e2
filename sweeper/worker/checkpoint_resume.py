"""Decides which checkpoint a new attempt starts from, and whether a run has finished. Reads a few
of the recipe's own files, with the names and formats of tinker-cookbook."""

import json
import os

from sweeper.store.local import open_regular
from sweeper.sweep.folder import SweepFolder

_APPENDED = ("items.jsonl", "episodes.jsonl", "checkpoints.jsonl")
_COPIED = ("config.json",)
_DEEP = 8


def seed(folder: SweepFolder, run: str, attempt: int, mode: str, first: int = 1) -> int | None:
    """Copy files of an earlier attempt into the folder of `attempt`, so that the recipe resumes.
    Choose the latest attempt with a recorded checkpoint. If there is none and `mode` is `always`,
    choose the latest attempt with any file other than `code.diff`. Ignore attempts before `first`.
    Return the number of the chosen attempt, or None."""
    target = folder.store.local_path(folder.log_path(run, attempt))
    paths = {
        earlier: path
        for earlier in range(attempt - 1, first - 1, -1)
        if (path := folder.store.local_path(folder.log_path(run, earlier))) and os.path.isdir(path)
    }
    # Checkpoints are copied last, so an attempt that was killed during seeding has none.
    chosen = [number for number, path in paths.items() if has_checkpoints(path, folder)]
    if mode == "always":
        # The launcher writes the diff before the recipe starts, so the diff does not count.
        chosen += [n for n in paths if set(os.listdir(paths[n])) - {"code.diff"}]
    if not chosen or target is None:
        return None
    from sweeper.metrics.files import NAMES  # imported late: first attempts need no metrics

    source, appended = paths[chosen[0]], (*NAMES, *_APPENDED)
    for name in (*_COPIED, *appended):
        for inner in record_folders(source, folder):
            path = os.path.join(source, inner, name)
            if os.path.exists(path):
                os.makedirs(os.path.join(target, inner), exist_ok=True)
                copy(path, os.path.join(target, inner, name), lines=name in appended)
    return chosen[0]


def record_folders(log_path: str, folder: SweepFolder) -> list[str]:
    """Return the folders in which a recipe may have recorded checkpoints, as paths relative to
    `log_path`. The first is "" (`log_path` itself). If `launch.metrics_dir` is set, the folders
    below `log_path` follow, to a depth of 8. Folders named `.*` or `iteration_*`, and the folders
    in them, are left out."""
    folders = [""]
    if not folder.inner:
        return folders
    for path, inner, _ in os.walk(log_path):
        below = os.path.relpath(path, log_path)
        inner[:] = sorted(name for name in inner if not name.startswith((".", "iteration_")))
        if below.count(os.sep) + 1 >= _DEEP:
            inner.clear()
        if below != ".":
            folders.append(below)
    return folders


def has_checkpoints(log_path: str, folder: SweepFolder) -> bool:
    """Return whether a recipe has recorded a checkpoint in its folder `log_path`."""
    return any(
        read_records(os.path.join(log_path, inner, "checkpoints.jsonl"))
        for inner in record_folders(log_path, folder)
    )


def has_final_checkpoint(log_path: str) -> bool | None:
    """Return whether the last recorded checkpoint is final (see `rows.ends_final`). Return None if
    `log_path` has no `checkpoints.jsonl`."""
    path = os.path.join(log_path, "checkpoints.jsonl")
    if not os.path.exists(path):
        return None
    from sweeper.metrics.rows import ends_final

    return ends_final(read_records(path))


def read_records(path: str) -> list[dict[str, object]]:
    """Read the JSON objects of a small JSONL file. Skips incomplete lines and lines that are not
    objects. Return [] if the file cannot be read."""
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
    """Copy a small file. With `lines`, leave out an incomplete last line."""
    with open(source, "rb", opener=open_regular) as file:
        data = file.read()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "wb") as file:
        file.write(data[: data.rfind(b"\n") + 1] if lines else data)
