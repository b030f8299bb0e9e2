"""Chooses tasks by names and globs, or by a dataset's name and version. Datasets are listed in a
registry file of Harbor or Terminal-Bench, and their repository must be checked out on this machine.
Downloads nothing."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from sweeper.common.json_values import list_of, table_of
from sweeper.errors import UsageError

_SECONDS = 60.0
_TASK_FILES = ("task.toml", "instruction.md", "task.yaml")


class Choice(NamedTuple):
    """A choice among the tasks at a path. `task_ids` are names and globs, separated by commas; `!`
    before a name excludes tasks. If `dataset` (NAME or NAME@VERSION) is set, the path is a checkout
    of the dataset's repository. `registry` is the registry file (default: `registry.json` at the
    path)."""

    task_ids: str | None = None
    dataset: str | None = None
    registry: str | None = None


ALL = Choice()


def choice_of(values: Mapping[str, object]) -> Choice:
    """Return the choice in the values of a run's configuration."""
    settings = (values.get(key) for key in Choice._fields)
    return Choice(*(None if value is None else str(value) for value in settings))


def folders_of(path: str, choice: Choice = ALL) -> list[str]:
    """Return the folders of the chosen tasks. Raises `UsageError` if no task is chosen, or if a
    name matches no task."""
    if choice.dataset is not None:
        folders = _in_dataset(path, choice.dataset, choice.registry)
    elif choice.registry is not None:
        raise UsageError(f"registry={choice.registry} needs dataset=NAME@VERSION")
    else:
        folders = _in_folder(path)
    return folders if choice.task_ids is None else _named(folders, choice.task_ids, path)


def _in_folder(path: str) -> list[str]:
    """Return the path itself if it is the folder of a task, else its subfolders."""
    if any(os.path.isfile(os.path.join(path, name)) for name in _TASK_FILES):
        return [path]
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    folders = [os.path.join(path, name) for name in names if not name.startswith((".", "_"))]
    folders = [folder for folder in folders if os.path.isdir(folder)]
    if not folders:
        raise UsageError(f"{path} contains no task: a task is a folder with task.toml")
    return folders


def _named(folders: Sequence[str], task_ids: str, path: str) -> list[str]:
    """Return the folders whose names match `task_ids`, in the order of `folders`."""
    patterns = [word.strip() for word in task_ids.split(",") if word.strip()]
    names = {folder: os.path.basename(os.path.normpath(folder)) for folder in folders}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names.values()):
            available = ", ".join([*names.values()][:8]) + (", ..." if len(names) > 8 else "")
            raise UsageError(
                f"task_ids: no task in {path} is named {pattern}: choose from {available}"
            )
    without = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]
    chosen = [
        folder
        for folder, name in names.items()
        if any(fnmatchcase(name, pattern) for pattern in wanted)
        and not any(fnmatchcase(name, pattern) for pattern in without)
    ]
    if not chosen:
        raise UsageError(f"task_ids={task_ids} leaves no task in {path}")
    return chosen


class _Source(NamedTuple):
    """A task of a dataset: its path in the repository, and its commit."""

    path: str
    commit: str | None


def _in_dataset(path: str, dataset: str, registry: str | None) -> list[str]:
    """Return the folders of a dataset's tasks. Raises `UsageError` if the checkout does not match
    the registry."""
    file = registry or os.path.join(path, "registry.json")
    row = _row(file, dataset)
    sources = _harbor_sources(row) if "tasks" in row else _older_sources(row, path)
    if not sources:
        raise UsageError(f"{file}: {dataset} has no tasks")
    for commit in dict.fromkeys(source.commit for source in sources if source.commit):
        _check_commit(path, commit, [source.path for source in sources if source.commit == commit])
    folders = [os.path.join(path, source.path) for source in sources]
    if missing := [folder for folder in folders if not os.path.isdir(folder)]:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UsageError(f"{file}: {missing[0]} of {dataset} does not exist{more}")
    return folders


def _row(file: str, dataset: str) -> Mapping[str, object]:
    """Return the registry's entry of a dataset. Without a version, return the last entry with the
    dataset's name."""
    try:
        with open(file, encoding="utf-8") as stream:
            document: object = json.load(stream)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror}; this registry is needed for dataset={dataset}"
        ) from None
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from None
    rows = [table_of(row) for row in list_of(document)]
    name, _, version = dataset.partition("@")
    of_name = [row for row in rows if row.get("name") == name]
    versions = [row for row in of_name if not version or str(row.get("version")) == version]
    if not versions:
        available = sorted({f"{row.get('name')}@{row.get('version')}" for row in of_name or rows})
        raise UsageError(f"{file} has no dataset {dataset}: it has {', '.join(available[:12])}")
    return versions[-1]


def _harbor_sources(row: Mapping[str, object]) -> list[_Source]:
    tasks = [table_of(task) for task in list_of(row["tasks"])]
    return [_Source(_below(task.get("path")), _commit(task.get("git_commit_id"))) for task in tasks]


def _older_sources(row: Mapping[str, object], path: str) -> list[_Source]:
    """Return the tasks of a registry entry in Terminal-Bench's older form. The entry names a folder
    of tasks, and may list some of the tasks in this folder."""
    folder, commit = _below(row.get("dataset_path") or "tasks"), _commit(row.get("commit_hash"))
    names = row.get("task_id_subset")
    if names is not None and not isinstance(names, list):
        raise UsageError(f"a registry's task_id_subset must be a list of names, not {names}")
    chosen = list_of(row.get("task_id_subset"))
    if names is None:
        chosen = [
            os.path.basename(task_folder) for task_folder in _in_folder(os.path.join(path, folder))
        ]
    return [_Source(_below(os.path.join(folder, str(name))), commit) for name in chosen]


def _below(value: object) -> str:
    """Return a path in a repository, normalized. Raises `UsageError` if the path leads out of the
    repository."""
    path = os.path.normpath(str(value or ".").removeprefix("./"))
    if os.path.isabs(path) or path.split(os.sep)[0] == "..":
        raise UsageError(f"a registry's path must not lead out of its repository: {value}")
    return path


def _commit(value: object) -> str | None:
    return None if value in (None, "", "HEAD", "head") else str(value)


def _check_commit(path: str, commit: str, folders: Sequence[str]) -> None:
    """Raise `UsageError` if the files in `folders` differ from those in the commit."""
    if commit.startswith("-"):
        raise UsageError(f"the registry names the commit {commit!r}, which is not valid")
    argv = ["git", "-C", path, "diff", "--quiet", commit, "--", *folders]
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot compare {path} with the commit {commit}: {error}") from None
    if ended.returncode == 1:
        raise UsageError(
            f"the tasks in {path} differ from commit {commit}: run git -C {path} checkout {commit}"
        )
    if ended.returncode:
        why = ended.stderr.strip().splitlines()[:1]
        raise UsageError(f"{path} has no commit {commit}: {''.join(why)[:200]}")
