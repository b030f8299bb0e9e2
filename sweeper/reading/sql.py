"""`sweeper sql`: a question to everything that was recorded."""

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from sweeper.reading.choosing import open_registry
from sweeper.records.problems import tell_problems
from sweeper.terminal import print_json, print_table

__all__ = ["sql"]


def sql(arguments: Namespace) -> int:
    """The answer, a line a row."""
    registry = open_registry(arguments)
    runs = registry.choose(arguments.run or (), arguments.state, arguments.where)
    columns, rows = registry.sql_rows(arguments.query, runs)
    shown = [[_plain(value) for value in row] for row in rows]
    if arguments.json:
        document = {"schema": 1, "columns": columns, "rows": shown}
        print_json(document | {"problems": registry.problems})
        return tell_problems(registry.problems, told=True)
    if columns:
        print_table(columns, [[_cell(value) for value in row] for row in shown])
    return tell_problems(registry.problems)


def _plain(value: Any) -> Any:
    """A value of SQL as JSON has it: times and decimals as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
