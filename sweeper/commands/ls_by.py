"""The tables of `sweeper ls --by`. The table of states has a row for each combination of values
of the requested settings, and a column for each stage. The table of scores has a column for each
suite, and a row for each checkpoint if the key `checkpoint` is given."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from sweeper.commands.selection import prefixes
from sweeper.commands.status_table import counted
from sweeper.errors import NotFound, UsageError
from sweeper.grid.naming import canonical
from sweeper.metrics.objective import sign_of
from sweeper.results import cells
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.scores import Score, Series, series_of
from sweeper.sweep.labels import plural
from sweeper.sweep.states import State
from sweeper.terminal import print_json, print_table, say, setting

T = TypeVar("T")

CHECKPOINT, SUITE = "checkpoint", "suite"
"""Keys of `--by` that select the table of scores. If a run has a setting `suite`, the key `suite`
means this setting."""

_Values = tuple[object, ...]


class _Best(NamedTuple):
    cell: str
    value: float
    runs: int


class _Row(NamedTuple):
    """A row of the table: the values of the keys in `--by`, and (column, run) for each run."""

    values: _Values
    runs: list[tuple[str, RecordedRun]]


def print_by(runs: Sequence[RecordedRun], by: str, registry: Registry, *, as_json: bool) -> int:
    """Print a table of the runs' states. If `by` contains `checkpoint`, or `suite` while no run has
    a setting of this name, print a table of evaluation scores instead. `by` is the value of `--by`:
    keys separated by commas. Raises `NotFound` for a key that no run has."""
    keys = keys_of(by)
    settings = {name for run in runs for name in run.config}
    scored = CHECKPOINT in keys or (SUITE in keys and SUITE not in settings)
    for key in keys:
        if runs and key not in settings and not (scored and key in (CHECKPOINT, SUITE)):
            raise NotFound(f"no run has the setting {key!r}; {hint_of(key, settings)}")
    shown = _scores if scored else _states
    shown([run for run in runs if not run.retired], keys, registry, as_json)
    return tell_problems(registry.problems, listed=as_json)


def keys_of(by: str) -> list[str]:
    """Split the value of `--by` into keys. Raises `UsageError` for an empty or repeated key."""
    keys = [key.strip() for key in by.split(",")]
    if not all(keys) or len({*keys}) < len(keys):
        raise UsageError(f"--by {by}: name each setting once, with commas between")
    return keys


def hint_of(key: str, keys: Set[str]) -> str:
    """Suggest the known key that is most similar to `key`, or list all known keys."""
    similar = get_close_matches(key, keys, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"choose from {', '.join(sorted(keys))}"


def _value_of(config: Mapping[str, object], keys: Sequence[str]) -> _Values:
    return tuple(config.get(key) for key in keys)


def identity(config: Mapping[str, object], keys: Sequence[str]) -> tuple[str, ...]:
    """Return a text for each key, "" if `config` lacks the key. The texts identify a row."""
    return tuple(canonical(config[key]) if key in config else "" for key in keys)


def one_or_all(values: _Values) -> object:
    """Return the only value, or a list if there are several values."""
    return values[0] if len(values) == 1 else list(values)


# States


def _states(
    runs: Sequence[RecordedRun], keys: Sequence[str], registry: Registry, as_json: bool
) -> None:
    """Print the table of states, and below it the reasons for failures."""
    placed = _placed(runs)
    names = list(dict.fromkeys(column for column, _ in placed))
    rows: dict[tuple[str, ...], _Row] = {}
    for column, run in placed:
        row = rows.setdefault(identity(run.config, keys), _Row(_value_of(run.config, keys), []))
        row.runs.append((column, run))
    ordered = nested(rows)
    metric, best = _best(ordered)
    failed = [(column, run) for column, run in placed if run.state is State.FAILED]
    if as_json:
        print_json(_document(keys, names, ordered, best, failed) | {"problems": registry.problems})
        return
    print_table(
        [*keys, *names, *([f"best {metric}", "of"] if metric else [])],
        [
            (
                *(None if value is None else setting(value) for value in row.values),
                *(_cell(row, name) for name in names),
                *(_best_cells(cell) if metric else ()),
            )
            for row, cell in zip(ordered, best, strict=True)
        ],
    )
    for column, run in failed:
        place = ", ".join(f"{key}={setting(run.config.get(key))}" for key in keys)
        say(f"{column}, {place}: {run.explained}")


def nested(rows: Mapping[tuple[str, ...], T]) -> list[T]:
    """Return the rows sorted by the first key, then by the second key, and so on. The values of
    each key are in the order of their first appearance."""
    orders: dict[tuple[int, str], int] = {}
    for identity in rows:
        for place in enumerate(identity):
            orders.setdefault(place, len(orders))
    in_order = sorted(rows, key=lambda row: [orders[place] for place in enumerate(row)])
    return [rows[identity] for identity in in_order]


def _cell(row: _Row, column: str) -> str | None:
    states = _count(row, column)
    if not states:
        return None
    return next(iter(states)) if states.total() == 1 else counted(states)


def _count(row: _Row, column: str) -> Counter[str]:
    return Counter(run.state.value for name, run in row.runs if name == column)


def _placed(runs: Sequence[RecordedRun]) -> list[tuple[str, RecordedRun]]:
    """Return (column, run) for each run. The column is the run's stage, or the run's sweep if there
    is no stage. If there are several sweeps, the name of the sweep precedes the stage. If there are
    several roots, the root precedes the name of the sweep."""
    several = len({(run.root, run.sweep) for run in runs}) > 1
    roots = len({run.root for run in runs}) > 1
    placed: list[tuple[str, RecordedRun]] = []
    for run in runs:
        sweep = f"{run.root}/{run.sweep}" if roots else run.sweep
        column = (f"{sweep}/{run.stage}" if several else run.stage) if run.stage else sweep
        placed.append((column, run))
    return placed


def _best(rows: Sequence[_Row]) -> tuple[str | None, list[_Best | None]]:
    """Return the metric of the runs, and the best cell of each row (None if no run of the row has a
    value). If the runs do not all have the same metric, return None for the metric and for each
    row."""
    runs = [run for row in rows for _, run in row.runs]
    metrics = {(run.metric["name"], run.metric.get("goal", "minimize")) if run.metric else None
               for run in runs}  # fmt: skip
    judged = next(iter(metrics)) if len(metrics) == 1 else None
    if judged is None:
        return None, [None] * len(rows)
    name, goal = judged
    label = prefixes(runs)
    return name, [_best_of(row, goal, label) for row in rows]


def _best_of(row: _Row, goal: str, label: Callable[[RecordedRun], str]) -> _Best | None:
    values: dict[str, list[float]] = {}
    for _, run in row.runs:
        value = run.record()["value"]
        if value is not None and cells.counts(run.state.value, value, diverged=False):
            values.setdefault(label(run) + run.cell, []).append(value)
    bests = [_Best(cell, cells.mean(of_cell), len(of_cell)) for cell, of_cell in values.items()]
    return min(bests, key=lambda best: sign_of(goal) * best.value, default=None)


def _best_cells(best: _Best | None) -> tuple[object, object]:
    if best is None:
        return None, None
    return best.value, best.cell + (f" ({best.runs} runs)" if best.runs > 1 else "")


def _document(
    keys: Sequence[str],
    names: Sequence[str],
    rows: Sequence[_Row],
    best: Sequence[_Best | None],
    failed: Sequence[tuple[str, RecordedRun]],
) -> dict[str, object]:
    return {
        "schema": 1,
        "by": ",".join(keys),
        "columns": list(names),
        "rows": [
            {
                "value": one_or_all(row.values),
                "states": {name: dict(count) for name in names if (count := _count(row, name))},
                "best": None if cell is None else cell._asdict(),
            }
            for row, cell in zip(rows, best, strict=True)
        ],
        "failures": [
            {
                "column": column,
                "run": run.id,
                "value": one_or_all(_value_of(run.config, keys)),
                "reason": run.explained,
            }
            for column, run in failed
        ],
    }


# Scores


class _Scored(NamedTuple):
    """A row of the table of evaluation scores: of one checkpoint, or of several runs, whose mean is
    shown. `label` is the run or model of the checkpoint ("" for several runs). `values` are the
    values of the keys in `--by`. `scores` is a dict from the name of a suite to its scores."""

    label: str
    values: _Values
    scores: dict[str, list[Score]]


def _scores(
    runs: Sequence[RecordedRun], keys: Sequence[str], registry: Registry, as_json: bool
) -> None:
    """Print the table of evaluation scores. With the key `checkpoint`, print a row for each
    checkpoint. Otherwise each row shows, for each suite, the mean of the runs' last scores."""
    keys = [key for key in keys if key != SUITE]
    rows = _scored(series_of(registry.scores_by_run(runs)), keys)
    suites = list(dict.fromkeys(suite for row in rows for suite in sorted(row.scores)))
    labelled = len({row.label for row in rows}) > 1
    if as_json:
        document = {"schema": 1, "by": ",".join([*keys, SUITE]), "columns": suites}
        records = [_score_record(row) for row in rows]
        print_json(document | {"rows": records, "problems": registry.problems})
        return
    if not rows:
        say("no scores: no run has a metric such as eval/gsm8k/score, or an EvalStore")
        return
    print_table(
        [*(["run"] if labelled else []), *keys, *suites],
        [
            (
                *([row.label] if labelled else []),
                *(None if value is None else setting(value) for value in row.values),
                *(_score_text(row.scores.get(suite, [])) for suite in suites),
            )
            for row in rows
        ],
    )


def _scored(series: Sequence[Series], keys: Sequence[str]) -> list[_Scored]:
    label = prefixes([entry.run for entry in series])
    rows: dict[tuple[str, ...], _Scored] = {}
    each = CHECKPOINT in keys
    for number, entry in enumerate(series):
        config = entry.run.config
        last = {score.suite: score for score in entry.scores}
        for score in entry.scores if each else last.values():
            named = config | ({CHECKPOINT: score.checkpoint} if each else {})
            place = (str(number), str(score.place)) if each else identity(config, keys)
            name = label(entry.run) + entry.label if each else ""
            row = rows.setdefault(place, _Scored(name, _value_of(named, keys), {}))
            row.scores.setdefault(score.suite, []).append(score)
    return list(rows.values()) if each else nested(rows)


def _score_record(row: _Scored) -> dict[str, object]:
    scores = {
        suite: {
            "score": cells.center([score.score for score in of_suite]),
            "runs": len(of_suite),
            "items": sum(score.items or 0 for score in of_suite) or None,
            "errors": sum(score.errors or 0 for score in of_suite),
        }
        for suite, of_suite in row.scores.items()
    }
    record: dict[str, object] = {"run": row.label} if row.label else {}
    return record | {"value": one_or_all(row.values) if row.values else None, "scores": scores}


def _score_text(scores: Sequence[Score]) -> str | float | None:
    if not scores:
        return None
    mean = f"{cells.center([score.score for score in scores]):.4g}"
    return f"{mean} ({plural(len(scores), 'run')})" if len(scores) > 1 else float(mean)
