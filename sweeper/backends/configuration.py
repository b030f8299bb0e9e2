"""Reads a backend's default options from its table in the user's configuration file."""

from sweeper.backends import backend_names
from sweeper.backends.base import BackendType
from sweeper.fields import config_file
from sweeper.fields.data import from_python
from sweeper.fields.kinds import nearest
from sweeper.fields.nodes import Place, Problems


def defaults_of(kind: BackendType, problems: Problems) -> dict[str, object]:
    """Return the options in a backend's table of the configuration file; empty if the file has no
    such table. Mistakes in the file are added to `problems`."""
    path, document = config_file.file(), config_file.read_tables(problems)
    others = document.keys() - {kind.key}
    tables = [name.replace("-", "_") for name in backend_names()] if others else []
    tables += config_file.TABLES
    # Another table may belong to a backend that is not installed here, so only a name that looks
    # misspelled is reported.
    for key in sorted(others - set(tables)):
        if meant := nearest(key, tables):
            problems.add(Place(path), f"unknown table [{key[:60]}]{meant}")
    if (table := document.get(kind.key)) is None:
        return {}
    node = from_python(table, f"{path}: {kind.key}", problems)
    return kind.section.read(node, kind.key, problems).values


def configured(kind: BackendType) -> dict[str, object]:
    """Return a backend's options from the configuration file. Raises `EnvironmentFailure` if there
    are mistakes in the file."""
    problems = Problems()
    values = defaults_of(kind, problems)
    config_file.refuse(problems)
    return values
