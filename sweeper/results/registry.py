"""Everything recorded, from Python: sweeps, runs, metrics, rollouts, checkpoints, as pandas
DataFrames or by SQL.

    registry = sweeper.Registry("sweeps")
    runs = registry.runs(sweep="sft-*", state="succeeded", where="learning_rate < 1e-3")
    registry.metrics(runs, keys=["test/nll"])
    registry.rollouts(runs, iteration=-1)
    registry.sql('select lora_rank, min("test/nll") from runs join metrics using (run) group by 1')
    registry.run("quickstart/lr=1e-4,seed=0").log()

`records()` and `sweep_records()` give the same as plain dicts, and load no pandas.
"""

import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.metrics import Point
from sweeper.model.html import table, title
from sweeper.model.mark import NO_MARKS, Marks
from sweeper.model.run_record import ItemRow, RunRecord, SweepRecord
from sweeper.model.states import State
from sweeper.results.folders import FolderRun, folder_runs
from sweeper.results.marks import in_use, marked
from sweeper.results.problems import Problems
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import asks_for_dropped, check_states, current, named, pick
from sweeper.results.sweeps import Sweep
from sweeper.results.tables.cache_dir import Folder
from sweeper.storage.files import DEFAULT_ROOT, Store, open_store
from sweeper.storage.sweeps import find_sweeps

if TYPE_CHECKING:
    import pandas

    from sweeper.results.metrics_follower import Follower
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.tables.frames import Part

    One: TypeAlias = str | RecordedRun | Mapping[str, object]
    Runs: TypeAlias = One | Iterable[One] | pandas.DataFrame | None
    """What callers may pass for the runs that they mean; see `Registry.metrics`."""

__all__ = ["RUN_COLUMNS", "RecordedRun", "Registry", "Sweep", "save"]

RUN_COLUMNS = (
    *("run", "sweep", "name", "cell", "seed", "state", "attempts", "reason"),
    *("retired", "started", "ended", "wall_s", "root", "metric", "value"),
)
"""The columns of `Registry.runs` that are ours; those of the configurations follow."""
_OF_STAGES = frozenset({"stage", "parents"})
"""Further ones of runs of a sweep with stages."""

T = TypeVar("T")
_GLOB = frozenset("*?[")


class Registry:
    """What lies in one or several roots: sweeps, and folders at any depth that hold a
    `metrics.jsonl` but belong to none (see `folders.FolderRun`). Each call sees the store as it is
    now; the cache (`sweeper.results.tables`) only saves reading again what has not changed, and
    `cache=False` does without. A run is told by its `root`, `sweep` and `run` (the id) together:
    the same configuration in two sweeps has the same id.

    `problems` has a line for each sweep, run or file that the last call passed over because it is
    damaged or cannot be read (`problems.unread` counts them), and for each run with lines that it
    could not read. What is asked of a single run raises `StoreError` instead.
    """

    def __init__(self, *roots: str, cache: bool | str = True) -> None:
        """`cache`: whether to use one, or its folder instead of the usual."""
        if not roots:
            raise UsageError("a registry needs a root: Registry('sweeps')")
        stores = [open_store(str(root)) for root in roots]
        self._stores = [*{store.root: store for store in stores}.values()]  # links may lead to one
        self._cache = cache
        self._memories = {store.root: self._memory(store) for store in self._stores}
        self.problems = Problems()

    def _repr_html_(self) -> str:
        """In a notebook: its sweeps."""
        rows = [
            (
                found["sweep"],
                found["recipe"],
                found["runs"],
                ", ".join(f"{count} {state}" for state, count in found["states"].items()),
                found["created"],
            )
            for found in self.sweep_records()
        ]
        columns = ("sweep", "recipe", "runs", "states", "created")
        return title("Registry", ", ".join(self.roots)) + table(columns, rows)

    def _memory(self, store: Store) -> Folder | None:
        if self._cache is False:
            return None
        return Folder(store.root, self._cache if isinstance(self._cache, str) else None)

    def _told(self, error: StoreError | NotFound) -> None:
        self.problems.unreadable(error)

    def _tables(self) -> "Tabulator":
        from sweeper.results.metrics_reader import Tabulator

        return Tabulator(self._memories, self.problems)

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
                return Sweep(store, name, self._memories[store.root], self._told)
            except NotFound as error:
                missing = missing or error
        assert missing is not None  # noqa: S101 - there is at least one store
        raise missing

    def _sweeps(self, pattern: str | None) -> list[Sweep]:
        if pattern is not None and not _GLOB.intersection(pattern):
            return [self.sweep(pattern)]
        found: list[Sweep] = []
        for store, name in self._of_each_root(find_sweeps):
            if pattern is None or fnmatch.fnmatchcase(name, pattern):
                try:
                    found.append(Sweep(store, name, self._memories[store.root], self._told))
                except (NotFound, StoreError) as error:
                    self._told(error)
        return found

    def _of_each_root(self, find: Callable[[Store], Iterable[T]]) -> Iterator[tuple[Store, T]]:
        """Yield what is found in each root. If one of several cannot be reached that is told; if
        there is only one it is an error."""
        for store in self._stores:
            if not self._is_there(store):
                continue
            try:
                found = list(find(store))
            except StoreError as error:
                if len(self._stores) == 1:
                    raise
                self._told(error)
                continue
            yield from ((store, one) for one in found)

    def _is_there(self, store: Store) -> bool:
        """Whether a root, if it is a folder, is there; tells where it is not: its disk may be
        away."""
        top = store.local_path("")
        if top is None or os.path.isdir(top):
            return True
        if top == open_store(DEFAULT_ROOT).root:
            self.problems.tell_once(f"{top}: nothing has been launched from here yet")
        else:
            self._told(NotFound(f"{top}: is not there"))
        return False

    def _folder_runs(self, store: Store) -> list[FolderRun]:
        return folder_runs(store, self._memories[store.root], self._told)

    def sweep_names(self) -> list[str]:
        """The names of all sweeps, also of those that cannot be read."""
        return [name for store in self._stores for name in find_sweeps(store)]

    def has_sweep(self, name: str) -> bool:
        """Whether there is a sweep of exactly this name."""
        if not name or _GLOB.intersection(name):
            return False
        return any(store.exists(f"{name}/sweep.json") for store in self._stores)

    def sweep_records(self, sweep: str | None = None) -> list[SweepRecord]:
        """A dict a sweep: `sweep root created recipe runs states`, where `states` counts the runs
        in each state that occurs, and `tags`, `starred`, `archived`. `sweep` is a name or a glob;
        without one archived sweeps are left out."""
        self.problems = Problems()
        found = ((one, self._marks(one)) for one in self._sweeps(sweep))
        return [
            _sweep_record(one, marks)
            for one, marks in found
            if sweep is not None or not marks.archived
        ]

    def _marks(self, sweep: Sweep) -> Marks:
        try:
            return marked(sweep.store, sweep.name, self._told).sweep
        except StoreError as error:
            self._told(error)
            return NO_MARKS

    def sweeps(self, sweep: str | None = None) -> "pandas.DataFrame":
        """The sweeps as a DataFrame, with a column for each state: its number of runs."""
        import pandas

        records = self.sweep_records(sweep)
        flat: list[dict[str, object]] = []
        for record in records:
            known: dict[str, object] = {k: v for k, v in record.items() if k != "states"}
            counts = {state.value: record["states"].get(state.value, 0) for state in State}
            flat.append(known | counts)
        columns = ["sweep", "root", "created", "recipe", "runs", *(state.value for state in State)]
        return pandas.DataFrame(flat, columns=columns)

    # Runs

    def handles(
        self, sweep: str | None = None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        """The runs as objects: of sweeps by name or glob, and in folders; without those that the
        grid no longer has. Errors as `records`."""
        return current(self.all_handles(sweep, state))

    def all_handles(
        self, sweep: str | None = None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        """The runs as objects, with those that the grid no longer has."""
        self.problems = Problems()
        return self._handles(sweep, state)

    def choose(
        self,
        selectors: Sequence[str] = (),
        states: Sequence[str] | None = None,
        where: str | None = None,
        *,
        dropped: bool = False,
        archived: bool = False,
    ) -> list[RecordedRun]:
        """The runs that fit one of the selectors (without one all but those of archived sweeps; see
        `results.selectors`), in one of the states, and for which the condition holds. Raises
        `NotFound` for a selector that means nothing. `dropped`: also those that the grid has no
        more, `archived`: those of archived sweeps."""
        sweeps = {selector.partition("/")[0] for selector in selectors}
        if sweeps and all(self.has_sweep(name) for name in sweeps):
            runs = self.handles_of(sorted(sweeps))
        else:
            runs = self.all_handles()
        fitting = [selector for selector in selectors if named(runs, selector)]
        for selector in selectors:
            unread = self.problems.unread and self.has_sweep(selector.partition("/")[0])
            if selector not in fitting and not unread:
                raise NotFound(f"no run {selector!r} in {', '.join(self.roots)}")
        if selectors and not fitting:
            return []
        if not (selectors or archived):
            runs = in_use(runs)
        return pick(runs, fitting, states, where, dropped=dropped)

    def handles_of(self, sweeps: Sequence[str]) -> list[RecordedRun]:
        """All runs of several sweeps. One alone that cannot be read is an error, among others it is
        told."""
        if len(sweeps) == 1:
            return self.all_handles(sweeps[0])
        self.problems = Problems()
        found: list[RecordedRun] = []
        for sweep in sweeps:
            try:
                found += self._handles(sweep)
            except StoreError as error:
                self._told(error)
        return found

    def _handles(
        self, sweep: str | None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        wanted = _states(state)
        bare: list[RecordedRun] = []
        if sweep is None or not self.has_sweep(sweep):
            bare += (
                run
                for _, run in self._of_each_root(self._folder_runs)
                if sweep is None or fnmatch.fnmatchcase(run.sweep, sweep)
            )
        try:
            runs: list[RecordedRun] = [run for s in self._sweeps(sweep) for run in s.runs]
        except NotFound:
            if not bare:
                raise
            runs = []
        found = runs + bare
        tables: list[Tabulator] = []

        def value(run: RecordedRun, key: str, goal: str, at: str) -> Point | None:
            from sweeper.results.metrics_reader import Tabulator

            tables[:] = tables or [Tabulator(self._memories, Problems())]
            return tables[0].value(run, key, goal, at)

        for run in found:
            run.quick = value
        return found if wanted is None else [run for run in found if run.state.value in wanted]

    def records(
        self,
        sweep: str | None = None,
        state: str | Iterable[str] | None = None,
        where: str | None = None,
        *,
        values: bool = True,
    ) -> list[RunRecord]:
        """A dict a run, in the order of the plans; see `RecordedRun.record`.

        `sweep` is a name or a glob; `state` one state or several; `where` a condition like
        `learning_rate < 1e-3 and seed = 0` (see `results.where`). Runs that the grid has no more
        are left out unless `where` asks for `retired`, those of archived sweeps unless `sweep` is
        given. `values=False` reads no metrics. Raises
        `NotFound` for a name without a sweep, `UsageError` for a condition or a state that is none.
        """
        from sweeper.results.where import parse_where, select  # not every command has a condition

        condition = None if where is None else parse_where(where)
        runs = (self.all_handles if asks_for_dropped(where) else self.handles)(sweep, state)
        if sweep is None:
            runs = in_use(runs)
        records = [run.record(values=values) for run in runs]
        save(runs)
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

        from sweeper.results.tables.frames import rows_frame

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
        """The same as dicts."""
        return [_flat(record) for record in self.records(sweep, state, where)]

    def run(self, reference: str) -> RecordedRun:
        """The one run that `reference` names, a selector of `results.selectors`: `sweep/name`, the
        beginning of one, a value, an id. Raises `NotFound`, or `UsageError` when more fit."""
        sweep, slash, _ = reference.partition("/")
        runs = self.all_handles(sweep if slash and self.has_sweep(sweep) else None)
        fitting = named(runs, reference)
        if not fitting:
            raise NotFound(f"no run {reference!r} in {', '.join(self.roots)}")
        if len(fitting) > 1:
            shown = ", ".join(f"{run.sweep}/{run.name}" for run in fitting[:4])
            more = " and more" if len(fitting) > 4 else ""
            raise UsageError(f"{reference!r} fits {len(fitting)} runs ({shown}{more}); write more")
        return fitting[0]

    def _resolve(self, runs: "Runs") -> list[RecordedRun]:
        """Resolve what callers may pass as `runs`: None for all but those of archived
        sweeps, a DataFrame of `runs()`, a reference, a handle, a record, or several of these."""
        if runs is None:
            return in_use(self.handles(None))
        chosen = [runs] if isinstance(runs, str | RecordedRun) else cast("Iterable[One]", runs)
        if hasattr(runs, "to_dict") and hasattr(runs, "columns"):
            frame = cast("pandas.DataFrame", runs)
            chosen = cast("Iterable[One]", frame[["run", "sweep", "root"]].to_dict("records"))
        cache: dict[tuple[str, str], dict[str, RecordedRun]] = {}
        return [self._resolve_one(item, cache) for item in chosen]

    def _resolve_one(
        self, item: "One", cache: dict[tuple[str, str], dict[str, RecordedRun]]
    ) -> RecordedRun:
        if isinstance(item, RecordedRun):
            return item
        if isinstance(item, str):
            return self.run(item)
        place = (str(item["root"]), str(item["sweep"]))
        if place not in cache:
            cache[place] = {run.id: run for run in self._in(*place)}
        identity = str(item.get("run") or item["id"])
        if identity not in cache[place]:
            raise NotFound(f"no run {identity!r} in the sweep {place[1]!r}")
        return cache[place][identity]

    def _in(self, root: str, sweep: str) -> Sequence[RecordedRun]:
        """The runs of a sweep, or those in folders right below a folder."""
        store = next((store for store in self._stores if store.root == root), None)
        if store is None:
            raise UsageError(f"{root} is not a root of this registry")
        memory = self._memories[root]
        if store.exists(f"{sweep}/sweep.json"):
            return Sweep(store, sweep, memory, self._told).runs
        return [run for run in self._folder_runs(store) if run.sweep == sweep]

    # What runs recorded

    def metrics(self, runs: "Runs" = None, keys: Sequence[str] | None = None) -> "pandas.DataFrame":
        """`run sweep step`, then one column a key, for every row of every run's merged history.

        `runs` is None for all, a DataFrame of `runs()`, a reference (see `run`), or several.
        With `keys` only those columns, in that order, and only rows that have one of them. A key
        called like one of ours becomes `metric.<key>`. Numbers are float64, steps int64 if all are
        integers; rows without a step have NaN there. A key with anything but numbers (texts,
        booleans, integers beyond 2**53) is a column of objects.
        """
        from sweeper.results.metrics_reader import metric_column
        from sweeper.results.tables.frames import numbers_frame

        resolved = self._resolve(runs)
        parts = self._tables().metrics(resolved, keys)
        first = ["step", *(key for key in keys or () if key != "step")]
        return numbers_frame(parts, first, metric_column, whole=["step"])

    def columns(self, runs: "Runs" = None, keys: Sequence[str] | None = None) -> "list[Part]":
        """The metrics without pandas: of each run the rows, as columns of numbers."""
        return self._tables().metrics(self._resolve(runs), keys)

    def follow(self, runs: "Runs" = None) -> "Follower":
        """What these runs record from now on; see `Follower.poll`."""
        from sweeper.results.metrics_follower import Follower

        return Follower(self._resolve(runs))

    def rollouts(
        self, runs: "Runs" = None, iteration: int | None = None, keys: Sequence[str] | None = None
    ) -> "pandas.DataFrame":
        """A row a trajectory: `run sweep name split tags`, then `tables.rollouts.COLUMNS`, then its
        metrics. `iteration` -1 is each run's last, -2 the one before; None all. With `keys` only
        those columns of numbers. Tokens are counted over all turns, rewards are as recorded."""
        from sweeper.results.tables.frames import numbers_frame
        from sweeper.results.tables.rollouts import COLUMNS, LABELS

        resolved = self._resolve(runs)
        parts = self._tables().rollouts(resolved, iteration, keys)
        first = list(COLUMNS if keys is None else keys)
        whole = [key for key in COLUMNS if not key.endswith("reward")]
        labels = ("run", "sweep", *LABELS)
        return numbers_frame(parts, first, whole=whole, common=labels)

    def sql(self, query: str, runs: "Runs" = None) -> "pandas.DataFrame":
        """The answer to one SELECT over the tables `runs`, `metrics`, `rollouts`, `checkpoints` and
        `items`, which have the columns of the methods of that name. It can read nothing else and
        change nothing. In `metrics` NULL is no value and NaN a recorded one; what is no number
        stands in `<key>.text` if the key has numbers too. `runs`: only these, as for `metrics`.
        Raises `UsageError` for a query that is none."""
        return self._ask(query, runs, frame=True)

    def sql_rows(
        self, query: str, runs: "Runs" = None
    ) -> "tuple[list[str], list[tuple[object, ...]]]":
        """The answer to one SELECT as names of columns and rows of plain values."""
        return self._ask(query, runs, frame=False)

    def table(self, name: str, runs: "Runs" = None) -> Any:
        """One of the tables of `sql`, whole, as an Arrow table."""
        return self._makers("*", self._resolve(runs))[name]()

    def _ask(self, query: str, runs: "Runs", frame: bool) -> Any:
        from sweeper.results.tables.sql import ask

        return ask(query, self._makers(query, self._resolve(runs)), frame)

    def _makers(self, query: str, runs: Sequence[RecordedRun]) -> dict[str, Callable[[], object]]:
        from sweeper.results.tables.frames import plain_table

        def table() -> object:
            rows = [_flat(run.record()) for run in runs]
            save(runs)
            return plain_table(rows, RUN_COLUMNS)

        return {"runs": table, **self._tables().makers(query, runs)}

    def checkpoints(self, runs: "Runs" = None) -> "pandas.DataFrame":
        """`run sweep attempt name`, then what else the records hold: a row a checkpoint."""
        from sweeper.results.tables.frames import rows_frame

        return rows_frame(self.checkpoint_rows(runs), ("run", "sweep", "attempt", "name"))

    def checkpoint_rows(self, runs: "Runs" = None) -> list[dict[str, object]]:
        """The same as dicts."""
        resolved = self._resolve(runs)
        return self._tables().checkpoints(resolved)

    def items(self, runs: "Runs" = None) -> "pandas.DataFrame":
        """What runs answered at their last evaluations, a row a sample: `run sweep task item sample
        score text prompt answer step cluster error`. `item` is what the evaluation calls a question
        (a hash of its content, or its text); `score` is NaN where nothing has judged."""
        from sweeper.results.items import ITEM_COLUMNS
        from sweeper.results.tables.frames import rows_frame

        return rows_frame(self.item_rows(runs), ITEM_COLUMNS)

    def item_rows(self, runs: "Runs" = None) -> list[ItemRow]:
        """The same as dicts."""
        return self._tables().items(self._resolve(runs))


def _sweep_record(sweep: Sweep, marks: Marks) -> SweepRecord:
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


def _flat(record: RunRecord) -> dict[str, object]:
    """A record with a column for each key of the configuration."""
    own = {key: value for key, value in record.items() if key not in ("id", "config")}
    row: dict[str, object] = {"run": record["id"], **own}
    for key, value in record["config"].items():
        row[f"config.{key}" if key in RUN_COLUMNS or key in _OF_STAGES & row.keys() else key] = (
            value
        )
    return row


def save(runs: Iterable[RecordedRun]) -> None:
    """Keep what was found out about these runs, so that it need not be read again."""
    for index in {id(run.index): run.index for run in runs}.values():
        index.save()


def _states(state: str | Iterable[str] | None) -> set[str] | None:
    if state is None:
        return None
    wanted = {str(one) for one in ([state] if isinstance(state, str) else state)}
    check_states(sorted(wanted))
    return wanted
