"""Where things are kept on this machine, for its user: not in a store. Standard library only."""

import os
import sys
from collections.abc import Mapping

from sweeper.errors import EnvironmentFailure


def current_folder() -> str:
    """Return the current folder. Raises `EnvironmentFailure` if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise EnvironmentFailure(
            "the current folder was removed: go to one that exists, with `cd`"
        ) from error


def is_utf8(path: str) -> bool:
    """Return whether a path can be written down: in documents, and as an argument of tmux."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def home(environ: Mapping[str, str] = os.environ) -> str:
    """$SWEEPER_HOME, else $XDG_DATA_HOME/sweeper, else ~/.local/share/sweeper: an absolute path."""
    if chosen := environ.get("SWEEPER_HOME"):
        return os.path.abspath(os.path.expanduser(chosen))
    data = environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return os.path.abspath(os.path.join(os.path.expanduser(data), "sweeper"))


def cache(environ: Mapping[str, str] = os.environ) -> str:
    """Return what may be lost at any time: $SWEEPER_HOME/cache, else $XDG_CACHE_HOME/sweeper, else
    ~/.cache/sweeper."""
    if chosen := environ.get("SWEEPER_HOME"):
        return os.path.join(os.path.abspath(os.path.expanduser(chosen)), "cache")
    base = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return os.path.join(os.path.abspath(os.path.expanduser(base)), "sweeper")


def environments(root: str | None = None) -> str:
    """Return the environments, with secrets, of launches whose sweeps are not over."""
    return os.path.join(root or home(), "environments")


def built(root: str | None = None) -> str:
    """Return what jobs made of requirements: environments of packages, and their locks."""
    return os.path.join(root or home(), "built")


def sources(root: str | None = None) -> str:
    """sweeper's own source, as jobs took it along, and its locks."""
    return os.path.join(root or home(), "sources")


def trials(root: str | None = None) -> str:
    """Return trials of backends by `doctor --try` that are not removed yet: by name, with their
    root."""
    return os.path.join(root or home(), "trials")


def engine(root: str | None = None) -> str:
    """Return the engine's own directory: its record, lock, log and checkpoints."""
    return os.path.join(root or home(), "engine")


def checkpoints(root: str | None = None) -> str:
    """Return what training clients saved."""
    return os.path.join(engine(root), "checkpoints")


def spill(root: str | None = None) -> str:
    """Return weights of samplers that are not in use; nothing of it outlives the engine."""
    return os.path.join(engine(root), "spill")


def models(root: str | None = None) -> str:
    """Base models made on first use."""
    return os.path.join(root or home(), "models")


def hub(root: str | None = None) -> str:
    """Tokenizers by model name, as the hub's cache has them. Only the engine writes here."""
    return os.path.join(root or home(), "hub")


def views(root: str | None = None) -> str:
    """Cache for programs: what is in `hub`, and beside it what is in a user's own cache."""
    return os.path.join(root or home(), "hub-views")


def warm(root: str | None = None) -> str:
    """Return the fork servers' sockets, and lists of what recipes import."""
    return os.path.join(root or home(), "warm")


def add_extra(extra: str) -> str:
    """Return the shell command that installs an optional part of sweeper beside this one."""
    import shlex

    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    editable = os.path.exists(os.path.join(checkout, "pyproject.toml"))
    place = ["-e", f"{checkout}[{extra}]"] if editable else [f"tinker-sweeper[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *place])
