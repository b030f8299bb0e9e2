"""Where the engine keeps its things. Standard library only: the command line imports it."""

import os
from collections.abc import Mapping

__all__ = ["checkpoints", "engine", "home", "hub", "models", "spill", "views"]


def home(environ: Mapping[str, str] = os.environ) -> str:
    """$SWEEPER_HOME, else $XDG_DATA_HOME/sweeper, else ~/.local/share/sweeper: an absolute path."""
    if chosen := environ.get("SWEEPER_HOME"):
        return os.path.abspath(os.path.expanduser(chosen))
    data = environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return os.path.abspath(os.path.join(os.path.expanduser(data), "sweeper"))


def engine(root: str | None = None) -> str:
    """The engine's own directory: its record, lock, log and checkpoints."""
    return os.path.join(root or home(), "engine")


def checkpoints(root: str | None = None) -> str:
    """What training clients saved."""
    return os.path.join(engine(root), "checkpoints")


def spill(root: str | None = None) -> str:
    """Weights of samplers that are not in use; nothing of it outlives the engine."""
    return os.path.join(engine(root), "spill")


def models(root: str | None = None) -> str:
    """Base models made on first use."""
    return os.path.join(root or home(), "models")


def hub(root: str | None = None) -> str:
    """Tokenizers by model name, as the hub's cache has them. Only the engine writes here."""
    return os.path.join(root or home(), "hub")


def views(root: str | None = None) -> str:
    """Caches for programs: what is in `hub`, and beside it what is in a user's own cache."""
    return os.path.join(root or home(), "hub-views")
