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
    "SWEEPER_IDENTITY",  # Each plan records the identity, and runs do not need it.
)

OWNER = "SWEEPER_FOLDER"
"""The variable in the file whose value is the sweep's folder."""

PLACE = "SWEEPER_KEPT_AT"
"""If the environment is stored elsewhere, the usual file has only `OWNER` and this variable, the
path of the file with the environment."""

_MARK = "SWEEPER_KEPT"
"""The variable in the file with a random value, which identifies the launch."""


def env_file(folder: str) -> str:
    """Return the default path of the environment file of the sweep at the address `folder`."""
    import hashlib  # imported late: a worker on a local store does not need this

    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    return os.path.join(environments(), f"{name}.json")


def write(
    folder: str, extra: Mapping[str, str], place: str | None = None, without: Sequence[str] = ()
) -> str:
    """Write the environment for a sweep's workers: this process's environment without the variables
    in `without`, updated by `extra`. Return the file's path: `place` if given, else the default
    path. With `place`, the file at the default path only names `place`, so that the environment can
    be found and removed later."""
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
    """Set variables in the environment stored at `path`, for workers that start later. Raises
    `StoreError`."""
    try:
        with open(path, encoding="utf-8") as file:
            environment: dict[str, str] = json.load(file)
        if not values.items() <= environment.items():
            _keep(path, {**environment, **values})
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(f"cannot change the runs' environment in {path}: {error}") from error


def mark_of(path: str) -> str | None:
    """Return the random value that identifies the launch whose environment is stored at `path`.
    Return None if the file cannot be read or has no such value."""
    with suppress(EnvironmentFailure):
        return read_environment(path).get(_MARK)
    return None


def forget(path: str | None, folder: str | None = None) -> None:
    """Remove an environment file, if it exists. With `folder`, remove the file only if it belongs
    to the sweep at that address. Pass `folder` if the path comes from a store, because such a path
    cannot be trusted. Errors are ignored."""
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
    """Read the environment of `sweeper launch` from the file at `path`. If `path` is None, return
    this process's environment. Raises `EnvironmentFailure`."""
    if path is None:
        return dict(os.environ)
    try:
        with open(path, encoding="utf-8") as file:
            # `json.load` keeps values that are invalid Unicode unchanged.
            return codec.read(dict[str, str], json.load(file), path)
    except (OSError, ValueError, RecursionError, StoreError) as error:
        # This process's environment is no substitute: it may have another service's address and
        # key.
        raise EnvironmentFailure(
            f"cannot read the environment stored for this run: {error}"
        ) from error
