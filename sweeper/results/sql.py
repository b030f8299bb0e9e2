"""Runs SQL over tables in memory, with DuckDB: one SELECT, which can read these tables and nothing
else. DuckDB's own parser checks the query."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from sweeper.common.json_values import is_list, is_table, list_of, table_of
from sweeper.errors import UsageError
from sweeper.paths import current_folder

if TYPE_CHECKING:
    import duckdb
    import pandas

TABLES = ("runs", "metrics", "rollouts", "checkpoints", "items", "scores")

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

_ROWS_OF = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "summary", "unnest"}
)
"""Functions that make tables from their arguments only."""
_REFUSED = frozenset(
    {"current_setting", "getenv", "getvariable", "nextval", "pg_sleep", "sleep_ms", "write_log"}
)
"""Functions that return values but could read something other than the tables."""
_SYSTEM = ("duckdb_", "pg_", "pragma_", "sqlite_")
"""Prefixes of the names of DuckDB's own tables, which a query must not use."""
_SHOWS = frozenset({'"tables"', "__show_tables_expanded"})


class Answer(NamedTuple):
    """The result of a query: the names of the columns, and the rows."""

    columns: list[str]
    rows: list[tuple[object, ...]]


def ask(
    query: str,
    tables: Mapping[str, Callable[[], object]],
    frame: bool = False,
    joined: Callable[[frozenset[str]], None] | None = None,
) -> "Answer | pandas.DataFrame":
    """Return the answer to a query as an `Answer`, or as a DataFrame if `frame` is set. `tables`
    maps the name of each table to a function that makes the Arrow table. The function is called
    only if the query may need the table. `joined` is called for each join, with the columns that
    the join compares. Raises `UsageError` for an invalid query."""
    import duckdb

    if any("\ud800" <= letter <= "\udfff" for letter in query):
        raise UsageError("sql: the query is not UTF-8")
    current_folder()  # in a removed folder, DuckDB would abort the process
    with duckdb.connect(":memory:", config=_LOCKED) as connection:
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("sql: write one SELECT over the tables " + ", ".join(TABLES))
            nodes = _parsed(connection, statements[0].query)
            _refuse(nodes)
            for node in nodes:
                if joined is not None and node.get("type") == "JOIN":
                    joined(_matched(node))
            lists = any(node.get("table_name") in _SHOWS for node in nodes)
            for name, make in tables.items():
                if mentioned(name, query) or lists:
                    connection.register(name, make())
            result = connection.sql(statements[0].query)
            if frame:
                return result.df()
            return Answer(list(result.columns), result.fetchall())
        except duckdb.Error as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise UsageError(f"sql: {' '.join(lines[:2])}") from error


def _parsed(connection: "duckdb.DuckDBPyConnection", statement: str) -> list[dict[str, object]]:
    """Return all nodes of a statement's syntax tree. Raises `UsageError` for a syntax error."""
    [(text,)] = connection.execute("select json_serialize_sql(?)", [statement]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise UsageError(f"sql: {parsed['error_message']}")
    return list(_nodes(parsed["statements"]))


def _matched(join: Mapping[str, object]) -> frozenset[str]:
    """Return the columns that a join compares, as in `USING (run)` or `ON a.run = b.run`."""
    names = {str(name).lower() for name in list_of(join.get("using_columns"))}
    for node in _nodes(join.get("condition")):
        if node.get("type") == "COMPARE_EQUAL":
            left, right = (list_of(table_of(node[side]).get("column_names")) for side in _SIDES)
            if left and right and str(left[-1]).lower() == str(right[-1]).lower():
                names.add(str(left[-1]).lower())
    return frozenset(names)


_SIDES = ("left", "right")


def _refuse(nodes: list[dict[str, object]]) -> None:
    """Raise `UsageError` for a statement that reads anything other than the tables."""
    names = {
        str(table_of(entry)["key"]).lower()
        for node in nodes
        for entry in list_of(table_of(node.get("cte_map")).get("map"))
    }
    for node in nodes:
        if table := _out_of_reach(node, names):
            similar = get_close_matches(table.lower(), TABLES, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"choose from {', '.join(TABLES)}"
            raise UsageError(f"sql: {table} is not available; {hint}")
    for name in names:
        if name.startswith(_SYSTEM):
            raise UsageError(f"sql: {name} is a reserved name of DuckDB; choose another")


def _nodes(tree: object) -> Iterator[dict[str, object]]:
    """Yield all nodes of a syntax tree, at any depth."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if is_table(part):
            yield part
            pending += part.values()
        elif is_list(part):
            pending += part


def _out_of_reach(node: Mapping[str, object], names: set[str]) -> str | None:
    """Return the table or function that a node of a statement must not use; None if the node uses
    no such source. `names` are the names that the statement defines."""
    kind = node.get("type")
    if kind == "BASE_TABLE":
        name, schema = str(node["table_name"]), str(node["schema_name"]).lower()
        allowed = schema in ("", "main") and name.lower() in {*TABLES, *names}
        return None if allowed else name
    if kind == "TABLE_FUNCTION":
        name = str(table_of(node["function"]).get("function_name")).lower()
        return None if name in _ROWS_OF else f"{name}()"
    if kind == "SHOW_REF":
        name = str(node["table_name"])
        shown = node["query"] or name in _SHOWS or name.lower() in TABLES
        return None if shown else name or "a schema"
    if node.get("class") == "FUNCTION" and str(node["function_name"]).lower() in _REFUSED:
        return f"{node['function_name']}()"
    return None


def mentioned(name: str, query: str) -> bool:
    """Return whether a query may mention a name, quoted or not. Upper and lower case are not
    distinguished."""
    return name.lower() in query.lower()


def mentions_all(query: str, table: str) -> bool:
    """Return whether a query may need columns of `table` that it does not name. Examples are `*`, a
    pivot, a `FROM` without a `SELECT`, and an alias that stands for a whole row."""
    text = re.sub(r"count\s*\(\s*\*\s*\)", "count()", query, flags=re.IGNORECASE)
    words = re.findall(r"[\w\"]+|\S", text.lower())
    if "*" in words or words.count("from") > words.count("select"):
        return True
    if {"columns", "pivot", "unpivot", "describe", "summarize", "natural"} & set(words):
        return True
    # The table's name or alias elsewhere, without a following dot, means a whole row.
    plain = query.lower().replace('"', "")
    aliases = re.findall(rf"\b{table}\s+(?:as\s+)?([a-z_]\w*)", plain)
    for name in {table, *aliases} - _AFTER:
        for match in re.finditer(rf"(?<![\w./]){name}(?![\w/]|\s*\.)", plain):
            if not re.search(rf"\b(from|join|as|{table})\s+$", plain[: match.start()]):
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
