"""Places in which the commands of a model are executed, behind one small protocol.

`open_environment("bubblewrap", Made(...))` gives one that is not started yet. Standard library
only: recipes load this in their own interpreter.
"""

from sweeper.environments.base import (
    Died,
    Ended,
    Environment,
    Limits,
    Made,
    NotThere,
    Result,
)

__all__ = [
    "KINDS",
    "Died",
    "Ended",
    "Environment",
    "Limits",
    "Made",
    "NotThere",
    "Result",
    "missing",
    "open_environment",
]

KINDS = {
    "bubblewrap": "namespaces of its own, no network, a file system in memory",
    "process": "a temporary folder and nothing apart: for tasks that one trusts",
}
"""The kinds, and what each is."""


def open_environment(kind: str, made: Made, *, unsafe: bool = False) -> Environment:
    """An environment that is not started yet. Raises `NotThere` for `process` without `unsafe`, and
    ValueError for a kind that there is not."""
    if kind == "bubblewrap":
        from sweeper.environments.bubblewrap import Bubblewrap

        return Bubblewrap(made)
    if kind == "process":
        if not unsafe:
            raise NotThere(
                "the environment `process` keeps nothing apart from this machine: say "
                "`unsafe: true` if every command may do what you may"
            )
        from sweeper.environments.process import Process

        return Process(made)
    raise ValueError(f"{kind!r} is no kind of environment: {', '.join(KINDS)}")


def missing(kind: str) -> str | None:
    """What an environment of this kind lacks on this machine, and how to get it; None: nothing."""
    if kind == "bubblewrap":
        from sweeper.environments import bubblewrap

        return bubblewrap.missing()
    return None
