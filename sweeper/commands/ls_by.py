"""`sweeper ls SWEEP --by KEY`: prints one table of the states of runs, with a row for each value
of a key and a column for each stage or sweep."""

from collections import Counter
from collections.abc import Sequence

from sweeper.commands.status_table import counted
from sweeper.grid.naming import canonical
from sweeper.results.runs import RecordedRun
from sweeper.sweep.states import State
from sweeper.terminal import print_json, print_table, say, setting

_Cell = Counter[str]


def print_by(
    runs: Sequence[RecordedRun], key: str, problems: Sequence[str], *, as_json: bool
) -> None:
    """Print the table of states, and below it why runs have failed. Retired runs are left out."""
    placed = _placed([run for run in runs if not run.retired])
    names = list(dict.fromkeys(column for column, _ in placed))
    rows: dict[str, dict[str, _Cell]] = {}
    values: dict[str, object] = {}
    for column, run in placed:
        text = canonical(run.config[key]) if key in run.config else ""
        values[text] = run.config.get(key)
        rows.setdefault(text, {}).setdefault(column, Counter())[run.state.value] += 1
    failed = [(column, run) for column, run in placed if run.state is State.FAILED]
    if as_json:
        print_json(_document(key, names, values, rows, failed, problems))
        return
    print_table(
        [key, *names],
        [
            (setting(values[text]) if text else None, *(_states(cells.get(name)) for name in names))
            for text, cells in rows.items()
        ],
    )
    for column, run in failed:
        say(f"{column}, {key}={setting(run.config.get(key))}: {run.explained}")


def _states(cell: _Cell | None) -> str | None:
    """Format the states of a table cell's runs, with counts if there are several."""
    if cell is None:
        return None
    if cell.total() == 1:
        return next(iter(cell))
    return counted(cell)


def _placed(runs: Sequence[RecordedRun]) -> list[tuple[str, RecordedRun]]:
    """Return each run with its column: its stage, prefixed by the sweep if there are several."""
    several = len({(run.root, run.sweep) for run in runs}) > 1
    roots = len({run.root for run in runs}) > 1
    placed: list[tuple[str, RecordedRun]] = []
    for run in runs:
        sweep = f"{run.root}/{run.sweep}" if roots else run.sweep
        column = (f"{sweep}/{run.stage}" if several else run.stage) if run.stage else sweep
        placed.append((column, run))
    return placed


def _document(
    key: str,
    names: Sequence[str],
    values: dict[str, object],
    rows: dict[str, dict[str, _Cell]],
    failed: Sequence[tuple[str, RecordedRun]],
    problems: Sequence[str],
) -> dict[str, object]:
    return {
        "schema": 1,
        "by": key,
        "columns": list(names),
        "rows": [
            {"value": values[text], "states": {name: dict(cell) for name, cell in cells.items()}}
            for text, cells in rows.items()
        ],
        "failures": [
            {"column": column, "run": run.id, "value": run.config.get(key), "reason": run.explained}
            for column, run in failed
        ],
        "problems": list(problems),
    }
