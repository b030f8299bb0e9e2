"""The user's folders on this machine, outside any store. Imports only the standard library."""

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
            "the current folder was removed: `cd` to an existing folder"
        ) from error


def is_utf8(path: str) -> bool:
    """Return whether a path is valid UTF-8. JSON documents and tmux require valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the absolute path of sweeper's home: $SWEEPER_HOME, else $XDG_DATA_HOME/sweeper, else
    ~/.local/share/sweeper."""
    if chosen := environ.get("SWEEPER_HOME"):
        return os.path.abspath(os.path.expanduser(chosen))
    data = environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return os.path.abspath(os.path.join(os.path.expanduser(data), "sweeper"))


def cache(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder for files that may be lost at any time: $SWEEPER_HOME/cache, else
    $XDG_CACHE_HOME/sweeper, else ~/.cache/sweeper."""
    if chosen := environ.get("SWEEPER_HOME"):
        return os.path.join(os.path.abspath(os.path.expanduser(chosen)), "cache")
    base = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return os.path.join(os.path.abspath(os.path.expanduser(base)), "sweeper")


def environments(root: str | None = None) -> str:
    """Return the folder that stores the environment variables of launches, including secrets, until
    the launched sweeps end."""
    return os.path.join(root or home(), "environments")


def built(root: str | None = None) -> str:
    """Return the folder for the Python environments that jobs build from requirements, and for
    locks on these environments."""
    return os.path.join(root or home(), "built")


def sources(root: str | None = None) -> str:
    """Return the folder for the copies of sweeper's source that jobs use, and for locks on the
    copies."""
    return os.path.join(root or home(), "sources")


def trials(root: str | None = None) -> str:
    """Return the folder with one file for each `doctor --try` test that has files to remove."""
    return os.path.join(root or home(), "trials")


def engine(root: str | None = None) -> str:
    """Return the folder for the files of the engine (the local model service), such as its log."""
    return os.path.join(root or home(), "engine")


def checkpoints(root: str | None = None) -> str:
    """Return the folder for checkpoints that training clients saved."""
    return os.path.join(engine(root), "checkpoints")


def spill(root: str | None = None) -> str:
    """Return the folder for the weights of idle samplers. The engine empties this folder when it
    starts."""
    return os.path.join(engine(root), "spill")


def models(root: str | None = None) -> str:
    """Return the folder for base models made on first use."""
    return os.path.join(root or home(), "models")


def hub(root: str | None = None) -> str:
    """Return the folder for tokenizers, in the format of the Hugging Face cache. Only the engine
    writes to this folder."""
    return os.path.join(root or home(), "hub")


def views(root: str | None = None) -> str:
    """Return the folder for Hugging Face caches that contain only links: to the repositories in
    `hub`, and to those in a user's own Hugging Face cache."""
    return os.path.join(root or home(), "hub-views")


def stores(root: str | None = None) -> str:
    """Return the folder for the sockets of the local processes that access remote stores for
    workers."""
    return os.path.join(root or home(), "stores")


def warm(root: str | None = None) -> str:
    """Return the folder for the sockets of fork servers, and for lists of the modules that recipes
    import."""
    return os.path.join(root or home(), "warm")


def add_extra(extra: str, python: str | None = None) -> str:
    """Return the shell command that installs sweeper with an extra, such as `mcp`. `python` is the
    interpreter to install for (None: the current interpreter)."""
    import shlex

    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    editable = os.path.exists(os.path.join(checkout, "pyproject.toml"))
    place = ["-e", f"{checkout}[{extra}]"] if editable else [f"tinker-sweeper[{extra}]"]
    return shlex.join([python or sys.executable, "-m", "pip", "install", *place])
