"""Isolated environments that execute a model's commands: `open_environment("bubblewrap",
Made(...))`. All kinds have the same protocol. Imports only the standard library, since recipes
import this package."""

from sweeper.sandbox.base import (
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
    "check_kind",
    "missing",
    "open_environment",
]

KINDS = {
    "bubblewrap": "its own namespaces, no network, a file system in memory",
    "podman": "a container of podman, with an image built from the task's Dockerfile",
    "docker": "a container of docker, built in the same way",
    "harbor": "an environment of the package harbor: harbor:TYPE, or harbor:module:Class",
    "process": "a temporary folder without isolation, for trusted tasks",
}
"""The kinds of environments, with a description of each."""


def check_kind(kind: str) -> None:
    """Raise ValueError if `kind` is not a valid kind of environment."""
    name, _, variant = kind.partition(":")
    if name not in KINDS or (variant and name != "harbor"):
        raise ValueError(f"no kind of environment {kind!r}: use one of {', '.join(KINDS)}")
    if name == "harbor" and not variant:
        raise ValueError("environment=harbor needs a type, as in harbor:docker or harbor:modal")


def open_environment(kind: str, made: Made, *, unsafe: bool = False) -> Environment:
    """Return an environment that is not started yet. Raises ValueError if `kind` is not valid, and
    `NotThere` for the kind `process` if `unsafe` is not set."""
    check_kind(kind)
    name, _, variant = kind.partition(":")
    if kind == "bubblewrap":
        from sweeper.sandbox.bubblewrap import Bubblewrap

        return Bubblewrap(made)
    if name in ("podman", "docker"):
        from sweeper.sandbox.containers import Container

        return Container(made, name)
    if name == "harbor":
        from sweeper.sandbox.harbor import Harbor

        return Harbor(made, variant)
    if not unsafe:
        raise NotThere(
            "the environment `process` does not isolate commands from this machine: set "
            "`unsafe: true` to run them with all of your rights"
        )
    from sweeper.sandbox.process import Process

    return Process(made)


def missing(kind: str) -> str | None:
    """Return what this machine lacks for this kind of environment, and how to get it; None if
    nothing is missing."""
    if kind == "bubblewrap":
        from sweeper.sandbox import bubblewrap

        return bubblewrap.missing()
    name, _, variant = kind.partition(":")
    if name in ("podman", "docker"):
        from sweeper.sandbox import containers

        return containers.missing(name)
    if name == "harbor":
        from sweeper.sandbox import harbor

        return harbor.missing(variant)
    return None
