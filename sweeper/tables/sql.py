"""SQL over tables in memory, by DuckDB: it may read them, and reach nothing else.

No file, no extension, no setting and no Python variable is within its reach, and only a single
statement that selects is run.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sweeper.errors import UsageError

__all__ = ["TABLES", "Answer", "ask", "mentioned", "mentions_all"]

TABLES = ("runs", "metrics", "rollouts", "checkpoints")

_LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "lock_configuration": True,
}


class Answer(NamedTuple):
    """Names of the columns, and the rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def ask(query: str, tables: Mapping[str, Callable[[], Any]], frame: bool = False) -> Any:
    """The answer to a query: an `Answer`, or a DataFrame. `tables` makes the Arrow tables; only
    those that the query mentions are made. Raises `UsageError` for a query that is none."""
    import duckdb

    with duckdb.connect(":memory:", config=_LOCKED) as connection:
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("sql: give one SELECT; its tables are " + ", ".join(TABLES))
            for name, make in tables.items():
                if mentioned(name, query):
                    connection.register(name, make())
            result = connection.sql(statements[0].query)
            if frame:
                return result.df()
            return Answer(list(result.columns), result.fetchall())
        except duckdb.Error as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise UsageError(f"sql: {' '.join(lines[:2])}") from error


def mentioned(name: str, query: str) -> bool:
    """Whether a name may be meant anywhere in a query: in any capitals, quoted or not."""
    return name.lower() in query.lower()


def mentions_all(query: str, table: str) -> bool:
    """Whether a query may want columns of a table without naming them: `*`, a `FROM` without a
    `SELECT`, a pivot, the table's name or alias as a value."""
    text = re.sub(r"count\s*\(\s*\*\s*\)", "count()", query, flags=re.IGNORECASE)
    words = re.findall(r"[\w\"]+|\S", text.lower())
    if "*" in words or words.count("from") > words.count("select"):
        return True
    if {"columns", "pivot", "unpivot", "describe", "summarize", "natural"} & set(words):
        return True
    # Its name or its alias where no table's name belongs and no dot follows: a whole row is meant.
    plain = query.lower().replace('"', "")
    aliases = re.findall(rf"\b{table}\s+(?:as\s+)?([a-z_]\w*)", plain)
    for name in {table, *aliases} - _AFTER:
        for found in re.finditer(rf"(?<![\w./]){name}(?![\w/]|\s*\.)", plain):
            if not re.search(rf"\b(from|join|as|{table})\s+$", plain[: found.start()]):
                return True
    return False


_AFTER = frozenset(
    [
        "join",
        "left",
        "right",
        "full",
        "inner",
        "outer",
        "cross",
        "asof",
        "semi",
        "anti",
        "positional",
        "where",
        "group",
        "order",
        "limit",
        "on",
        "using",
        "union",
        "intersect",
        "except",
        "having",
        "qualify",
        "window",
        "offset",
        "tablesample",
        "sample",
        "select",
        "as",
        "natural",
    ]
)
