"""All recorded results, from Python: sweeps, runs, metrics, rollouts and checkpoints, as pandas
DataFrames, by SQL, or as plain dicts without pandas (`records`, `sweep_records`)."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sweeper.results.catalog import Catalog, without_archived
from sweeper.results.problems import Problems
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import asks_for_dropped, current
from sweeper.results.sweeps import Sweep
from sweeper.sweep.states import State

if TYPE_CHECKING:
    import pandas

    from sweeper.metrics.tables.frames import Part
    from sweeper.results.catalog import Runs
    from sweeper.results.metrics_follower import Follower
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.scores import Score
    from sweeper.sweep.marks import Marks
    from sweeper.sweep.run_record import ItemRow, RunRecord, SweepRecord

RUN_COLUMNS = (
    *("run", "sweep", "name", "cell", "seed", "state", "attempts", "reason"),
    *("retired", "started", "ended", "wall_s", "root"),
    *("code", "commit", "launched", "metric", "value"),
)
"""The first columns of `Registry.runs`. The columns of the configuration keys follow."""
_OF_STAGES = frozenset({"stage", "parents"})
"""Additional columns for sweeps with stages."""

_MIXES = (
    "sql: several sweeps have runs with the same id, and this join mixes them: join `using (run, "
    "sweep, root)`"
)


class Registry(Catalog):
    """The results in one or several roots. `Catalog` describes how runs are found and identified,
    and what `problems` contains. Unchanged files are read from a cache (`sweeper.metrics.tables`);
    `cache=False` turns the cache off."""

    def _repr_html_(self) -> str:
        """Return the sweeps as HTML for a notebook."""
        from sweeper.common.html import table, title

        rows = [
            (
                record["sweep"],
                record["recipe"],
                record["runs"],
                ", ".join(f"{count} {state}" for state, count in record["states"].items()),
                record["created"],
            )
            for record in self.sweep_records()
        ]
        columns = ("sweep", "recipe", "runs", "states", "created")
        return title("Registry", ", ".join(self.roots)) + table(columns, rows)

    def _tables(self) -> "Tabulator":
        from sweeper.results.metrics_reader import Tabulator

        return Tabulator(self._memories, self.problems)

    # Sweeps

    def sweep_records(self, sweep: str | None = None) -> "list[SweepRecord]":
        """Return one dict per sweep, with the keys `sweep root created recipe runs states tags
        starred archived`. `states` counts the runs in each state. `sweep` is a name or a glob. If
        `sweep` is None, archived sweeps are left out."""
        self.problems = Problems()
        pairs = ((sweep_item, self._marks(sweep_item)) for sweep_item in self._sweeps(sweep))
        return [
            _sweep_record(sweep_item, marks)
            for sweep_item, marks in pairs
            if sweep is not None or not marks.archived
        ]

    def sweeps(self, sweep: str | None = None) -> "pandas.DataFrame":
        """Return one row per sweep. Each state has a column with the number of runs in it."""
        import pandas

        self._warn_of_missing_roots()
        records = self.sweep_records(sweep)
        flat: list[dict[str, object]] = []
        for record in records:
            row: dict[str, object] = {k: v for k, v in record.items() if k != "states"}
            counts = {state.value: record["states"].get(state.value, 0) for state in State}
            flat.append(row | counts)
        columns = ["sweep", "root", "created", "recipe", "runs", *(state.value for state in State)]
        return pandas.DataFrame(flat, columns=columns)

    # Runs

    def records(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
        *,
        values: bool = True,
    ) -> "list[RunRecord]":
        """Return one dict per run; see `RecordedRun.record`. The runs of a sweep are sorted as in
        its plan.

        `sweep` is a name or a glob, `state` one state or several, `where` a condition such as
        `learning_rate < 1e-3 and seed = 0` (see `results.where`). Retired runs that have ended are
        included only if `where` mentions `retired`, and runs of archived sweeps only if `sweep` is
        given. `values=False` reads no metrics. Raises `NotFound` if `sweep` matches nothing,
        `UsageError` for an invalid condition or state.
        """
        # Imported late: many commands have no condition.
        from sweeper.results.where import parse_where, select

        condition = None if where is None else parse_where(where)
        runs = (self.all_handles if asks_for_dropped(where) else self.handles)(sweep, state)
        if sweep is None:
            runs = without_archived(runs)
        records = [run.record(values=values) for run in runs]
        save(runs)
        return records if condition is None else select(condition, records)

    def runs(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
    ) -> "pandas.DataFrame":
        """Return one row per run, with `RUN_COLUMNS` and then one column per configuration key
        (`config.<key>` if `RUN_COLUMNS` contains the key). `run` is the id, `started` and `ended`
        are times in UTC, `wall_s` is in seconds, and `value` is the run's value of the sweep's
        `metric`. For arguments and errors, see `records`."""
        import pandas

        from sweeper.metrics.tables.frames import rows_frame

        self._warn_of_missing_roots()
        frame = rows_frame(self.run_rows(sweep, state, where), RUN_COLUMNS)
        for column in ("started", "ended"):
            frame[column] = pandas.to_datetime(frame[column], utc=True, errors="coerce")
        frame["seed"] = frame["seed"].astype("Int64")
        frame["value"] = frame["value"].astype("float64")
        return frame

    def run_rows(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
    ) -> list[dict[str, object]]:
        """Return the rows of `runs` as dicts."""
        return [_flat(record) for record in self.records(sweep, state, where)]

    # Recorded results

    def metrics(self, runs: "Runs" = None, keys: Sequence[str] | None = None) -> "pandas.DataFrame":
        """Return the rows of every run's merged history, with the columns `run sweep root step` and
        then one column per key.

        `runs` is a DataFrame of `runs()`, a reference (see `run`), several references, or None for
        all runs except those of archived sweeps. With `keys`, the result has only these metrics, in
        this order, and only rows with a value of one of them. A key called `run`, `sweep` or `root`
        becomes `metric.<key>`. Numbers are float64. Steps are int64 if each row has an integer,
        else float64 (NaN: no step). If a key has a value such as a string, a boolean or an integer
        beyond 2**53, its column has objects.
        """
        from sweeper.metrics.tables.frames import numbers_frame
        from sweeper.results.metrics_reader import metric_column

        resolved = self._resolve(runs)
        parts = self._tables().metrics(resolved, keys)
        self._warn_of_unknown(keys or (), parts, resolved)
        first = ["step", *(key for key in keys or () if key != "step")]
        return numbers_frame(parts, first, metric_column, whole=["step"])

    def _warn_of_missing_roots(self) -> None:
        """Warn of each local root that does not exist. Otherwise users would only see empty
        tables."""
        for store in self._stores:
            top = store.local_path("")
            if top is not None and not os.path.isdir(top):
                warnings.warn(f"{top}: no such folder", UserWarning, stacklevel=3)

    def _warn_of_unknown(
        self, keys: Sequence[str], parts: "Sequence[Part]", runs: Sequence[RecordedRun]
    ) -> None:
        """Warn of keys that no run has recorded."""
        from sweeper.metrics.tables.columns import present

        recorded = {key for part in parts for key in part.columns.odd}
        for part in parts:
            values = part.columns.values
            recorded |= {k for k in keys if k in values and present(values[k]).any()}
        if unknown := [key for key in keys if key not in recorded and key != "step"]:
            # Some keys exist only in rows that were discarded because the next attempt repeated
            # their steps. Do not count these keys.
            recorded_keys = {
                key
                for part in self._tables().metrics(runs)
                for key in part.columns.values
                if part.columns.has(key).any()
            }
            recorded_keys.discard("step")
            import difflib

            for key in unknown:
                similar = difflib.get_close_matches(key, recorded_keys, n=1)
                hint = f"; did you mean {similar[0]!r}?" if similar else ""
                warnings.warn(f"no run has recorded {key!r}{hint}", UserWarning, stacklevel=3)

    def columns(self, runs: "Runs" = None, keys: Sequence[str] | None = None) -> "list[Part]":
        """Return the rows of each run as columns of numbers, without pandas."""
        return self._tables().metrics(self._resolve(runs), keys)

    def follow(self, runs: "Runs" = None) -> "Follower":
        """Return a follower of the rows that these runs record after this call."""
        from sweeper.results.metrics_follower import Follower

        return Follower(self._resolve(runs))

    def rollouts(
        self, runs: "Runs" = None, iteration: int | None = None, keys: Sequence[str] | None = None
    ) -> "pandas.DataFrame":
        """Return one row per trajectory, with the columns `run sweep root name split tags`,
        `metrics.rollout_files.COLUMNS` and the trajectory's metrics. `iteration` is a number (-1 is
        each run's last iteration, -2 the one before it), or None for all. With `keys`, the columns
        after `tags` are only these keys. `ob_len` and `ac_len` count the tokens of all turns."""
        from sweeper.metrics.rollout_files import COLUMNS, LABELS
        from sweeper.metrics.tables.frames import numbers_frame
        from sweeper.sweep.run_record import RUN_KEY

        resolved = self._resolve(runs)
        parts = self._tables().rollouts(resolved, iteration, keys)
        first = list(COLUMNS if keys is None else keys)
        whole = [key for key in COLUMNS if not key.endswith("reward")]
        labels = (*RUN_KEY, *LABELS)
        return numbers_frame(parts, first, whole=whole, common=labels)

    def sql(self, query: str, runs: "Runs" = None) -> "pandas.DataFrame":
        """Return the result of one SELECT over the tables `runs`, `metrics`, `rollouts`,
        `checkpoints`, `items` and `scores`. Each table has the columns of the DataFrame that the
        method with the table's name returns.

        The query has no access to anything else. In `metrics`, NULL means no value, and NaN is a
        recorded value. If a key has both numbers and other values, `<key>.text` has the other
        values. `runs` restricts the runs, as for `metrics()`. Warns of a join that mixes runs of
        several sweeps. Raises `UsageError` for an invalid query.
        """
        return self._ask(query, runs, frame=True)

    def sql_rows(
        self, query: str, runs: "Runs" = None
    ) -> "tuple[list[str], list[tuple[object, ...]]]":
        """Return the result of one SELECT, as column names and rows of plain values."""
        return self._ask(query, runs, frame=False)

    def table(self, name: str, runs: "Runs" = None) -> Any:
        """Return one of the tables that `sql` queries, as an Arrow table."""
        return self._makers("*", self._resolve(runs))[name]()

    def _ask(self, query: str, runs: "Runs", frame: bool) -> Any:
        from sweeper.results.sql import ask
        from sweeper.sweep.run_record import RUN_KEY

        resolved = self._resolve(runs)

        def joined(columns: frozenset[str]) -> None:
            named = [name for name in RUN_KEY if name in columns]
            keys = {tuple(run.key[name] for name in named) for run in resolved}
            if "run" in named and len(keys) < len(resolved):
                self.problems.tell_once(_MIXES)
                if frame:
                    warnings.warn(_MIXES, UserWarning, stacklevel=5)

        return ask(query, self._makers(query, resolved), frame, joined)

    def _makers(self, query: str, runs: Sequence[RecordedRun]) -> dict[str, Callable[[], object]]:
        from sweeper.metrics.tables.frames import plain_table

        def table() -> object:
            rows = [_flat(run.record()) for run in runs]
            save(runs)
            return plain_table(rows, RUN_COLUMNS)

        return {"runs": table, **self._tables().makers(query, runs)}

    def checkpoints(self, runs: "Runs" = None) -> "pandas.DataFrame":
        """Return one row per checkpoint, with the columns `run sweep root attempt name` and then
        the other fields of the checkpoint's record."""
        from sweeper.metrics.tables.frames import rows_frame
        from sweeper.sweep.run_record import RUN_KEY

        return rows_frame(self.checkpoint_rows(runs), (*RUN_KEY, "attempt", "name"))

    def checkpoint_rows(self, runs: "Runs" = None) -> list[dict[str, object]]:
        """Return the rows of `checkpoints` as dicts."""
        resolved = self._resolve(runs)
        return self._tables().checkpoints(resolved)

    def items(self, runs: "Runs" = None) -> "pandas.DataFrame":
        """Return the answers of runs at their last evaluations, one row per sample, with the
        columns `run sweep root task item sample score text prompt answer step cluster error`.
        `item` is an id of the question, or else the question's text. `score` is NaN if the answer
        was not judged."""
        from sweeper.metrics.tables.frames import rows_frame
        from sweeper.results.items import ITEM_COLUMNS

        return rows_frame(self.item_rows(runs), ITEM_COLUMNS)

    def item_rows(self, runs: "Runs" = None) -> "list[ItemRow]":
        """Return the rows of `items` as dicts."""
        return self._tables().items(self._resolve(runs))

    def scores(self, runs: "Runs" = None) -> "pandas.DataFrame":
        """Return the scores of checkpoints on suites, one per row, with the columns `run sweep root
        checkpoint step suite score items errors path time`. Scores come from evaluations in
        tinker-cookbook's EvalStore, and from metrics such as `eval/gsm8k/score`."""
        from sweeper.metrics.tables.frames import rows_frame
        from sweeper.results.scores import SCORE_COLUMNS

        return rows_frame(self._tables().score_rows(self._resolve(runs)), SCORE_COLUMNS)

    def scores_by_run(self, runs: "Runs" = None) -> "list[tuple[RecordedRun, list[Score]]]":
        """Return the scores of each run as objects."""
        return self._tables().scores(self._resolve(runs))


def _sweep_record(sweep: Sweep, marks: "Marks") -> "SweepRecord":
    runs = current(sweep.runs)
    return {
        "sweep": sweep.name,
        "root": sweep.root,
        "created": sweep.plan.created,
        "recipe": sweep.plan.recipe.reference,
        "runs": len(runs),
        "states": dict(Counter(run.state.value for run in runs)),
        "tags": list(marks.tags),
        "starred": marks.starred,
        "archived": marks.archived,
    }


def _flat(record: "RunRecord") -> dict[str, object]:
    fields = {key: value for key, value in record.items() if key not in ("id", "config")}
    row: dict[str, object] = {"run": record["id"], **fields}
    for key, value in record["config"].items():
        row[f"config.{key}" if key in RUN_COLUMNS or key in _OF_STAGES & row.keys() else key] = (
            value
        )
    return row


def save(runs: Iterable[RecordedRun]) -> None:
    """Save what these runs have read to the cache."""
    for index in {id(run.index): run.index for run in runs}.values():
        index.save()
