"""`sweeper export`: writes runs as CSV, as Parquet, to Weights & Biases, or as a trace for
Perfetto."""

import importlib
import io
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Protocol

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import chosen, open_registry
from sweeper.common.atomic import atomic_write, replacing
from sweeper.common.sanitize import raw as raw_stream
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.metrics.rows import as_float, as_number
from sweeper.results.problems import tell_problems
from sweeper.results.runs import RecordedRun, missing_text
from sweeper.results.timeline import trace_events
from sweeper.sweep.labels import plural
from sweeper.terminal import say, warn

_FORMULA = "^[\\s\\pZ\\pC]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]"
"""Matches text that a spreadsheet would evaluate as a formula. A formula could start programs or
open an address."""
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


class _Column(Protocol):
    """A column of an Arrow table."""

    type: object

    def cast(self, target_type: str) -> "_Column": ...

    def to_pylist(self) -> list[object]: ...


class _Table(Protocol):
    """An Arrow table."""

    columns: Sequence[_Column]
    column_names: list[str]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper export`."""
    shared.runs_of_any_sweeps(verb)
    shared.select(verb)
    options = shared.group(verb, "what to write")
    options.add_argument(
        "--format",
        choices=("csv", "parquet", "wandb", "trace"),
        help="the format (default: by the suffix of --out, else csv); trace: the attempts on a "
        "time axis, for Perfetto",
    )
    options.add_argument(
        "--table",
        choices=("metrics", "runs", "rollouts", "checkpoints", "items", "scores"),
        default="metrics",
        help="the table to write as CSV or Parquet (default: metrics)",
    )
    shared.flag(
        options,
        "--raw",
        "write strings to CSV unchanged, for programs (default: an apostrophe is put before "
        "each string that a spreadsheet would evaluate)",
    )
    options.add_argument(
        "--out",
        help="the file to write, or - for standard output (default: -); with --format wandb, the "
        "folder to write",
    )
    options.add_argument("--project", default="sweeper", help="the W&B project (default: sweeper)")
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Export runs in a format for other tools."""
    kind, out = _format(arguments.format, arguments.out), arguments.out or "-"
    if arguments.json and kind != "wandb" and out == "-":
        raise UsageError("--json needs --out FILE: standard output cannot also take the table")
    registry = open_registry(arguments, snapshot=True)
    runs = chosen(registry, arguments)
    if not runs:
        raise NotFound("no run to export")
    if kind == "wandb":
        count = to_wandb(runs, arguments.project, arguments.out)
        place = f"W&B project {arguments.project}"
    elif kind == "trace":
        events = trace_events(runs, datetime.now(UTC))
        count, place = len(events), out
        _write_text(json.dumps({"traceEvents": events}), out)
    else:
        table = registry.table(arguments.table, runs)
        count, place = table.num_rows, out
        _write(table, kind, out, raw=arguments.raw)
    unit = "event" if kind == "trace" else "row"
    if arguments.json:
        facts = {"format": kind, "out": place, "runs": len(runs), "rows": count}
        return print_json_answer({"schema": 1, **facts}, registry.problems)
    if out != "-" or kind == "wandb":
        say(f"exported {plural(len(runs), 'run')} ({plural(count, unit)}) to {place}")
    return tell_problems(registry.problems)


def _format(requested: str | None, out: str | None) -> str:
    if requested is not None:
        return requested
    if out in (None, "-"):
        return "csv"
    suffix = os.path.splitext(out)[1].lstrip(".").lower()
    if suffix not in ("csv", "parquet"):
        raise UsageError(f"--out {out}: choose --format csv or --format parquet")
    return suffix


def _write(table: _Table, kind: str, path: str, *, raw: bool) -> None:
    """Write a table to a file, completely or not at all. `-` is standard output. In CSV, a missing
    value is an empty field, NaN is `nan`, and strings that a spreadsheet would evaluate are escaped
    unless `raw` is set."""
    arrow = importlib.import_module("pyarrow")
    if kind == "csv":
        table = _plain(arrow, table) if raw else _as_texts(arrow, _plain(arrow, table))
        write = importlib.import_module("pyarrow.csv").write_csv
    else:
        write = importlib.import_module("pyarrow.parquet").write_table
    if path == "-":
        if kind == "parquet" and sys.stdout.isatty():
            raise UsageError("parquet is binary: write it to a file with --out FILE, or to a pipe")
        buffer = io.BytesIO()
        write(table, buffer)
        if sys.stdout.isatty():
            sys.stdout.write(buffer.getvalue().decode())
        else:  # programs get the texts as recorded
            raw_stream(sys.stdout).buffer.write(buffer.getvalue())
        return
    try:
        with replacing(path) as temporary:
            write(table, temporary)
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or error}") from error


def _write_text(text: str, path: str) -> None:
    """Write text to a file, completely or not at all. `-` is standard output."""
    if path == "-":
        print(text)
        return
    try:
        atomic_write(path, text.encode())
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or error}") from error


def _plain(arrow: ModuleType, table: _Table) -> _Table:
    """Convert the columns of a table to types that CSV supports."""
    columns = [
        column.cast("string") if arrow.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return arrow.table(columns, names=table.column_names)


def _as_texts(arrow: ModuleType, table: _Table) -> _Table:
    """Put an apostrophe before each string that a spreadsheet would take for a formula. Numbers
    are unchanged, even if they are stored as strings."""
    compute = importlib.import_module("pyarrow.compute")

    def escape(column: _Column) -> _Column:
        if not arrow.types.is_string(column.type) and not arrow.types.is_large_string(column.type):
            return column
        risky = compute.and_not(
            compute.match_substring_regex(column, _FORMULA),
            compute.match_substring_regex(column, _NUMBER),
        )
        return compute.if_else(risky, compute.binary_join_element_wise("'", column, ""), column)

    names = arrow.chunked_array([table.column_names], type=arrow.string())
    columns = [escape(column) for column in table.columns]
    return arrow.table(columns, names=escape(names).to_pylist())


def to_wandb(runs: Sequence[RecordedRun], project: str, folder: str | None) -> int:
    """Create a W&B run for each run, with the run's name, configuration and metrics. Return the
    number of logged lines of metrics. If WANDB_MODE is not set, W&B is offline, and `wandb sync`
    uploads the runs later."""
    wandb = importlib.import_module("wandb")
    mode = os.environ.get("WANDB_MODE", "offline")
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    count = 0
    for run in runs:
        rows = run.readable_history.rows
        if not rows:
            warn(f"{run.sweep}/{run.name} has recorded nothing")
        wandb_run = wandb.init(
            project=project,
            id=f"{run.id}-{run.sweep}".replace("/", "-"),
            name=run.name,
            group=run.sweep,
            config={**run.config, "sweeper": {"cell": run.cell, "state": run.state.value}},
            mode=mode,
            dir=folder,
            resume="allow" if mode == "online" else None,
            reinit="finish_previous",
            settings=wandb.Settings(silent=True),
        )
        for row in rows:
            wandb_run.log(*_row(row))
            count += 1
        if run.metric is not None and rows:
            # W&B's summary has the last logged value, which may come from a row without a step,
            # because such rows come last.
            point = run.value(run.metric)
            if point is not None:
                if point.missing:
                    warn(f"{run.sweep}/{run.name}: {missing_text(run.metric['name'], point)}")
                wandb_run.summary[run.metric["name"]] = point.value
        wandb_run.summary["state"] = run.state.value
        wandb_run.finish(exit_code=0 if run.state.value == "succeeded" else 1)
    return count


def _row(row: Mapping[str, object]) -> tuple[dict[str, object], int | None]:
    """Return the values and the step to log to W&B for a line of metrics. W&B accepts only whole
    steps of 0 or more. Any other step is logged as a value, and None is returned as the step."""
    values = {key: _logged(value) for key, value in row.items() if value is not None}
    step = as_float(row.get("step"))
    if step is None or step < 0 or step != int(step):
        return values, None
    return {key: value for key, value in values.items() if key != "step"}, int(step)


def _logged(value: object) -> object:
    """Return a value that W&B can plot: strings such as "NaN" become numbers."""
    number = as_number(value) if isinstance(value, str) else None
    return value if number is None else number
