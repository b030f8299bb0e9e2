"""Adds notes, tags and stars to sweeps and runs; archives, renames and deletes sweeps. Used by the
command line, agents and the Python API."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.common.atomic import TEMPORARY
from sweeper.errors import EnvironmentFailure, NotFound, StoreError, UsageError
from sweeper.store.base import Store
from sweeper.store.opening import default_root
from sweeper.sweep.folder import SweepFolder, find_sweeps
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.lock import holding_sweep, is_of_lock
from sweeper.sweep.marks import Kind, Marks, fold, is_tag, put_mark, read_marks
from sweeper.sweep.states import fold as fold_events

MOST_CHARACTERS = 100_000
"""Maximum number of characters of a note."""
_LAST = ("state", "sweep.json", "launcher")
"""The files and folders of a sweep that are deleted last, in this order. While they exist, the
sweep can be read, and `delete` can be repeated."""


class Subject(NamedTuple):
    """A sweep or run that can have marks. `run` is the run's id, or None for a sweep. `name` is the
    name to print."""

    store: Store
    sweep: str
    run: str | None
    name: str


class Noted(NamedTuple):
    """Changes to the marks of a sweep or run. `text` is a note to add (None: no new note). `star`
    sets (True), removes (False) or keeps (None) the star."""

    text: str | None = None
    tag: Sequence[str] = ()
    untag: Sequence[str] = ()
    star: bool | None = None


def find_subject(target: str, root: str | None = None) -> Subject:
    """Find the sweep with the name `target`. If there is none, find the run that `target`
    selects. Raises `NotFound`, and `UsageError` if several runs match or the run belongs to no
    sweep."""
    from sweeper.results.registry import Registry
    from sweeper.results.sweeps import SweepRun

    registry = Registry(root or default_root())
    if registry.has_sweep(target):
        sweep = registry.sweep(target)
        return Subject(sweep.store, sweep.name, None, sweep.name)
    run = registry.run(target)
    if not isinstance(run, SweepRun):
        raise UsageError(f"{target} is in no sweep, and only sweeps and their runs can have notes")
    return Subject(run.store, run.sweep, run.id, f"{run.sweep}/{run.name}")


def note(
    target: str,
    text: str | None = None,
    *,
    root: str | None = None,
    tag: Sequence[str] = (),
    untag: Sequence[str] = (),
    star: bool | None = None,
) -> Marks:
    """Write a note about a sweep or run, add or remove tags, and set or remove the star. Return the
    resulting marks. Raises the errors of `find_subject`, and `UsageError` for an invalid note or
    tag."""
    return mark(target, Noted(text, tag, untag, star), root=root)


def mark(target: str, noted: Noted, *, root: str | None = None, by: str = "") -> Marks:
    """Change marks as `note` does, and record `by` as their author (default: this user)."""
    _check(noted.text, [*noted.tag, *noted.untag])
    store, sweep, run, _ = find_subject(target, root)
    folder = SweepFolder(store, sweep)
    if noted.text is not None:
        put_mark(folder, Kind.NOTE, run, noted.text.strip(), by)
    for tag in noted.tag:
        put_mark(folder, Kind.TAG, run, tag, by)
    for tag in noted.untag:
        put_mark(folder, Kind.UNTAG, run, tag, by)
    if noted.star is not None:
        put_mark(folder, Kind.STAR if noted.star else Kind.UNSTAR, run, by=by)
    return fold(mark for mark in read_marks(folder) if mark.run == run)


def _check(text: str | None, tags: Sequence[str]) -> None:
    if text is not None and not text.strip():
        raise UsageError("the note is empty")
    if text is not None and len(text) > MOST_CHARACTERS:
        raise UsageError(
            f"a note has at most {MOST_CHARACTERS:,} characters; this one has {len(text):,}"
        )
    for tag in tags:
        if not is_tag(tag):
            raise UsageError(
                f"{tag[:80]!r} is not a valid tag: use at most 64 letters, digits, '.', '_', "
                "'+', '-'"
            )


def archive(sweep: str, *, root: str | None = None, on: bool = True) -> bool:
    """Archive a sweep, or restore it with `on=False`. Return whether anything changed. Commands
    show an archived sweep only if a name or glob selects it. Raises `NotFound`, `StoreError`."""
    folder = _existing(sweep, root)
    if fold(mark for mark in read_marks(folder) if mark.run is None).archived == on:
        return False
    put_mark(folder, Kind.ARCHIVE if on else Kind.UNARCHIVE)
    return True


def rename(sweep: str, name: str, *, root: str | None = None) -> None:
    """Rename a sweep that has no launcher and no running jobs. To continue the sweep, also change
    the name in the grid. Raises `NotFound`, `UsageError` if the name is invalid or taken, and
    `EnvironmentFailure` if anything may be running or the store cannot move folders."""
    from sweeper.sweep.names import is_sweep_name

    folder = _existing(sweep, root)
    store = folder.store
    if not is_sweep_name(name):
        raise UsageError(
            f"{name[:80]!r} is not a valid name: use at most 100 letters, digits, '.', '_', '-'"
        )
    top, to = store.local_path(sweep), store.local_path(name)
    if top is None or to is None:
        raise EnvironmentFailure(
            f"{store.root} cannot move folders: launch the grid under the new name, "
            f"and hide the old sweep with `{hint('sweep archive', sweep, root=store.root)}`"
        )
    with holding_sweep(folder, existing=True):
        _require_rest(folder)
        try:
            os.mkdir(to)  # exclusively, because `rename` would replace another process's folder
        except FileExistsError:
            raise UsageError(f"{store.root} already has a sweep {name}") from None
        try:
            os.rename(top, to)
        except OSError as error:
            with suppress(OSError):
                os.rmdir(to)
            raise StoreError(f"{top}: cannot be renamed ({error.strerror})") from error
        _forget_environment(top)


def size_of(sweep: str, *, root: str | None = None) -> tuple[int, int]:
    """Return the number of runs that have started in a sweep, and the sweep's size in bytes. Raises
    `NotFound`, `StoreError`."""
    folder = _existing(sweep, root)
    return len(folder.read_events()), sum(entry.size for entry in folder.store.list(sweep))


def delete(sweep: str, *, root: str | None = None) -> None:
    """Delete a sweep that has no launcher and no running jobs, and all records of its runs.
    Checkpoints at a model service are not deleted. If the process is killed, repeat the call to
    delete the rest. Raises `NotFound`, `EnvironmentFailure`."""
    folder = _existing(sweep, root)
    with holding_sweep(folder, existing=True, deletes=True):
        _require_rest(folder)
        with suppress(StoreError):  # The file exists, or the disk is full.
            folder.store.create(folder.deletion, b"")
        clear(folder)
        _forget_environment(folder.address)


def clear(folder: SweepFolder) -> None:
    """Remove the files and folders of a sweep. The lock is left to its holder. Raises
    `StoreError`."""
    last: dict[str, list[str]] = {name: [] for name in _LAST}
    first: list[str] = []
    for path in folder.store.names(folder.name):
        below = path.removeprefix(f"{folder.name}/").partition("/")[0]
        if not is_of_lock(folder.store, path):
            last.get(below, first).append(path)
    for paths in (first, *last.values()):
        folder.store.remove(paths)
    top = folder.store.local_path(folder.name)
    if top is not None:
        _remove_folders(top)


def _existing(sweep: str, root: str | None) -> SweepFolder:
    """Return the folder of an existing sweep. Raises `NotFound`."""
    folder = SweepFolder.open(root or default_root(), sweep)
    if sweep not in find_sweeps(folder.store):
        folder.read_plan()  # If there is no plan, the error lists the existing sweeps.
        raise NotFound(f"no sweep {sweep!r} in {folder.store.root}")
    return folder


def _require_rest(folder: SweepFolder) -> None:
    """Raise `EnvironmentFailure` if jobs of the sweep may be running."""
    at_work = sum(fold_events(events).at_work for events in folder.read_events().values())
    if at_work:
        raise EnvironmentFailure(
            f"{plural(at_work, 'run')} of {folder.name!r} may be running: "
            f"`{hint('cancel', folder.name, root=folder.store.root)}` stops them"
        )


def _forget_environment(folder: str) -> None:
    """Remove the file with the environment of a deleted or renamed sweep's runs. Otherwise the next
    launch with the old name would fail, and report that the sweep's disk may be unmounted."""
    from sweeper.sweep import environment_file

    environment_file.forget(environment_file.env_file(folder), folder)


def _remove_folders(top: str) -> None:
    """Remove the temporary files below `top`, which killed processes have left. Then remove all
    empty folders, including `top`."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            if name.startswith(TEMPORARY):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
        with suppress(OSError):  # The folder is not empty.
            os.rmdir(folder)
