"""The user's configuration file: a table a backend, of what its jobs ask for by default."""

import os

from sweeper.grid.data import from_python
from sweeper.grid.nodes import Node, Place, Problems
from sweeper.grid.options import nearest

__all__ = ["read_table"]

_TABLES = ("aws_batch", "slurm")


def read_table(name: str, problems: Problems) -> Node | None:
    """The table `[name]`, whose places name the file. None without it, and, once it was put to the
    problems, for a file that cannot be read."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(folder, "sweeper", "config.toml")
    try:
        with open(path, "rb") as file:
            import tomllib

            document = tomllib.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.add(Place(path), f"cannot be read: {error}")
        return None
    for key in sorted(document.keys() - set(_TABLES)):  # the rest is other backends'
        if meant := nearest(key, _TABLES):
            problems.add(Place(path), f"unknown table [{key[:60]}]{meant}")
    table = document.get(name)
    return None if table is None else from_python(table, f"{path}: {name}", problems)
