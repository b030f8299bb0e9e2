"""Finds the sweeps and runs in one or several roots, and selects the runs that callers name."""

import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.metrics.cache_folder import Folder
from sweeper.results.problems import Problems
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import check_states, current, named, pick, split_root
from sweeper.results.sweeps import Sweep
from sweeper.store.base import Store
from sweeper.store.opening import DEFAULT_ROOT, open_store
from sweeper.sweep.folder import SweepFolder, find_sweeps

if TYPE_CHECKING:
    import pandas

    from sweeper.metrics.objective import Judged
    from sweeper.results.folders import FolderRun
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.sweep.marks import Marks

    One: TypeAlias = str | RecordedRun | Mapping[str, object]
    Runs: TypeAlias = One | Iterable[One] | pandas.DataFrame | None
    """How callers may name runs; see `Registry.metrics`."""

T = TypeVar("T")
_GLOB = frozenset("*?[")


class Catalog:
    """The contents of one or several roots: sweeps and `folders.FolderRun`s, which are folders of
    results outside sweeps. Each call reads the stores again. Only `root`, `sweep` and `run` (the
    id) together identify a run, since the same configuration has the same id in each sweep.

    `problems` lists what the last call could not read: a line for each skipped sweep, run or file
    (counted in `problems.unread`), and for each run with unreadable lines. Queries about a single
    run raise `StoreError` instead.
    """

    def __init__(self, *roots: str, cache: bool | str = True, snapshot: bool = False) -> None:
        """`cache` is the folder of a cache, True for the default folder, or False for no cache.
        With `snapshot`, each sweep of a remote store is read only once, through a process that all
        commands and workers on this machine share."""
        if not roots:
            raise UsageError("a registry needs a root: Registry('sweeps')")
        stores = [_open(str(root), shared=snapshot) for root in roots]
        # Several roots may be links to the same folder.
        self._stores = [*{store.root: store for store in stores}.values()]
        self._cache = cache
        self._memories = {store.root: self._memory(store) for store in self._stores}
        if snapshot:
            self._stores = [self._snapshot(store) for store in self._stores]
        self.problems = Problems()

    def _memory(self, store: Store) -> Folder | None:
        if self._cache is False:
            return None
        return Folder(store.root, self._cache if isinstance(self._cache, str) else None)

    def _snapshot(self, store: Store) -> Store:
        if not store.is_remote:
            return store
        from sweeper.metrics.cached_contents import Contents
        from sweeper.store.base import FarStore
        from sweeper.store.snapshot import Snapshot

        memory = self._memories[store.root]
        contents = None if memory is None else Contents(memory)
        return Snapshot(store, contents) if isinstance(store, FarStore) else store

    def _report(self, error: StoreError | NotFound) -> None:
        self.problems.unreadable(error)

    def _warn(self, line: str) -> None:
        self.problems.tell_once(line)

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots: absolute paths, or addresses of remote stores."""
        return tuple(store.root for store in self._stores)

    def split(self, reference: str) -> tuple[str, str]:
        """Split a reference into its sweep and the rest. If the reference begins with a root, the
        sweep is returned with this root."""
        root, rest = split_root(reference, self.roots)
        sweep, _, rest = rest.partition("/")
        return (sweep if root is None else f"{root.rstrip('/')}/{sweep}"), rest

    def _placed(self, name: str) -> tuple[list[Store], str]:
        """Return the stores in which to look for a name, and the name without its root. These are
        the store of the root that the name begins with, or else all stores."""
        root, rest = split_root(name, self.roots)
        return [store for store in self._stores if root in (None, store.root)], rest

    def sweep(self, name: str) -> Sweep:
        """Return the sweep called `name`. The name may begin with the sweep's root. Raises
        `NotFound`, and `UsageError` if several roots have such a sweep."""
        sweeps = self._called(name)
        if len(sweeps) > 1:
            places = ", ".join(sweep.path for sweep in sweeps)
            raise UsageError(
                f"several roots have a sweep {name!r}: give the folder, one of {places}"
            )
        return sweeps[0]

    def _called(self, name: str) -> list[Sweep]:
        """Return the sweeps called `name`, at most one per root. Raises `NotFound` if no root has
        such a sweep."""
        stores, name = self._placed(name)
        sweeps: list[Sweep] = []
        missing: list[NotFound] = []
        for store in stores:
            try:
                sweeps.append(self._read(store, name))
            except NotFound as error:
                missing.append(error)
        if not sweeps:
            raise missing[0]
        return sweeps

    def _sweeps(self, pattern: str | None) -> list[Sweep]:
        stores, below = (None, None) if pattern is None else self._placed(pattern)
        if pattern is not None and below is not None and not _GLOB.intersection(below):
            return self._called(pattern)
        sweeps: list[Sweep] = []
        every = self._of_each_root(find_sweeps, stores)
        pairs = [pair for pair in every if below is None or fnmatch.fnmatchcase(pair[1], below)]
        for store in {id(store): store for store, _ in pairs}.values():
            self._expect(store, [name for other, name in pairs if other is store])
        for store, name in pairs:
            try:
                sweeps.append(self._read(store, name))
            except (NotFound, StoreError) as error:
                self._report(error)
        return sweeps

    def _expect(self, store: Store, names: Sequence[str]) -> None:
        if store.is_remote:
            from sweeper.store.snapshot import Snapshot

            if isinstance(store, Snapshot):
                store.expect(names)

    def _read(self, store: Store, name: str) -> Sweep:
        return Sweep(SweepFolder(store, name), self._memories[store.root], self._report)

    def _of_each_root(
        self, find: Callable[[Store], Iterable[T]], stores: Sequence[Store] | None = None
    ) -> Iterator[tuple[Store, T]]:
        """Call `find` with each of `stores` (None: the stores of all roots), and yield each
        returned item with its store. Missing roots are added to `problems`. If a store is
        unreachable, raise `StoreError`; with several roots, add the error to `problems` instead."""
        for store in self._stores if stores is None else stores:
            if not self._is_there(store):
                continue
            try:
                items = list(find(store))
            except StoreError as error:
                if len(self._stores) == 1:
                    raise
                self._report(error)
                continue
            yield from ((store, item) for item in items)

    def _is_there(self, store: Store) -> bool:
        """Return whether a root exists; a remote root is assumed to exist. Add a missing root to
        `problems`."""
        top = store.local_path("")
        if top is None or os.path.isdir(top):
            return True
        if top == open_store(DEFAULT_ROOT).root:
            self.problems.tell_once(
                f"{top} does not exist: nothing has been launched from the current folder yet"
            )
        else:
            self._report(NotFound(f"{top}: does not exist"))
        return False

    def _folder_runs(self, store: Store) -> "list[FolderRun]":
        # Imported late: only runs outside sweeps need it.
        from sweeper.results.folders import folder_runs

        return folder_runs(store, self._memories[store.root], self._report)

    def sweeps_in_use(self) -> list[Sweep]:
        """Return the sweeps that are not archived."""
        self.problems = Problems()
        return [sweep for sweep in self._sweeps(None) if not self._marks(sweep).archived]

    def _marks(self, sweep: Sweep) -> "Marks":
        # Imported late: most questions are about one sweep.
        from sweeper.results.marks import marked
        from sweeper.sweep.marks import NO_MARKS

        try:
            return marked(sweep.folder, self._report).sweep
        except StoreError as error:
            self._report(error)
            return NO_MARKS

    def sweep_names(self) -> list[str]:
        """Return the names of all sweeps, including unreadable ones."""
        return [name for store in self._stores for name in find_sweeps(store)]

    def sweep_folders(self) -> list[SweepFolder]:
        """Return the folders of all sweeps, including unreadable ones."""
        return [SweepFolder(store, name) for store in self._stores for name in find_sweeps(store)]

    def has_sweep(self, name: str) -> bool:
        """Return whether there is a sweep with exactly this name."""
        stores, name = self._placed(name)
        if not name or _GLOB.intersection(name):
            return False
        return any(store.exists(f"{name}/sweep.json") for store in stores)

    def handles(
        self, sweep: str | None = None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        """Return the runs as objects, without retired runs that have ended. `sweep` is a name or
        glob of sweeps, or of folders that contain runs outside sweeps. Raises the errors of
        `Registry.records`."""
        return current(self.all_handles(sweep, state))

    def all_handles(
        self, sweep: str | None = None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        """Return the runs as objects, including retired ones."""
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
        """Return the runs that `selectors.pick`, given the same arguments, selects from all roots.
        Without selectors, runs of archived sweeps are included only if `archived` is set. Raises
        `NotFound` for a selector without a match, but ignores the selector if its sweep exists and
        files could not be read."""
        sweeps = {self.split(selector)[0] for selector in selectors}
        if sweeps and all(self.has_sweep(name) for name in sweeps):
            runs = self.handles_of(sorted(sweeps))
        else:
            runs = self.all_handles()
        fitting = [selector for selector in selectors if named(runs, selector)]
        for selector in selectors:
            unread = self.problems.unread and self.has_sweep(self.split(selector)[0])
            if selector not in fitting and not unread:
                raise NotFound(f"no run {selector!r} in {', '.join(self.roots)}")
        if selectors and not fitting:
            return []
        if not (selectors or archived):
            runs = without_archived(runs)
        return pick(runs, fitting, states, where, dropped=dropped)

    def handles_of(self, sweeps: Sequence[str]) -> list[RecordedRun]:
        """Return all runs of several sweeps. Unreadable sweeps are added to `problems`. If `sweeps`
        has only one name, the error is raised instead."""
        if len(sweeps) == 1:
            return self.all_handles(sweeps[0])
        self.problems = Problems()
        runs: list[RecordedRun] = []
        for sweep in sweeps:
            try:
                runs += self._handles(sweep)
            except StoreError as error:
                self._report(error)
        return runs

    def _handles(
        self, sweep: str | None, state: str | Iterable[str] | None = None
    ) -> list[RecordedRun]:
        wanted = _states(state)
        bare: list[RecordedRun] = []
        if sweep is None or not self.has_sweep(sweep):
            stores, below = (None, "*") if sweep is None else self._placed(sweep)
            bare += (
                run
                for _, run in self._of_each_root(self._folder_runs, stores)
                if fnmatch.fnmatchcase(run.sweep, below)
            )
        try:
            runs: list[RecordedRun] = [run for s in self._sweeps(sweep) for run in s.runs]
        except NotFound:
            if not bare:
                raise
            runs = []
        selected = runs + bare
        tables: list[Tabulator] = []

        def value(run: RecordedRun, key: str, goal: str, at: str) -> "Judged | None":
            from sweeper.results.metrics_reader import Tabulator

            tables[:] = tables or [Tabulator(self._memories, Problems())]
            return tables[0].value(run, key, goal, at)

        for run in selected:
            run.quick, run.caution = value, self._warn
        return (
            selected if wanted is None else [run for run in selected if run.state.value in wanted]
        )

    def run(self, reference: str) -> RecordedRun:
        """Return the run that `reference` selects (see `results.selectors`), such as `sweep/name`,
        values (`lr=3e-2,seed=0`) or an id. Raises `NotFound`, or `UsageError` if several runs
        match."""
        sweep, rest = self.split(reference)
        runs = self.all_handles(sweep if rest and self.has_sweep(sweep) else None)
        fitting = named(runs, reference)
        if not fitting:
            raise NotFound(f"no run {reference!r} in {', '.join(self.roots)}")
        if len(fitting) > 1:
            shown = ", ".join(f"{run.sweep}/{run.name}" for run in fitting[:4])
            if len({run.root for run in fitting}) > 1:
                shown = ", ".join(f"{run.root}/{run.sweep}/{run.name}" for run in fitting[:4])
            more = " and more" if len(fitting) > 4 else ""
            raise UsageError(
                f"{reference!r} matches {len(fitting)} runs ({shown}{more}): name one of them"
            )
        return fitting[0]

    def _resolve(self, runs: "Runs") -> list[RecordedRun]:
        """Return the runs that a `runs` argument means: a DataFrame of `runs()`, or one or several
        references, handles and records. None means all runs except those of archived sweeps."""
        if runs is None:
            return without_archived(self.handles(None))
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
        """Return the runs of a sweep, or of a folder that contains runs outside sweeps."""
        store = next((store for store in self._stores if store.root == root), None)
        if store is None:
            raise UsageError(f"{root} is not a root of this registry")
        memory = self._memories[root]
        if store.exists(f"{sweep}/sweep.json"):
            return Sweep(SweepFolder(store, sweep), memory, self._report).runs
        return [run for run in self._folder_runs(store) if run.sweep == sweep]


def _open(root: str, *, shared: bool) -> Store:
    if not shared or "://" not in root:
        return open_store(root)
    from sweeper.store.shared import open_shared

    return open_shared(root)


def without_archived(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the runs that do not belong to archived sweeps."""
    from sweeper.results.marks import in_use  # imported late: most calls concern one sweep

    return in_use(runs)


def _states(state: str | Iterable[str] | None) -> set[str] | None:
    if state is None:
        return None
    wanted = {str(name) for name in ([state] if isinstance(state, str) else state)}
    check_states(sorted(wanted))
    return wanted
