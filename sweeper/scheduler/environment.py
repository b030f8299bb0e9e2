"""The environment that runs get: the one `sweeper launch` was typed in, whatever the backend.

It is handed to the workers by a file of mode 0600 outside the store, since a tmux server or a
scheduler has an environment of its own, and since secrets must not appear on a command line, in a
configuration or in a log. The file goes when the sweep has ended; that of a sweep whose launcher
was killed and never came back is removed by a later launch of any other, once nothing of it runs.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from sweeper.atomic import atomic_write
from sweeper.backends import may_restart
from sweeper.engine.lifecycle import EngineInfo, client_key, hub_environment
from sweeper.errors import EnvironmentFailure, NotFound, StoreError, SweeperError
from sweeper.model.states import State, fold, wants_attempt
from sweeper.paths import home
from sweeper.storage.files import Store, open_store
from sweeper.storage.lock import is_held
from sweeper.storage.sweeps import Events, read_events, read_plan
from sweeper.worker.job import read_environment

__all__ = [
    "change",
    "env_file",
    "forget",
    "is_needed_later",
    "mark_of",
    "refuse_if_folder_missing",
    "require",
    "service_environment",
    "unused",
    "users",
    "write",
]

_NOT_OURS = (
    *("TMUX", "TMUX_PANE", "SWEEPER_RUN", "SWEEPER_RUN_DIR", "SWEEPER_ATTEMPT"),
    "SWEEPER_IDENTITY",  # by which plans are sealed: a run seals none
)
_OWNER = "SWEEPER_FOLDER"
"""Says, in the file, which sweep's it is."""
_PLACE = "SWEEPER_KEPT_AT"
"""Says, in a file that holds no environment, where the sweep's is."""
_MARK = "SWEEPER_KEPT"
"""Tells, in the file, this from what another launch has put there."""
_YOUNG_SECONDS = 3600.0
_AGAIN = frozenset({State.PREEMPTED, State.LOST})
_NOTHING: Mapping[str, str] = {}


def env_file(folder: str) -> str:
    """Where the environment for the sweep at `folder` is kept."""
    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    return os.path.join(home(), "environments", f"{name}.json")


def require(secrets: Sequence[str]) -> None:
    """Raise `EnvironmentFailure` when one of `secrets`, which are names, is not set here."""
    missing = [name for name in secrets if not os.environ.get(name)]
    if missing:
        raise EnvironmentFailure(
            f"the secret {missing[0]} is not set: `export {missing[0]}=...` before launching"
        )


def write(folder: str, extra: Mapping[str, str], place: str | None = None) -> str:
    """Keep this process's environment, with `extra` over it, for the workers of a sweep; gives
    the file's path, which is `place` where there is one. Then what is kept here is only where that
    is, so that it is found again when nobody needs it any more."""
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
    environment |= {**extra, _OWNER: folder, _MARK: os.urandom(8).hex()}
    path = env_file(folder)
    try:
        if place is None:
            _keep(path, environment)
        else:
            _keep(path, {_OWNER: folder, _PLACE: place})
            path = place
            _keep(path, environment)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot keep the runs' environment in {path}: {error.strerror}; "
            "set SWEEPER_HOME to a folder that can be written"
        ) from error
    return path


def _keep(path: str, environment: Mapping[str, str]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    atomic_write(path, json.dumps(dict(environment)).encode(), mode=0o600)


def change(path: str, values: Mapping[str, str]) -> None:
    """Put `values` over an environment that is kept, for the workers that read it from now on.
    Raises `StoreError`."""
    try:
        with open(path, encoding="utf-8") as file:
            environment: dict[str, str] = json.load(file)
        if not values.items() <= environment.items():
            _keep(path, {**environment, **values})
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"the runs' environment in {path} cannot be changed: {error}") from error


def mark_of(path: str) -> str | None:
    """What tells the environment that is kept there from any other; None where there is none."""
    with suppress(EnvironmentFailure):
        return read_environment(path).get(_MARK)
    return None


def forget(path: str | None, folder: str | None = None) -> None:
    """Remove what `write` kept, if it is there. Of a path that stands in a store, `folder` is the
    sweep's: the file says itself that it is kept for that, or it stays. The store may say
    anything. One that cannot be removed now, `gc` finds."""
    if path is None:
        return
    if folder is not None:
        try:
            with open(path, encoding="utf-8") as file:
                if json.load(file)[_OWNER] != folder:
                    return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
    with suppress(OSError):
        os.unlink(path)


class _Kept(NamedTuple):
    """A file that `write` left: its path, when it was written, and what is in it; {} where nobody
    can use that."""

    path: str
    written: float
    document: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The folder of its sweep; "" where nobody knows."""
        return str(self.document.get(_OWNER, ""))


def _kept(where: str) -> Iterator[_Kept]:
    """What was kept in the home `where`."""
    try:
        found = sorted(os.scandir(os.path.join(where, "environments")), key=lambda e: e.name)
    except OSError:
        return
    for entry in found:
        document: Any = None
        try:
            written = entry.stat().st_mtime
            with suppress(ValueError, PermissionError), open(entry.path, encoding="utf-8") as file:
                document = json.load(file)
        except OSError:
            continue  # gone, or it cannot be read now
        known = cast(dict[str, Any], document) if isinstance(document, dict) else {}
        yield _Kept(entry.path, written, known)


def _old() -> Iterator[_Kept]:
    """Files that `write` left, an hour ago or more."""
    for kept in _kept(home()):
        place = kept.document.get(_PLACE)
        if time.time() - kept.written < _YOUNG_SECONDS:
            continue
        if not isinstance(place, str):
            yield kept
        elif os.path.exists(place):
            yield kept._replace(path=place)  # and the note of it the next time
        elif os.path.isdir(os.path.dirname(place)):  # else where it is kept is away
            yield kept


def users(info: EngineInfo) -> list[str]:
    """The folders of sweeps that use this home's engine `info` and may be at work: where that
    cannot be seen, they may."""
    found: list[str] = []
    for kept in _kept(info.home):
        environment = kept.document
        place = environment.get(_PLACE)
        if isinstance(place, str):
            with suppress(SweeperError):
                environment = read_environment(place)
        # Wherever it is now, or was: its token does not change.
        if environment.get("TINKER_API_KEY") == client_key(info.home) and kept.folder:
            root, _, sweep = kept.folder.rpartition("/")
            try:
                used = _in_use(open_store(root), sweep)
            except (SweeperError, OSError):
                used = True
            found += [kept.folder] * used
    return found


def unused(
    but: str = "", unknown: Callable[[str, str], object] = lambda path, _: path
) -> Iterator[str]:
    """Files that `write` left an hour ago or more for sweeps of which nothing runs any more: their
    launcher was killed, and nobody launched them again. That of the sweep at `but` is none, and
    none are those of sweeps that are away (removed, or on a disk that is not mounted) or cannot be
    read: `unknown` hears of them, the file and the folder."""
    for kept in _old():
        root, _, sweep = kept.folder.rpartition("/")
        if kept.folder == but:
            continue
        try:
            if kept.folder and _in_use(open_store(root), sweep):
                continue
        except (SweeperError, OSError):
            unknown(kept.path, kept.folder)
            continue
        yield kept.path


def refuse_if_folder_missing(store: Store, sweep: str) -> None:
    """See that a sweep that is not in the store was not launched from here before and is away:
    what it started may be at work, and would be started a second time. Raises `StoreError`."""
    folder = f"{store.root}/{sweep}"
    path = env_file(folder)
    if os.path.exists(path) and not _has_anything(store, sweep):
        raise StoreError(
            f"{folder}: was launched before and was not over, and is not there: is its disk "
            f"mounted? If you have removed it, remove {path} as well"
        )


def _has_anything(store: Store, sweep: str) -> bool:
    """Whether there is any file of a sweep: a launch that died young has left its lock."""
    return next(iter(store.names(sweep)), None) is not None


def _in_use(store: Store, sweep: str) -> bool:
    """Whether a job of the sweep may be at work, or a launcher is there that will start some.
    Raises `NotFound` where the sweep is not there."""
    try:
        events = read_events(store, sweep)
    except NotFound:
        if not _has_anything(store, sweep):
            raise
        events = {}
    states = map(fold, events.values())
    if any(state.at_work for state in states):
        return True
    return _goes_on(store, sweep, events) or is_held(store, sweep)


def is_needed_later(store: Store, sweep: str) -> bool:
    """Whether a run of the sweep, which nobody need plan any more, may be started again by its
    backend, which asks no launcher."""
    return _goes_on(store, sweep, read_events(store, sweep))


def _goes_on(store: Store, sweep: str, events: Events) -> bool:
    if not any(
        fold(happened).state in _AGAIN and wants_attempt(happened, 0)  # as `worker.requeue`
        for happened in events.values()
    ):
        return False
    return may_restart(read_plan(store, sweep).launch)


def service_environment(
    service: str, engine_url: str | None, key: str, grids: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """What the tinker SDK needs to reach `service`, by the engine's `key`, and `transformers` to
    find the tokenizers of the engine's models. `grids` is what the grid will put over it: its
    `HF_HOME` counts. Raises `EngineError`.
    """
    if service == "local" and engine_url is not None:
        found = hub_environment(environ={**os.environ, **grids})
        return {"TINKER_BASE_URL": engine_url, "TINKER_API_KEY": key, **found}
    return {}
