"""What a launch has to know of where a backend's jobs run, where that is not this machine."""

from typing import NamedTuple

__all__ = ["Terms"]


class Terms(NamedTuple):
    """The terms on which a backend executes jobs. As they stand: on this machine, as this user.

    `here`: on this machine, so that they reach the engine over loopback. `files`: with the folders
    of this machine, so that a root, a checkout and the private file with the runs' environment are
    theirs too. `python`: the interpreter that executes the worker and the recipe (None: as here).
    `secrets`: the names of those that the backend hands to its jobs by itself. `restarts`: the
    variable in which it counts, for a job, how often it has started it again by itself (see
    `sweeper/worker/restarting.py`).
    """

    here: bool = True
    files: bool = True
    python: str | None = None
    secrets: frozenset[str] = frozenset()
    restarts: str | None = None
