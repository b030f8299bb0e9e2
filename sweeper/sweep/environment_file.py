"""The file with the environment of a sweep's runs, a copy of the environment of `sweeper launch`.
The file has mode 0600, lies outside the store, and is removed when the sweep has ended."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sweeper.common import codec
from sweeper.common.atomic import atomic_write
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.paths import environments

_NOT_OURS = (
    *("TMUX", "TMUX_PANE", "SWEEPER_RUN", "SWEEPER_NAME", "SWEEPER_RUN_DIR", "SWEEPER_ATTEMPT"),
    "SWEEPER_IDENTITY",  # This is recorded in each plan; runs do not need it.
)

OWNER = "SWEEPER_FOLDER"
"""The variable in the file whose value is the sweep's folder."""

PLACE = "SWEEPER_KEPT_AT"
"""The variable in a note (a file without an environment) that names the file with the
environment."""

_MARK = "SWEEPER_KEPT"
"""The variable in the file that distinguishes the environments of different launches."""


def env_file(folder: str) -> str:
    """Return the path of the file for the environment of the sweep at `folder`."""
    import hashlib  # A worker on a local store does not need this.

    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    return os.path.join(environments(), f"{name}.json")


def write(
    folder: str, extra: Mapping[str, str], place: str | None = None, without: Sequence[str] = ()
) -> str:
    """Write this process's environment, updated by `extra` and without the variables in `without`,
    for the workers of a sweep. Return the file's path. With `place` the environment is written
    there, and the usual file becomes a note with that path, so that the environment can be found
    and removed later."""
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
            f"cannot write the runs' environment to {path}: {error.strerror}; set "
            "SWEEPER_HOME to a writable folder"
        ) from error
    return path


def _keep(path: str, environment: Mapping[str, str]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    atomic_write(path, json.dumps(dict(environment)).encode(), mode=0o600)


def change(path: str, values: Mapping[str, str]) -> None:
    """Change variables in a stored environment, for workers that start from now on. Raises
    `StoreError`."""
    try:
        with open(path, encoding="utf-8") as file:
            environment: dict[str, str] = json.load(file)
        if not values.items() <= environment.items():
            _keep(path, {**environment, **values})
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"cannot change the runs' environment in {path}: {error}") from error


def mark_of(path: str) -> str | None:
    """Return the mark that identifies the environment at `path`, or None."""
    with suppress(EnvironmentFailure):
        return read_environment(path).get(_MARK)
    return None


def forget(path: str | None, folder: str | None = None) -> None:
    """Remove a file that `write` made, if it exists. With `folder`, remove the file only if it
    names that sweep's folder; use this for a path from a store, which cannot be trusted. `gc`
    removes a file that cannot be removed now."""
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
    """Read the environment of `sweeper launch` from its private file."""
    if path is None:
        return dict(os.environ)
    try:
        with open(path, encoding="utf-8") as file:
            return codec.read(
                dict[str, str], json.load(file), path
            )  # values may be invalid Unicode
    except (OSError, ValueError, RecursionError, StoreError) as error:
        # This process's environment cannot replace it, since it may have another service's address
        # and key.
        raise EnvironmentFailure(
            f"cannot read the environment stored for this run: {error}"
        ) from error
