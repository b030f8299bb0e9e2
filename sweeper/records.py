"""One sweep and its runs, read from a store as plain values; the layer that needs no pandas.

`registry.py` finds sweeps and makes DataFrames of what is here.
"""

import functools
from collections.abc import Mapping
from typing import Any

from sweeper.documents import read_json
from sweeper.errors import NotFound, StoreError
from sweeper.layout import Layout
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
from sweeper.states import RunState, State
from sweeper.store import Store
from sweeper.sweeps import read_outcome, read_plan, read_states

__all__ = ["RecordedRun", "Sweep"]

_PLANNED = RunState(State.PLANNED, 0, 0, None)


class Sweep:
    """A launched grid: its plan and its runs. The plan and the states are read once, when the
    object is made (one file and one listing); what runs recorded is read when asked for.

    Runs that have events but are not in the plan do not appear.
    Raises `NotFound` when there is no such sweep, `StoreError` when its plan is damaged.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.root = store.root
        self.layout = Layout(name)
        self.document: dict[str, Any] = read_plan(store, name)
        self._states = read_states(store, name)

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
    def runs(self) -> tuple["RecordedRun", ...]:
        """Every planned run, in the order of the plan."""
        return tuple(
            RecordedRun(self, planned, self._states.get(planned["id"], _PLANNED))
            for planned in self.document["runs"]
        )

    def write_report(self, name: str, data: bytes) -> str:
        """Keep a file in the sweep's `report/` folder; gives its path or address."""
        path = f"{self.layout.report}/{name}"
        self.store.replace(path, data)
        return self.store.local_path(path) or f"{self.root.rstrip('/')}/{path}"


class RecordedRun:
    """A run as it was planned and as it went: `id name cell seed config state attempts`, and the
    `store` and `layout` it is found by. `retired`: the grid has it no more.

    `attempts` counts the attempts opened. Files of attempts that do not exist are no error: a run
    that has not started has no metrics, an empty log and no checkpoints.
    """

    def __init__(self, sweep: Sweep, planned: Mapping[str, Any], state: RunState) -> None:
        self.store = sweep.store
        self.layout = sweep.layout
        self._sweep = sweep
        self._state = state
        self.id: str = planned["id"]
        self.name: str = planned["name"]
        self.cell: str = planned.get("cell", planned["name"])
        self.seed: int | None = planned.get("seed")
        self.config: dict[str, Any] = dict(planned.get("config") or {})
        self.state = state.state
        self.attempts = state.opened
        self.retired = bool(planned.get("retired"))
        self.sweep = sweep.name
        self.root = sweep.root

    @property
    def path(self) -> str:
        """The recipe's folder (its `log_path`) of the attempt that counts, the latest claimed."""
        relative = self.layout.log_path(self.id, max(self._state.attempt, 1))
        store = self.store
        return store.local_path(relative) or f"{self.root.rstrip('/')}/{relative}"

    @functools.cached_property
    def outcome(self) -> dict[str, Any]:
        """How the deciding attempt ended: `code signal reason started ended wall_s host detail`.
        Empty while nothing is known."""
        return read_outcome(self.store, self.sweep, self.id, self._state)

    @functools.cached_property
    def times(self) -> dict[str, Any]:
        """`started` of the first attempt and `ended` of the deciding one (UTC, ISO 8601), and
        `wall_s`, the seconds that the attempts with an outcome took together; None if unknown."""
        last = self.outcome
        started, wall = last.get("started"), last.get("wall_s")
        for attempt in range(self._state.attempt - 1, 0, -1):
            earlier = self._ended(attempt)
            started = earlier.get("started") or started
            if earlier.get("wall_s") is not None:
                wall = (wall or 0.0) + earlier["wall_s"]
        return {"started": started, "ended": last.get("ended"), "wall_s": wall}

    def _ended(self, attempt: int) -> dict[str, Any]:
        store, prefix = self.store, f"{self.layout.state}/{self.id}/{attempt}"
        for event in ("succeeded", "failed", "cancelled", "preempted", "claimed"):
            try:
                return read_json(store, f"{prefix}.{event}.json")
            except (NotFound, StoreError):
                continue
        return {}

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
            "reason": self.outcome.get("reason"),
            "retired": self.retired,
            **self.times,
            "root": self.root,
        }
        if values:
            metric = self._sweep.metric
            point = None if metric is None else self.value(metric)
            record["metric"] = None if metric is None else metric["name"]
            record["value"] = None if point is None else point.value
        record["config"] = self.config
        return record

    def value(self, metric: Mapping[str, str]) -> Point | None:
        """What the run is judged by under `metric` (`name`, `goal`, `at`), if recorded."""
        points = numbers(self.history.rows, metric["name"])
        return value_at(points, metric.get("goal", "minimize"), metric.get("at", "last"))

    @functools.cached_property
    def history(self) -> Merged:
        """The metrics of all attempts as rows, read once; see `metrics.merge`."""
        return merge(self._parsed("metrics.jsonl"))

    def checkpoint_records(self) -> list[dict[str, Any]]:
        """The records in `checkpoints.jsonl` of all attempts, each with its `attempt`; oldest
        first, of equal names the latest."""
        return merge_checkpoints(self._parsed("checkpoints.jsonl"))

    def _parsed(self, name: str) -> list[Parsed]:
        return [
            parse(self._read(f"{self.layout.log_path(self.id, attempt)}/{name}"))
            for attempt in range(1, self._state.opened + 1)
        ]

    def _read(self, path: str) -> bytes:
        try:
            return self.store.read(path)
        except NotFound:
            return b""

    def log(self, attempt: int | None = None) -> str:
        """Standard output and error of an attempt (None: the latest that has any), whole. Bytes
        that are no UTF-8 come out as U+FFFD."""
        attempts = [attempt] if attempt is not None else range(self._state.opened, 0, -1)
        for candidate in attempts:
            data = self._read(self.layout.log(self.id, candidate))
            if data:
                return data.decode("utf-8", "replace")
        return ""

    def log_tail(self, lines: int = 20, limit: int = 65536) -> list[str]:
        """The last `lines` lines of the latest log, reading at most `limit` bytes of its end."""
        for attempt in range(self._state.opened, 0, -1):
            path = self.layout.log(self.id, attempt)
            listing = self.store.list(self.layout.attempt(self.id, attempt))
            size = next((entry.size for entry in listing if entry.path == path), 0)
            if size:
                start = max(0, size - limit)
                text = self.store.read_range(path, start, size).decode("utf-8", "replace")
                found = text.splitlines()
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


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    keys: dict[str, None] = {"step": None}
    for row in rows:
        keys.update(dict.fromkeys(row))
    return list(keys)
