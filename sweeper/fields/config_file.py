"""The user's configuration file, `config.toml`: a table for each thing that can be set for all
sweeps. What a table may hold is declared by whoever reads it."""

import os

from sweeper.errors import EnvironmentFailure
from sweeper.fields.data import from_python
from sweeper.fields.nodes import Node, Place, Problems

__all__ = ["TABLES", "file", "read_tables", "refuse", "table"]

TABLES = ("quota", "budget", "notify")
"""Tables that are no backend's."""


def file() -> str:
    """Where it is, if there is one."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "config.toml")


def read_tables(problems: Problems) -> dict[str, object]:
    """All of it; empty without a file. One that cannot be read is noted."""
    try:
        with open(file(), "rb") as opened:
            import tomllib

            return tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.add(Place(file()), f"cannot be read: {error}")
        return {}


def table(name: str) -> tuple[Node, Problems]:
    """A table as a node, empty where there is none, and where to note what is wrong with it. Raises
    `EnvironmentFailure` for a file that cannot be read."""
    problems = Problems()
    found = read_tables(problems).get(name, {})
    refuse(problems)
    return from_python(found, f"{file()}: {name}", problems), problems


def refuse(problems: Problems) -> None:
    """Raise `EnvironmentFailure` if anything was noted."""
    if problems:
        raise EnvironmentFailure("; ".join(problems.error().problems))
