"""`sweeper ls`: lists runs and their results."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import NotRequired

from sweeper.commands import arguments as shared
from sweeper.commands.ls_by import hint_of, print_by
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_chosen
from sweeper.errors import NotFound, UsageError
from sweeper.metrics.objective import last_values
from sweeper.results.marks import marks_by_run, with_tags
from sweeper.results.origins import differences, sentences
from sweeper.results.problems import tell_problems
from sweeper.results.registry import save
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun
from sweeper.results.where import check_keys, keyed
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural, shown_marks
from sweeper.sweep.marks import Marks
from sweeper.sweep.metric import value_text
from sweeper.sweep.run_record import RunRecord
from sweeper.terminal import duration, print_table, say

_LOOKED_AT = 20
"""The largest number of runs that are read to suggest a metric if the user gave an unknown name."""


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper ls`."""
    shared.runs_of_any_sweeps(verb)
    shared.select(verb)
    options = shared.group(verb, shared.RUNS)
    options.add_argument(
        "--tag", action="append", default=[], help="only runs with this tag; repeatable"
    )
    shared.flag(options, "--starred", "only runs with a star")
    table = shared.group(verb, "columns and order")
    table.add_argument(
        "--metric", action="append", help="also show the last value of this metric; repeatable"
    )
    table.add_argument(
        "--by",
        metavar="KEY,...",
        help="print a table with a row for each value of this key, or for each combination of "
        "values of several keys. A row has the states and the best value of each stage or, with "
        "the key checkpoint or suite, the scores of each suite",
    )
    shared.flag(
        table,
        "--code",
        "also show the code that each run executed, and when it was launched (default: only "
        "if runs of a sweep executed different code)",
    )
    table.add_argument(
        "--sort",
        metavar="KEY",
        help="order by value (best first), another column, a setting, or a --metric; --sort=-KEY "
        "reverses the order",
    )
    table.add_argument(
        "-n", "--limit", type=int, default=0, metavar="N", help="at most this many runs"
    )
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print a line for each run."""
    if arguments.limit < 0:
        raise UsageError("--limit takes 0 (all) or more")
    registry, selected = open_chosen(arguments)
    runs = with_tags(selected, arguments.tag, starred=arguments.starred)
    if arguments.by is not None:
        return print_by(runs, arguments.by, registry, as_json=arguments.json)
    columns: list[str] = arguments.metric or []
    records = [_record(run, *marks) for run, marks in zip(runs, marks_by_run(runs), strict=True)]
    if columns:
        for run, record in zip(runs, records, strict=True):
            record["metrics"] = {
                key: run.readable(partial(_last, run, key), None) for key in columns
            }
    for key in columns:
        if runs and all(record.get("metrics", {}).get(key) is None for record in records):
            _refuse(key, runs)
    save(runs)
    count, roots = len(runs), {run.root for run in runs}
    runs, records = _ordered(runs, records, arguments.sort, arguments.limit)
    if arguments.json:
        return print_json_answer({"schema": 1, "count": count, "runs": records}, registry.problems)
    origins = _executed_otherwise(runs)
    wide = ["root"] if len(roots) > 1 else []
    table = [*zip(runs, records, strict=True)]
    _print_table(table, wide, columns, with_code=bool(arguments.code or origins))
    for sentence in origins:
        say(sentence)
    if len(runs) < count:
        print(f"\n{len(runs)} of {count} runs")
    _print_notes(runs)
    return tell_problems(registry.problems)


def _print_table(
    table: "list[tuple[RecordedRun, _Record]]",
    roots: list[str],
    metric_columns: list[str],
    *,
    with_code: bool,
) -> None:
    """Print a table with a line for each run. `roots` is `["root"]` to show the column `root`, and
    [] to leave this column out."""
    columns: list[tuple[str, Callable[[RecordedRun, _Record], object]]] = [
        *((name, lambda run, _: run.root) for name in roots),
        ("sweep", lambda run, _: run.sweep),
        ("run", lambda run, _: run.name),
        ("state", lambda run, _: run.state.value),
        ("attempts", lambda run, _: run.attempts),
        ("time", lambda _, record: duration(record["wall_s"])),
    ]
    records = [record for _, record in table]
    if any(record["metric"] is not None for record in records):
        columns.append(("metric", lambda _, record: record["metric"]))
        columns.append(("value", lambda _, record: record["value"]))
    if any("backend" in record for record in records):
        columns.append(("backend", lambda _, record: record.get("backend")))
    if with_code:
        columns.append(("code", lambda _, record: record["code"]))
        columns.append(("launched", lambda _, record: record["launched"]))
    columns.extend((key, partial(_of_metric, key)) for key in metric_columns)
    if any(map(_marks, records)):
        columns.append(("noted", lambda _, record: _marks(record)))
    print_table(
        [header for header, _ in columns],
        [tuple(cell(run, record) for _, cell in columns) for run, record in table],
    )


def _of_metric(key: str, run: RecordedRun, record: "_Record") -> float | None:
    del run
    return record.get("metrics", {}).get(key)


def _marks(record: "_Record") -> str:
    return shown_marks(record["tags"], starred=record["starred"])


def _print_notes(runs: list[RecordedRun]) -> None:
    for sentence in _retired(runs):
        say(sentence)
    unseeded = (run.sweep for run in runs if isinstance(run, SweepRun) and run.unseeded)
    for name in dict.fromkeys(unseeded):
        say(f"{name}: no seeds are set: runs of a cell differ only by the program's own randomness")
    if any(run.metric is not None and run.metric.get("at") == "auto" for run in runs):
        say(f"value: {value_text('auto')}; `sweeper best SWEEP` uses the same values as the report")


def _ordered(
    runs: list[RecordedRun], records: "list[_Record]", key: str | None, limit: int
) -> "tuple[list[RecordedRun], list[_Record]]":
    """Return at most `limit` runs (0: all) and their records, sorted by `key` (`-key`: in reverse).
    The key `value` puts the best value first. Even in reverse, numbers come before strings, and
    runs without a value come last. Raises `UsageError` for an unknown key, and for the key `value`
    if the runs have different metrics."""
    order = list(range(len(runs)))
    if key is not None and runs:
        backwards, key = key.startswith("-"), key.removeprefix("-")
        views = [keyed(record) | record.get("metrics", {}) for record in records]
        check_keys([key], views, records)
        sign = -1 if backwards else 1
        if key == "value":
            goals = {(m["name"], m.get("goal", "minimize")) for r in runs if (m := r.metric)}
            if len(goals) > 1:
                raise UsageError(
                    "--sort value: these runs have different metrics; sort by a --metric instead"
                )
            sign *= -1 if goals and next(iter(goals))[1] == "maximize" else 1
        texts = sorted({v for view in views if isinstance(v := view.get(key), str)})
        ranks = {text: rank for rank, text in enumerate(texts)}

        def place(number: int) -> tuple[int, float]:
            value = views[number].get(key)
            if isinstance(value, int | float) and not math.isnan(value):
                return 0, sign * float(value)
            if isinstance(value, str):
                return 1, sign * ranks[value]
            return (2 if value is not None else 3), 0.0

        order.sort(key=place)
    order = order[: limit or None]
    return [runs[number] for number in order], [records[number] for number in order]


def _executed_otherwise(runs: list[RecordedRun]) -> list[str]:
    """Return sentences about differences in code, packages or data between runs of one sweep."""
    sweeps: dict[tuple[str, str], list[RecordedRun]] = {}
    for run in runs:
        sweeps.setdefault((run.root, run.sweep), []).append(run)
    return [
        f"{name}: {sentence}"
        for (_, name), group in sweeps.items()
        for sentence in sentences(differences(group))
    ]


def _retired(runs: list[RecordedRun]) -> list[str]:
    """Return a sentence for each sweep with retired runs. The sentence has the command that lists
    these runs. If retired runs are listed already, return []."""
    if any(run.retired for run in runs):
        return []
    planned = [run for run in runs if isinstance(run, SweepRun)]
    counts = {(run.root, run.sweep): run.retired_ones for run in planned}
    return [
        f"{name}: {plural(count, 'run')} launched before and no longer in the grid; "
        f"`{hint('ls', name, '--where', 'retired = true', root=root)}` lists them"
        for (root, name), count in counts.items()
        if count
    ]


class _Record(RunRecord):
    """A run's record with its marks, and with the last values of the requested metrics."""

    tags: list[str]
    starred: bool
    metrics: NotRequired[dict[str, float | None]]


def _record(run: RecordedRun, marks: Marks, of_sweep: Marks) -> _Record:
    tags = sorted({*marks.tags, *of_sweep.tags})
    return {**run.record(), "tags": tags, "starred": marks.starred or of_sweep.starred}


def _last(run: RecordedRun, key: str) -> float | None:
    point = run.value({"name": key, "at": "last"})
    return None if point is None else point.value


def _refuse(key: str, runs: list[RecordedRun]) -> None:
    """Raise `NotFound` if `key` is not a metric of the first `_LOOKED_AT` runs. Do not raise it if
    these runs have recorded no metrics."""
    histories = (run.readable_history for run in runs[:_LOOKED_AT])
    recorded = {name for history in histories for name in last_values(history.rows)}
    if recorded and key not in recorded:
        raise NotFound(f"no run has recorded {key!r}; {hint_of(key, recorded)}")
