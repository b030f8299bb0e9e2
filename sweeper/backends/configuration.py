"""The user's configuration file: a table for each backend, of what its jobs ask for by default."""

from sweeper.backends import backend_names
from sweeper.backends.base import BackendType
from sweeper.fields import config_file
from sweeper.fields.data import from_python
from sweeper.fields.kinds import nearest
from sweeper.fields.nodes import Place, Problems

__all__ = ["configured", "defaults_of"]


def defaults_of(kind: BackendType, problems: Problems) -> dict[str, object]:
    """What the table of a backend says, as a plan would have it; empty without one. What is wrong
    with it, or with the file, is noted, with a place that names the file."""
    path, document = config_file.file(), config_file.read_tables(problems)
    others = document.keys() - {kind.key}
    tables = [name.replace("-", "_") for name in backend_names()] if others else []
    tables += config_file.TABLES
    for key in sorted(others - set(tables)):  # it may be of a backend that is elsewhere
        if meant := nearest(key, tables):
            problems.add(Place(path), f"unknown table [{key[:60]}]{meant}")
    if (table := document.get(kind.key)) is None:
        return {}
    node = from_python(table, f"{path}: {kind.key}", problems)
    return kind.section.read(node, kind.key, problems).values


def configured(kind: BackendType) -> dict[str, object]:
    """The same for a backend that is being opened. Raises `EnvironmentFailure` for a table that
    cannot be used."""
    problems = Problems()
    found = defaults_of(kind, problems)
    config_file.refuse(problems)
    return found
