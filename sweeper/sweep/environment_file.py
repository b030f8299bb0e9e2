"""The file with the environment that runs get: the one `sweeper launch` was typed in, whatever the
backend.

A file of mode 0600 outside the store hands it to the workers: a tmux server or a batch scheduler
has an environment of its own, and secrets must not appear on a command line, in a configuration or
in a log. The file is removed when the sweep has ended. If a launcher was killed and never came
back, a later launch of any other sweep removes its file, once nothing of the sweep runs.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sweeper.common import codec
from sweeper.common.atomic import atomic_write
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.paths import environments

_NOT_OURS = (
    *("TMUX", "TMUX_PANE", "SWEEPER_RUN", "SWEEPER_RUN_DIR", "SWEEPER_ATTEMPT"),
    "SWEEPER_IDENTITY",  # by which plans are sealed: a run seals none
)

OWNER = "SWEEPER_FOLDER"
"""The variable in the file that names the sweep's folder."""

PLACE = "SWEEPER_KEPT_AT"
"""The variable in a note, a file without an environment, that names the file which has it."""

_MARK = "SWEEPER_KEPT"
"""The variable in the file that tells one launch's environment from another's."""


def env_file(folder: str) -> str:
    """The file for the environment of the sweep at `folder`."""
    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    return os.path.join(environments(), f"{name}.json")


def write(
    folder: str, extra: Mapping[str, str], place: str | None = None, without: Sequence[str] = ()
) -> str:
    """Keep this process's environment, with `extra` over it and `without` some variables, for the
    workers of a sweep. Returns the file's path: `place`, if there is one. Then the usual file is
    only a note of that place, by which it is found and removed when nobody needs it any more."""
    environment = {k: v for k, v in os.environ.items() if k not in (*_NOT_OURS, *without)}
    environment |= {**extra, OWNER: folder, _MARK: os.urandom(8).hex()}
    path = env_file(folder)
    try:
        if place is None:
            _keep(path, environment)
        else:
            _keep(path, {OWNER: folder, PLACE: place})
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
                if json.load(file)[OWNER] != folder:
                    return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return
    with suppress(OSError):
        os.unlink(path)


def read_environment(path: str | None) -> dict[str, str]:
    """Read the environment of `sweeper launch` from a private file. A backend would pass on its
    own environment at best, and secrets must not appear on a command line."""
    if path is None:
        return dict(os.environ)
    try:
        with open(path, encoding="utf-8") as file:
            return codec.read(
                dict[str, str], json.load(file), path
            )  # values may be invalid Unicode
    except (OSError, ValueError, RecursionError, StoreError) as error:
        # This process's own environment is no substitute: it may contain another service's address
        # and key.
        raise EnvironmentFailure(
            f"the environment kept for this run cannot be read: {error}"
        ) from error
