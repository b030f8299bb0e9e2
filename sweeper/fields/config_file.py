"""The user's configuration file `config.toml`, with settings that apply to all sweeps. Each table
in it is declared by the module that uses it."""

import os

from sweeper.errors import EnvironmentFailure
from sweeper.fields.data import from_python
from sweeper.fields.nodes import Node, Place, Problems

TABLES = ("quota", "budget", "notify")
"""Tables that do not belong to a backend."""


def file() -> str:
    """Return the path of the user's `config.toml`, which need not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "config.toml")


def read_tables(problems: Problems) -> dict[str, object]:
    """Return all tables of `config.toml`; empty if the file does not exist. If the file cannot be
    read, note a mistake and return an empty dict."""
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
    """Return a table of `config.toml` as a node, and a `Problems` that collects the table's
    mistakes. The node is empty if the table is missing. Raises `EnvironmentFailure` if the file
    cannot be read."""
    problems = Problems()
    entries = read_tables(problems).get(name, {})
    refuse(problems)
    return from_python(entries, f"{file()}: {name}", problems), problems


def refuse(problems: Problems) -> None:
    """Raise `EnvironmentFailure` if any mistake was noted."""
    if problems:
        raise EnvironmentFailure("; ".join(problems.error().problems))
