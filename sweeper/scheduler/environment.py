"""The environment that runs get: the one `sweeper launch` was typed in, whatever the backend.

A file of mode 0600 outside the store hands it to the workers: a tmux server or a batch scheduler
has an environment of its own, and secrets must not appear on a command line, in a configuration or
in a log. The file is removed when the sweep has ended. If a launcher was killed and never came
back, a later launch of any other sweep removes its file, once nothing of the sweep runs.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.backends import may_restart
from sweeper.common.atomic import atomic_write
from sweeper.common.json_values import table_of
from sweeper.engine.lifecycle import EngineInfo, client_key, hub_environment
from sweeper.errors import EnvironmentFailure, NotFound, StoreError, SweeperError
from sweeper.paths import environments, home
from sweeper.store.opening import open_store
from sweeper.sweep.folder import Events, SweepFolder
from sweeper.sweep.lock import is_held
from sweeper.sweep.states import State, fold, wants_attempt
from sweeper.worker.job import read_environment

_NOT_OURS = (
    *("TMUX", "TMUX_PANE", "SWEEPER_RUN", "SWEEPER_RUN_DIR", "SWEEPER_ATTEMPT"),
    "SWEEPER_IDENTITY",  # by which plans are sealed: a run seals none
)
_OWNER = "SWEEPER_FOLDER"
"""The variable in the file that names the sweep's folder."""
_PLACE = "SWEEPER_KEPT_AT"
"""The variable in a note, a file without an environment, that names the file which has it."""
_MARK = "SWEEPER_KEPT"
"""The variable in the file that tells one launch's environment from another's."""
_YOUNG_SECONDS = 3600.0
_AGAIN = frozenset({State.PREEMPTED, State.LOST})
_NOTHING: Mapping[str, str] = {}


def env_file(folder: str) -> str:
    """The file for the environment of the sweep at `folder`."""
    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    return os.path.join(environments(), f"{name}.json")


def require_secrets(names: Sequence[str]) -> None:
    """Raise `EnvironmentFailure` when one of these variables is not set here."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise EnvironmentFailure(
            f"the secret {missing[0]} is not set: `export {missing[0]}=...` before launching"
        )


def write(
    folder: str, extra: Mapping[str, str], place: str | None = None, without: Sequence[str] = ()
) -> str:
    """Keep this process's environment, with `extra` over it and `without` some variables, for the
    workers of a sweep. Returns the file's path: `place`, if there is one. Then the usual file is
    only a note of that place, by which it is found and removed when nobody needs it any more."""
    environment = {k: v for k, v in os.environ.items() if k not in (*_NOT_OURS, *without)}
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
    """Update variables in a kept environment; workers that start from now on get them. Raises
    `StoreError`."""
    try:
        with open(path, encoding="utf-8") as file:
            environment: dict[str, str] = json.load(file)
        if not values.items() <= environment.items():
            _keep(path, {**environment, **values})
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"the runs' environment in {path} cannot be changed: {error}") from error


def mark_of(path: str) -> str | None:
    """The mark that tells the environment kept at `path` from any other; None without one."""
    with suppress(EnvironmentFailure):
        return read_environment(path).get(_MARK)
    return None


def forget(path: str | None, folder: str | None = None) -> None:
    """Remove what `write` kept, if it is there. `folder` is given for a path that was read from a
    store, where anything may stand: the file is removed only if it names that sweep's folder. `gc`
    finds a file that cannot be removed now."""
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
    """A file that `write` left: its path, when it was written, and what is in it ({} where it
    cannot be read)."""

    path: str
    written: float
    document: Mapping[str, object]

    @property
    def folder(self) -> str:
        """The folder of its sweep; "" if it does not say."""
        return str(self.document.get(_OWNER, ""))


def _environments(where: str) -> Iterator[_Kept]:
    """Yield the files that `write` left in the home `where`."""
    try:
        entries = sorted(os.scandir(environments(where)), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        document: object = None
        if not entry.name.endswith(".json"):
            continue
        try:
            written = entry.stat().st_mtime
            with suppress(ValueError, PermissionError), open(entry.path, encoding="utf-8") as file:
                document = json.load(file)
        except OSError:
            continue  # gone, or it cannot be read now
        yield _Kept(entry.path, written, table_of(document))


def _old() -> Iterator[_Kept]:
    """Yield the files that `write` left an hour ago or more, in place of a note what it points
    to."""
    for environment in _environments(home()):
        place = environment.document.get(_PLACE)
        if time.time() - environment.written < _YOUNG_SECONDS:
            continue
        if not isinstance(place, str):
            yield environment
        elif os.path.exists(place):
            yield environment._replace(path=place)  # the note itself follows the next time
        elif os.path.isdir(os.path.dirname(place)):  # else its disk may be away
            yield environment


def sweeps_using(info: EngineInfo) -> list[str]:
    """The folders of sweeps that use an engine of this home and may be at work. A sweep that cannot
    be read counts as at work."""
    sweeps: list[str] = []
    for entry in _environments(info.home):
        environment = entry.document
        place = environment.get(_PLACE)
        if isinstance(place, str):
            with suppress(SweeperError):
                environment = read_environment(place)
        # The engine is known by its key, which stays the same when its address changes.
        if environment.get("TINKER_API_KEY") == client_key(info.home) and entry.folder:
            root, _, sweep = entry.folder.rpartition("/")
            try:
                used = _in_use(SweepFolder(open_store(root), sweep))
            except (SweeperError, OSError):
                used = True
            sweeps += [entry.folder] * used
    return sweeps


def unused_files(
    but: str = "", unknown: Callable[[str, str], object] = lambda path, _: path
) -> Iterator[str]:
    """Yield the files that `write` left an hour ago or more for sweeps of which nothing runs any
    more: their launcher was killed, and nobody launched them again. The file of the sweep at `but`
    is passed over. So are those of sweeps that are away (removed, or on a disk that is not mounted)
    or cannot be read: `unknown` is called with such a file and its sweep's folder."""
    for kept in _old():
        root, _, sweep = kept.folder.rpartition("/")
        if kept.folder == but:
            continue
        try:
            if kept.folder and _in_use(SweepFolder(open_store(root), sweep)):
                continue
        except (SweeperError, OSError):
            unknown(kept.path, kept.folder)
            continue
        yield kept.path


def refuse_if_folder_missing(folder: SweepFolder) -> None:
    """Refuse a sweep that was launched from here, was not over, and is not in the store now: its
    disk may be away while its jobs are at work, and they would be started again. Raises
    `StoreError`."""
    path = env_file(folder.address)
    if os.path.exists(path) and not _has_anything(folder):
        raise StoreError(
            f"{folder.address}: was launched before and was not over, and is not there: is its "
            f"disk mounted? If you have removed it, remove {path} as well"
        )


def _has_anything(folder: SweepFolder) -> bool:
    """Whether the store has any file of a sweep; a launch that died early leaves at least a
    lock."""
    return next(iter(folder.store.names(folder.name)), None) is not None


def _in_use(folder: SweepFolder) -> bool:
    """Whether a job of the sweep may be at work, or its launcher is. Raises `NotFound` where the
    sweep is not in the store."""
    try:
        events = folder.read_events()
    except NotFound:
        if not _has_anything(folder):
            raise
        events = {}
    states = map(fold, events.values())
    if any(state.at_work for state in states):
        return True
    return _may_restart(folder, events) or is_held(folder)


def is_needed_later(folder: SweepFolder) -> bool:
    """Whether the backend may start a run of the sweep again by itself, without a launcher."""
    return _may_restart(folder, folder.read_events())


def _may_restart(folder: SweepFolder, events: Events) -> bool:
    if not any(
        fold(happened).state in _AGAIN and wants_attempt(happened, 0)  # as `worker.requeue`
        for happened in events.values()
    ):
        return False
    return may_restart(folder.read_plan().launch)


def service_environment(
    service: str, engine_url: str | None, key: str, grids: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """The variables by which the tinker SDK reaches `service`, with the engine's `key`, and
    `transformers` finds the tokenizers of the engine's models. `grids` are the variables that the
    grid sets, of which `HF_HOME` counts. Raises `EngineError`.
    """
    if service == "local" and engine_url is not None:
        variables = hub_environment(environ={**os.environ, **grids})
        return {"TINKER_BASE_URL": engine_url, "TINKER_API_KEY": key, **variables}
    return {}
