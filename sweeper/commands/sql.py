"""`sweeper sql`: executes an SQL query on runs, metrics, rollouts and checkpoints."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import cast

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_registry
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_table


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sql`."""
    shared.group(verb, "the query").add_argument(
        "query",
        metavar="QUERY",
        help="one SELECT over the tables runs, metrics, rollouts, checkpoints, items and scores, "
        "which contain the runs that --run, --state and --where choose",
    )
    shared.group(verb, shared.RUNS).add_argument(
        "--run", action="append", metavar="RUN", help="only these runs; repeatable"
    )
    shared.select(verb)
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the result of the query, one line per row."""
    registry = open_registry(arguments, snapshot=True)
    runs = registry.choose(arguments.run or (), arguments.state, arguments.where)
    columns, rows = registry.sql_rows(arguments.query, runs)
    shown = [[_plain(value) for value in row] for row in rows]
    if arguments.json:
        document = {"schema": 1, "columns": columns, "rows": shown}
        return print_json_answer(document, registry.problems)
    if columns:
        print_table(columns, [[_cell(value) for value in row] for row in shown])
    return tell_problems(registry.problems)


def _plain(value: object) -> object:
    """Convert an SQL value to JSON. Times and decimals become strings."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        table = cast("Mapping[object, object]", value)
        return {str(key): _plain(inner) for key, inner in table.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[object]", value)]
    return str(value)


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
