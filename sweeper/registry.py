"""Everything recorded, from Python: sweeps, runs, metrics, checkpoints, as pandas DataFrames.

    registry = sweeper.Registry("sweeps")
    runs = registry.runs(sweep="sft-*", state="succeeded", where="learning_rate < 1e-3")
    registry.metrics(runs, keys=["test/nll"])
    registry.run("quickstart/lr=1e-4,seed=0").log()

`records()` and `sweep_records()` give the same as plain dicts, and load no pandas.
"""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.records import RecordedRun, Sweep
from sweeper.states import State
from sweeper.store import open_store
from sweeper.sweeps import find_sweeps
from sweeper.where import parse_where, select

if TYPE_CHECKING:
    import pandas

__all__ = ["RUN_COLUMNS", "RecordedRun", "Registry", "Sweep"]

RUN_COLUMNS = (
    *("run", "sweep", "name", "cell", "seed", "state", "attempts", "reason"),
    *("retired", "started", "ended", "wall_s", "root", "metric", "value"),
)
"""The columns of `Registry.runs` that are ours; those of the configurations follow."""

_GLOB = frozenset("*?[")


class Registry:
    """What lies in one or several roots. Nothing is kept between calls: each sees the store as it
    is now. A run is told by its `root`, `sweep` and `run` (the id) together: the same configuration
    in two sweeps has the same id.

    `problems` has a line for each sweep that the last call passed over because it is damaged.
    """

    def __init__(self, *roots: str) -> None:
        if not roots:
            raise UsageError("a registry needs a root: Registry('sweeps')")
        self._stores = [open_store(str(root)) for root in roots]
        self.problems: list[str] = []

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots, absolute."""
        return tuple(store.root for store in self._stores)

    # Sweeps

    def sweep(self, name: str) -> Sweep:
        """The sweep called `name`, of the first root that has it. Raises `NotFound`."""
        missing: NotFound | None = None
        for store in self._stores:
            try:
                return Sweep(store, name)
            except NotFound as error:
                missing = missing or error
        assert missing is not None  # noqa: S101 - there is at least one store
        raise missing

    def _sweeps(self, pattern: str | None) -> list[Sweep]:
        if pattern is not None and not _GLOB.intersection(pattern):
            return [self.sweep(pattern)]
        self.problems = []
        found: list[Sweep] = []
        for store in self._stores:
            for name in find_sweeps(store):
                if pattern is None or fnmatch.fnmatchcase(name, pattern):
                    try:
                        found.append(Sweep(store, name))
                    except (NotFound, StoreError) as error:
                        self.problems.append(str(error))
        return found

    def sweep_records(self, sweep: str | None = None) -> list[dict[str, Any]]:
        """A dict a sweep: `sweep root created recipe runs states`, where `states` counts the runs
        in each state that occurs. `sweep` is a name or a glob."""
        return [
            {
                "sweep": found.name,
                "root": found.root,
                "created": found.document.get("created"),
                "recipe": _reference(found.document.get("recipe")),
                "runs": len(found.runs),
                "states": dict(Counter(run.state.value for run in found.runs)),
            }
            for found in self._sweeps(sweep)
        ]

    def sweeps(self, sweep: str | None = None) -> "pandas.DataFrame":
        """The same as a DataFrame, with a column for each state: its number of runs."""
        import pandas

        records = self.sweep_records(sweep)
        flat: list[dict[str, Any]] = []
        for record in records:
            states: dict[str, int] = record.pop("states")
            flat.append({**record, **{state.value: states.get(state.value, 0) for state in State}})
        columns = ["sweep", "root", "created", "recipe", "runs", *(state.value for state in State)]
        return pandas.DataFrame(flat, columns=columns)

    # Runs

    def _runs(self, sweep: str | None, state: str | Iterable[str] | None) -> list[RecordedRun]:
        wanted = _states(state)
        runs = [run for found in self._sweeps(sweep) for run in found.runs]
        return runs if wanted is None else [run for run in runs if run.state.value in wanted]

    def records(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
        *,
        values: bool = True,
    ) -> list[dict[str, Any]]:
        """A dict a run, in the order of the plans; see `RecordedRun.record`.

        `sweep` is a name or a glob; `state` one state or several; `where` a condition like
        `learning_rate < 1e-3 and seed = 0` (see `sweeper.where`). `values=False` reads no
        metrics. Raises `NotFound` for a name without a sweep, `UsageError` for a condition or a
        state that is none.
        """
        condition = None if where is None else parse_where(where)
        records = [run.record(values=values) for run in self._runs(sweep, state)]
        return records if condition is None else select(condition, records)

    def runs(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
    ) -> "pandas.DataFrame":
        """A row a run: `RUN_COLUMNS`, then one column a configuration key (`config.<key>` where
        it collides with one of ours). `run` is the id, `started` and `ended` are times in UTC,
        `wall_s` is in seconds, `value` what the run is judged by under the sweep's `metric`.
        Arguments and errors as for `records`."""
        import pandas

        columns: dict[str, None] = dict.fromkeys(RUN_COLUMNS)
        rows: list[dict[str, Any]] = []
        for record in self.records(sweep, state, where):
            config: dict[str, Any] = record.pop("config")
            row = {"run": record.pop("id"), **record}
            for key, value in config.items():
                row[f"config.{key}" if key in RUN_COLUMNS else key] = value
            columns.update(dict.fromkeys(row))
            rows.append(row)
        frame = pandas.DataFrame(rows, columns=list(columns))
        for column in ("started", "ended"):
            frame[column] = pandas.to_datetime(frame[column], utc=True, errors="coerce")
        frame["seed"] = frame["seed"].astype("Int64")
        frame["value"] = frame["value"].astype("float64")
        return frame

    def run(self, reference: str) -> RecordedRun:
        """The run that `reference` names: `sweep/name`, `sweep/` and the beginning of a name, an
        id, or the beginning of an id (six digits or more).

        An exact name or id goes before a beginning. Raises `NotFound`, or `UsageError` when more
        than one run fits.
        """
        name, slash, rest = reference.partition("/")
        if slash and any(name in find_sweeps(store) for store in self._stores):
            runs, wanted = self._runs(name, None), rest
        else:
            runs, wanted = self._runs(None, None), reference
        by_name = [run for run in runs if run.name.startswith(wanted)] if slash else []
        by_id = [run for run in runs if len(wanted) >= 6 and run.id.startswith(wanted)]
        exact = [run for run in runs if wanted in (run.name, run.id)]
        fitting = exact or by_name or by_id
        if not fitting:
            raise NotFound(f"no run {reference!r} in {', '.join(self.roots)}")
        if len(fitting) > 1:
            names = ", ".join(f"{run.sweep}/{run.name}" for run in fitting[:4])
            more = " and more" if len(fitting) > 4 else ""
            raise UsageError(f"{reference!r} fits {len(fitting)} runs ({names}{more}); write more")
        return fitting[0]

    def _resolve(self, runs: Any) -> list[RecordedRun]:
        """What callers may pass as `runs`: None for all, a DataFrame of `runs()`, a reference, a
        handle, a record, or several of these."""
        if runs is None:
            return self._runs(None, None)
        if isinstance(runs, str | RecordedRun):
            runs = [runs]
        elif hasattr(runs, "to_dict") and hasattr(runs, "columns"):
            runs = runs[["run", "sweep", "root"]].to_dict("records")
        cache: dict[tuple[str, str], dict[str, RecordedRun]] = {}
        return [self._resolve_one(item, cache) for item in runs]

    def _resolve_one(
        self, item: Any, cache: dict[tuple[str, str], dict[str, RecordedRun]]
    ) -> RecordedRun:
        if isinstance(item, RecordedRun):
            return item
        if isinstance(item, str):
            return self.run(item)
        place = (item["root"], item["sweep"])
        if place not in cache:
            store = next((store for store in self._stores if store.root == place[0]), None)
            if store is None:
                raise UsageError(f"{place[0]} is not a root of this registry")
            cache[place] = {run.id: run for run in Sweep(store, place[1]).runs}
        identity = item.get("run") or item["id"]
        if identity not in cache[place]:
            raise NotFound(f"no run {identity!r} in the sweep {place[1]!r}")
        return cache[place][identity]

    # What runs recorded

    def metrics(self, runs: Any = None, keys: Sequence[str] | None = None) -> "pandas.DataFrame":
        """`run sweep step`, then one column a key, for every row of every run's merged history.

        `runs` is None for all, a DataFrame of `runs()`, a reference (see `run`), or several.
        With `keys` only those columns, in that order, and only rows that have one of them. A key
        called like one of ours becomes `metric.<key>`. Rows without a step have NaN there.
        """
        import pandas

        columns: dict[str, None] = dict.fromkeys(("run", "sweep", "step"))
        if keys is not None:
            columns.update(dict.fromkeys(_metric_column(key) for key in keys))
        rows: list[dict[str, Any]] = []
        for run in self._resolve(runs):
            for recorded in run.history.rows:
                names = recorded if keys is None else [key for key in keys if key in recorded]
                if not names:
                    continue
                row = {"run": run.id, "sweep": run.sweep, "step": recorded["step"]}
                row.update((_metric_column(key), recorded[key]) for key in names if key != "step")
                if keys is None:
                    columns.update(dict.fromkeys(row))
                rows.append(row)
        return pandas.DataFrame(rows, columns=list(columns))

    def checkpoints(self, runs: Any = None) -> "pandas.DataFrame":
        """`run sweep attempt name`, then what else the records hold: a row a checkpoint."""
        import pandas

        columns: dict[str, None] = dict.fromkeys(("run", "sweep", "attempt", "name"))
        rows: list[dict[str, Any]] = []
        for run in self._resolve(runs):
            for recorded in run.checkpoint_records():
                row = {**recorded, "run": run.id, "sweep": run.sweep}
                columns.update(dict.fromkeys(row))
                rows.append(row)
        return pandas.DataFrame(rows, columns=list(columns))


def _reference(recipe: Any) -> str | None:
    return recipe.get("reference") if recipe else None


def _metric_column(key: str) -> str:
    return f"metric.{key}" if key in ("run", "sweep") else key


def _states(state: str | Iterable[str] | None) -> set[str] | None:
    if state is None:
        return None
    wanted = {str(one) for one in ([state] if isinstance(state, str) else state)}
    unknown = wanted - {known.value for known in State}
    if unknown:
        choices = ", ".join(known.value for known in State)
        raise UsageError(f"no state {sorted(unknown)[0]!r}; there is {choices}")
    return wanted
