"""`sweeper best`: prints the best cells of a sweep, ranked as in the report."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_named
from sweeper.errors import UsageError
from sweeper.results.problems import tell_problems
from sweeper.terminal import number, print_table, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper best`."""
    shared.required_sweep(verb, "a sweep, a stage (sweep/stage), or a folder with runs")
    shared.judge(verb)
    shared.roots(verb)
    shared.group(verb, shared.OUTPUT).add_argument(
        "-n",
        "--limit",
        type=int,
        default=5,
        metavar="N",
        help="how many cells (default: 5; 0: all)",
    )
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print a line for each of the best cells, with the comparison to the best cell."""
    if arguments.limit < 0:
        raise UsageError("--limit takes 0 or more")
    from sweeper import analysis

    registry, (name,) = open_named(arguments.root, [arguments.sweep])
    best_cells = analysis.best(
        registry, name, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    cells = best_cells.cells[: arguments.limit or None]
    if arguments.json:
        document = {
            "schema": 1,
            "sweep": best_cells.sweep,
            "metric": best_cells.metric,
            "goal": best_cells.goal,
            "at": best_cells.at,
            "label": best_cells.label,
            "leaders": best_cells.leaders,
            "differences": best_cells.differences,
            "cells": cells,
        }
        return print_json_answer(document, registry.problems)
    rows = [(row["cell"], row["mean"], _interval(row), row["n"], _place(row, best_cells.leaders))
            for row in cells]  # fmt: skip
    print_table(("cell", best_cells.metric, "95 % interval", "runs", ""), rows)
    every = len(best_cells.cells)
    more = f"; shown: {len(cells)} of {every} cells" if len(cells) < every else ""
    better = "lower" if best_cells.goal == "minimize" else "higher"
    print()
    say(
        f"compared by {best_cells.judged_by} ({better} is better){more}; result: {best_cells.label}"
    )
    for difference in best_cells.differences:
        say(f"the compared runs have {difference}")
    return tell_problems(registry.problems)


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return "-"
    return f"{number(row['low'])} to {number(row['high'])}"


def _place(row: Mapping[str, Any], leaders: tuple[str, ...]) -> str:
    """Describe how a cell compares with the best cell. Return "" for a cell that was not compared,
    such as the best cell itself. If the grid has several blocks, `leaders` has the best cell of
    each block."""
    if row["cell"] in leaders:
        return "best of its block"
    if row["told_apart"] is None:
        return ""
    return "worse beyond the noise" if row["told_apart"] else "tied with the best"
