"""`sweeper compare`: shows how runs differ, compares two sweeps cell by cell or two cells seed by
seed, or shows the answers of checkpoints to the same prompts."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import chosen, open_named, open_registry
from sweeper.errors import NotFound, UsageError
from sweeper.metrics.objective import last_values
from sweeper.results.origins import differences
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import named
from sweeper.sweep.labels import plural
from sweeper.terminal import print_json, print_table, setting

_MOST = 12
_MISSING = object()


def compare_runs(registry: Registry, arguments: Namespace) -> int:
    """Print how runs differ: a row for each key, a column for each run."""
    runs = _as_typed(chosen(registry, arguments), arguments.runs)
    if len(runs) < 2:
        raise UsageError(
            f"compare needs two runs or more; {plural(len(runs), 'run matches', 'runs match')}"
        )
    if len(runs) > _MOST and not arguments.json:
        raise UsageError(
            f"{len(runs)} runs match, and compare shows at most {_MOST}: narrow with "
            "--where, or use --json"
        )
    roots = len({run.root for run in runs}) > 1
    names = [f"{run.root}/" * roots + f"{run.sweep}/{run.name}" for run in runs]
    config = _rows([run.config for run in runs], arguments.all)
    states = [{"state": run.state.value, "reason": run.outcome.reason} for run in runs]
    points = [last_values(run.readable_history.rows) for run in runs]
    last = [{key: point["value"] for key, point in point_by_key.items()} for point_by_key in points]
    metrics = _rows(last, arguments.all)
    point_by_key = differences(runs)
    executed: list[list[object]] = [[each.title, *map(each.label, runs)] for each in point_by_key]
    if arguments.json:
        document = {"schema": 1, "runs": [run.record() for run in runs]}
        keyed = {"config": config, "state": _rows(states, True), "last_metrics": metrics}
        keyed["executed"] = executed
        document |= {k: {key: v for key, *v in rows} for k, rows in keyed.items()}
        return print_json_answer(document, registry.problems)
    for title, rows, shown in (("configuration", config, _set),
                               ("code, packages and data", executed, _shown),
                               ("state", _rows(states, arguments.all), _shown),
                               ("last metrics", metrics, _shown)):  # fmt: skip
        if rows:
            print(title)
            print_table(
                ("key", *names), [(key, *map(shown, point_by_key)) for key, *point_by_key in rows]
            )
            print()
    if not (config or metrics or executed):
        print("the same configuration, and the same last metrics")
    return tell_problems(registry.problems)


def _as_typed(runs: list[RecordedRun], selectors: Sequence[str]) -> list[RecordedRun]:
    """Put the runs in the order in which they were named."""
    typed = [run for selector in selectors for run in named(runs, selector)]
    return list({id(run): run for run in typed}.values()) or runs


def _rows(values: Sequence[Mapping[str, object]], everything: bool) -> list[list[object]]:
    """Return the rows: a key and each run's value. Only rows that differ, unless `everything` is
    set."""
    rows: list[list[object]] = []
    for key in dict.fromkeys(key for each in values for key in each):
        cells = [each.get(key, _MISSING) for each in values]
        texts = {"" if v is _MISSING else json.dumps(v, sort_keys=True, default=str) for v in cells}
        if everything or len(texts) > 1:
            rows.append([key, *(None if value is _MISSING else value for value in cells)])
    return rows


def _set(value: object) -> object:
    return None if value is None else setting(value)


def _shown(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper compare`."""
    shared.group(verb, "what to compare").add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="NAME",
        help="two sweeps, two cells (sweep/cell), or runs: names, globs, ids, a sweep for its runs",
    )
    shared.judge(verb, "two sweeps or two cells")
    shared.select(verb, "runs")
    shared.group(verb, "runs").add_argument(
        "--all", action="store_true", help="also show what is the same in all"
    )
    checkpoints = shared.group(verb, "checkpoints side by side")
    checkpoints.add_argument(
        "--checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="runs, their folders, tinker:// addresses, or base; the others are compared with "
        "the first",
    )
    checkpoints.add_argument("--model", help="the model that `base` stands for")
    checkpoints.add_argument(
        "--prompts", metavar="FILE", help="JSONL of prompts, as the eval recipe's"
    )
    checkpoints.add_argument("--grader", help="grader of prompts that name none (exact)")
    checkpoints.add_argument(
        "-n", "--limit", type=int, default=10, metavar="N", help="how many of each (10); 0: all"
    )
    checkpoints.add_argument(
        "--full", action="store_true", help="show all prompts, not only those that differ"
    )
    checkpoints.add_argument("--out", metavar="FILE", help="also write an HTML page")
    sampling = shared.group(verb, "how to sample from checkpoints")
    sampling.add_argument(
        "--samples", type=int, default=1, metavar="N", help="answers to each prompt (1)"
    )
    sampling.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (0)"
    )
    sampling.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="most tokens in an answer (64)"
    )
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Show how runs differ, compare two sweeps or two cells, or checkpoints side by side."""
    if arguments.checkpoints:
        from sweeper.commands.compare_checkpoints import run_checkpoints

        if arguments.runs:
            raise UsageError("compare: give names of runs, cells or sweeps, or --checkpoints")
        return run_checkpoints(arguments)
    if not (arguments.runs or arguments.where or arguments.state):
        raise UsageError("compare: name two sweeps, two cells or some runs, or use --checkpoints")
    registry = open_registry(arguments, snapshot=True)
    if _are_runs(registry, arguments):
        return compare_runs(registry, arguments)
    from sweeper import analysis

    registry, (a, b) = open_named(arguments.root, arguments.runs, registry)
    comparison = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(comparison.document)
    else:
        print(comparison.text)
    return tell_problems(registry.problems)


def _are_runs(registry: Registry, arguments: Namespace) -> bool:
    """Return whether the arguments name runs: other than two names, selected ones, or two names of
    one run each. A test needs a sweep or a cell."""
    if len(arguments.runs) != 2 or arguments.where or arguments.state or arguments.all:
        return True
    if arguments.metric or arguments.goal or arguments.at:
        return False
    try:
        return all(len(registry.choose([name])) == 1 for name in arguments.runs)
    except NotFound:
        return False
