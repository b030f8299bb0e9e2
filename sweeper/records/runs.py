"""One sweep and its runs, read from a store as plain values; the layer that needs no pandas.

`registry.py` finds sweeps and makes DataFrames of what is here, `folders.py` finds runs that are
in no sweep. An `Index` remembers what need not be looked at again.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from sweeper.errors import NotFound, StoreError
from sweeper.metrics import (
    Merged,
    Parsed,
    Point,
    merge,
    merge_checkpoints,
    numbers,
    parse,
    value_at,
)
from sweeper.states import Event, NoState, RunState, State, fold
from sweeper.store.documents import read_json
from sweeper.store.files import Store
from sweeper.store.layout import Layout
from sweeper.store.sweeps import TELLING, look_at_events, read_outcome, read_plan
from sweeper.tables.index import Index
from sweeper.tables.keeping import Folder
from sweeper.tables.sources import Files, Stamp

__all__ = ["RecordedRun", "Sweep", "SweepRun"]

_LARGE = 100_000
"""Bytes of metrics from which on it pays to load what reads them quicker."""
_PLANNED = RunState(State.PLANNED, 0, 0, None)


class Sweep:
    """A launched grid: its plan and its runs. The plan and the states are read once, when the
    object is made (one file, and one listing); what runs recorded is read when asked for, or
    remembered in `memory`.

    Runs that have events but are not in the plan do not appear.
    Raises `NotFound` when there is no such sweep, `StoreError` when its plan is damaged.
    """

    def __init__(self, store: Store, name: str, memory: Folder | None = None) -> None:
        self.store = store
        self.name = name
        self.root = store.root
        self.layout = Layout(name)
        self.document: dict[str, Any] = read_plan(store, name)
        self.index = Index(memory, f"sweep {name}")
        self.files = Files(store, self.layout.runs)
        self.events, self._marks = look_at_events(store, name)
        folded: dict[int, RunState] = {}
        for events in self.events.values():
            if id(events) not in folded:
                folded[id(events)] = fold(events)
        self._states = {run: folded[id(events)] for run, events in self.events.items()}

    def recall(self, run: str, what: str, find: Callable[[], Any]) -> Any:
        """Something that follows from a run's events: as remembered while there are no others."""
        mark = self._marks.get(run)
        return find() if mark is None else self.index.recall(run, what, [Stamp(0, mark, 0)], find)

    @property
    def metric(self) -> dict[str, str] | None:
        """`{"name", "goal", "at"}`, or None when the grid names none."""
        return self.document.get("metric")

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The declared axes and their values, in grid order, without the seed."""
        return self.document.get("axes") or {}

    @property
    def path(self) -> str:
        """The folder of the sweep, as a local path or, on a remote store, an address."""
        return self.store.local_path(self.name) or f"{self.root.rstrip('/')}/{self.name}"

    @functools.cached_property
    def runs(self) -> tuple["SweepRun", ...]:
        """Every planned run, in the order of the plan."""
        return tuple(
            SweepRun(self, planned, self._states.get(planned["id"], _PLANNED))
            for planned in self.document["runs"]
        )

    def write_report(self, name: str, data: bytes) -> str:
        """Keep a file in the sweep's `report/` folder; gives its path or address."""
        path = f"{self.layout.report}/{name}"
        self.store.replace(path, data)
        return self.store.local_path(path) or f"{self.root.rstrip('/')}/{path}"


class RecordedRun(ABC):
    """A run as it was planned and as it went: `id name cell seed config state attempts`, and the
    `store` and `layout` it is found by. `retired`: the grid has it no more.

    `attempts` counts the attempts opened. Files of attempts that do not exist are no error: a run
    that has not started has no metrics, an empty log and no checkpoints.
    """

    id: str
    name: str
    cell: str
    seed: int | None = None
    state: State | NoState = NoState.UNKNOWN
    attempts: int = 1
    retired: bool = False

    def __init__(self, store: Store, layout: Layout, files: Files, index: Index) -> None:
        self.store = store
        self.root = store.root
        self.sweep = layout.sweep
        self.layout = layout
        self.files = files
        self.index = index
        self.metric: Mapping[str, str] | None = None
        self.quick: Callable[[RecordedRun, str, str, str], Point | None] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as far as it was given."""
        return {}

    @abstractmethod
    def folders(self) -> list[str]:
        """The recipe's folder of each attempt, oldest first, from the store's root on."""

    def metrics_paths(self) -> list[str]:
        """Where the metrics of each attempt lie, oldest first."""
        return [f"{folder}/metrics.jsonl".lstrip("/") for folder in self.folders()]

    @property
    def folder(self) -> str:
        """The one of the attempt that counts."""
        return self.folders()[-1]

    @property
    def path(self) -> str:
        """The recipe's folder (its `log_path`) of the attempt that counts, the latest claimed."""
        return self.store.local_path(self.folder) or f"{self.root.rstrip('/')}/{self.folder}"

    @functools.cached_property
    def outcome(self) -> dict[str, Any]:
        """How the deciding attempt ended: `code signal reason started ended wall_s host detail`.
        Empty while nothing is known."""
        return {}

    @property
    def reason(self) -> str | None:
        """Why the deciding attempt ended as it did; None if unknown, or for no reason."""
        return self.outcome.get("reason")

    @property
    def times(self) -> dict[str, Any]:
        """`started` of the first attempt and `ended` of the deciding one (UTC, ISO 8601), and
        `wall_s`, the seconds that the attempts with an outcome took together; None if unknown."""
        return {"started": None, "ended": None, "wall_s": None}

    def record(self, *, values: bool = True) -> dict[str, Any]:
        """The run as plain values, the shape of `--json`: `id sweep name cell seed state
        attempts reason retired started ended wall_s root metric value config`.

        `metric` is the name of the sweep's metric and `value` what the run is judged by (see
        `metrics.value_at`), None when nothing was recorded; with `values=False` no metrics file is
        read and both are left out.
        """
        record: dict[str, Any] = {
            "id": self.id,
            "sweep": self.sweep,
            "name": self.name,
            "cell": self.cell,
            "seed": self.seed,
            "state": self.state.value,
            "attempts": self.attempts,
            "reason": self.reason,
            "retired": self.retired,
            **self.times,
            "root": self.root,
        }
        if values:
            metric = self.metric
            point = None if metric is None else self.value(metric)
            record["metric"] = None if metric is None else metric["name"]
            record["value"] = None if point is None else point.value
        record["config"] = self.config
        return record

    def value(self, metric: Mapping[str, str]) -> Point | None:
        """What the run is judged by under `metric` (`name`, `goal`, `at`), if recorded."""
        name, goal = metric["name"], metric.get("goal", "minimize")
        at = metric.get("at", "last")

        def find() -> list[Any]:
            if self.quick is not None and sum(s.size for s in stamps if s) > _LARGE:
                point = self.quick(self, name, goal, at)
            else:
                point = value_at(numbers(self.history.rows, name), goal, at)
            return [] if point is None else list(point)

        stamps: list[Stamp | None] = []

        if "history" in self.__dict__:
            found = find()
        else:
            stamps = [self.files.stamp(path) for path in self.metrics_paths()]
            if not any(stamps):
                return None
            found = self.index.recall(self.id, f"{goal} {at} {name}", stamps, find)
        return Point(*found) if found else None

    @functools.cached_property
    def history(self) -> Merged:
        """The metrics of all attempts as rows, read once; see `metrics.merge`."""
        return merge(self._parsed("metrics.jsonl"))

    def checkpoint_records(self) -> list[dict[str, Any]]:
        """The records in `checkpoints.jsonl` of all attempts, each with its `attempt`; oldest
        first, of equal names the latest."""
        return merge_checkpoints(self._parsed("checkpoints.jsonl"))

    def _parsed(self, name: str) -> list[Parsed]:
        paths = (f"{folder}/{name}".lstrip("/") for folder in self.folders())
        return [parse(self.read(path)) for path in paths]

    def read(self, path: str) -> bytes:
        """A file of the store, or its parts; nothing when there is none."""
        try:
            return self.store.read(path)
        except NotFound:
            source = Files(self.store, path.rpartition("/")[0]).source(path)
        try:
            return b"" if source is None else source.read(0)[1]
        except NotFound:  # the parts have become one file meanwhile
            try:
                return self.store.read(path)
            except NotFound:
                return b""

    def log(self, attempt: int | None = None) -> str:
        """Standard output and error of an attempt (None: the latest that has any), whole. Bytes
        that are no UTF-8 come out as U+FFFD."""
        attempts = [attempt] if attempt is not None else range(self.attempts, 0, -1)
        for candidate in attempts:
            data = self.read(self.layout.log(self.id, candidate))
            if data:
                return data.decode("utf-8", "replace")
        return ""

    def log_tail(self, lines: int = 20, limit: int = 65536) -> list[str]:
        """The last `lines` lines of the latest log, reading at most `limit` bytes of its end."""
        for attempt in range(self.attempts, 0, -1):
            files = Files(self.store, self.layout.attempt(self.id, attempt))
            source = files.source(self.layout.log(self.id, attempt))
            if source is not None and source.stamp.size:
                start = max(0, source.stamp.size - limit)
                found = source.read(start)[1][:limit].decode("utf-8", "replace").splitlines()
                return (found[1:] if start and len(found) > 1 else found)[-lines:]
        return []

    def metrics(self) -> Any:
        """The metrics as a DataFrame: `step`, then one column a key in order of appearance."""
        import pandas

        rows = self.history.rows
        return pandas.DataFrame(rows, columns=_keys(rows))

    def checkpoints(self) -> Any:
        """The checkpoint records as a DataFrame: `attempt`, then one column a key."""
        import pandas

        records = self.checkpoint_records()
        keys = ["attempt", *(key for key in _keys(records)[1:] if key != "attempt")]
        return pandas.DataFrame(records, columns=keys)

    def __repr__(self) -> str:
        return f"<run {self.sweep}/{self.name} {self.id} {self.state.value}>"


class SweepRun(RecordedRun):
    """A run of a sweep."""

    def __init__(self, sweep: Sweep, planned: Mapping[str, Any], state: RunState) -> None:
        super().__init__(sweep.store, sweep.layout, sweep.files, sweep.index)
        self._sweep = sweep
        self._state = state
        self._config: dict[str, Any] = dict(planned.get("config") or {})
        self._ended: list[Any] | None = None
        self.id = planned["id"]
        self.name = planned["name"]
        self.cell = planned.get("cell", planned["name"])
        self.seed = planned.get("seed")
        self.state = state.state
        self.attempts = state.opened
        self.retired = bool(planned.get("retired"))
        self.metric = sweep.metric

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    def folders(self) -> list[str]:
        attempts = range(1, max(self.attempts, self._state.attempt) + 1)
        return [self.layout.log_path(self.id, attempt) for attempt in attempts]

    @property
    def folder(self) -> str:
        return self.layout.log_path(self.id, max(self._state.attempt, 1))

    @functools.cached_property
    def outcome(self) -> dict[str, Any]:
        return read_outcome(self.store, self.sweep, self.id, self._state)

    @property
    def reason(self) -> str | None:
        return self._ending()[0]

    @property
    def times(self) -> dict[str, Any]:
        _, started, ended, wall = self._ending()
        return {"started": started, "ended": ended, "wall_s": wall}

    def _ending(self) -> list[Any]:
        """Reason, start, end, seconds: what a table of runs shows, and so what is remembered."""
        found = self._ended
        if found is None:
            read: list[Any] | None = self._sweep.recall(self.id, "ending", self._read_ending)
            found = self._ended = read or [None] * 4
        return found

    def _read_ending(self) -> list[Any] | None:
        last = self.outcome
        if not last and self._state.event in TELLING:
            return None  # it cannot be read now
        started, wall = last.get("started"), last.get("wall_s")
        for attempt in range(self._state.attempt - 1, 0, -1):
            earlier = self.ended(attempt)
            started = earlier.get("started") or started
            if earlier.get("wall_s") is not None:
                wall = (wall or 0.0) + earlier["wall_s"]
        return [last.get("reason"), started, last.get("ended"), wall]

    def ended(self, attempt: int) -> dict[str, Any]:
        """The body of the event that tells most of an attempt; empty without."""
        prefix = f"{self.layout.state}/{self.id}/{attempt}"
        for event in ("succeeded", "failed", "cancelled", "preempted", "claimed"):
            try:
                return read_json(self.store, f"{prefix}.{event}.json")
            except (NotFound, StoreError):
                continue
        return {}

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the code and its packages came from, as recorded at the launch."""
        return self._sweep.document.get("provenance") or {}

    @property
    def unfinished(self) -> bool:
        """Whether a job of it may be at work, or a launcher would start one."""
        from sweeper.states import OPEN, wants_attempt

        retries: int = self._sweep.document["launch"].get("retries", 0)
        events = self._sweep.events.get(self.id, set())
        left = self._state.unacknowledged or wants_attempt(events, retries)
        return self.state in OPEN or (left and not self.retired)

    @property
    def wandb(self) -> str | None:
        """Where W&B shows the run, if it does and that is known."""
        from sweeper.tracking import link

        return link(self._sweep.document, self.id)

    @property
    def events(self) -> list[tuple[int, Event]]:
        """What happened, by attempt and precedence."""
        order = list(Event)
        found = self._sweep.events.get(self.id, set())
        return sorted(found, key=lambda pair: (pair[0], order.index(pair[1])))


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    keys: dict[str, None] = {"step": None}
    for row in rows:
        keys.update(dict.fromkeys(row))
    return list(keys)
