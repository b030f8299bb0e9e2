"""A planned run with its results, read from a store as plain values, without pandas. `sweeps.py`
has the runs of sweeps, and `folders.py` the other runs. An `Index` caches unchanged data."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from sweeper.errors import NotFound, StoreError, UsageError
from sweeper.metrics.cache_folder import Index
from sweeper.metrics.files import MetricsFile, metrics_stamp
from sweeper.metrics.objective import Judged, judged, missing_in
from sweeper.metrics.rows import (
    NO_ROWS,
    Merged,
    Parsed,
    Row,
    merge,
    merge_checkpoints,
    numbers,
    parse,
    written,
)
from sweeper.metrics.sources import Files, Stamp
from sweeper.results.origins import Origin
from sweeper.sweep.event import NOTHING, Outcome
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import NoState, State
from sweeper.sweep.usage import NO_USAGE, Usage, total

if TYPE_CHECKING:
    from sweeper.metrics.evaluation import Facts
    from sweeper.sweep.run_record import RunRecord, Times

T = TypeVar("T")
OnError = Callable[[StoreError], None]
"""A callback that gets errors about unreadable files, for callers that want the readable data
anyway."""

_LARGE = 100_000
"""Metrics of more bytes than this are read with the faster reader, which takes longer to load."""

OPEN_DAY = "open"
"""The `day` of the usage of an attempt that has not ended yet."""


class Used(NamedTuple):
    """The usage of an attempt, and the day (UTC) on which the attempt ended."""

    usage: Usage = NO_USAGE
    day: str = OPEN_DAY


class RecordedRun(ABC):
    """A run with its results, from a sweep's plan (`sweeps.SweepRun`) or found as a folder
    (`folders.FolderRun`).

    `retired` means that the grid no longer contains the run. Only runs of sweeps with stages have
    `stage` and `parents` (ids). `attempts` counts the started attempts. A run that has not started
    has no metrics, an empty log and no checkpoints.
    """

    id: str
    name: str
    cell: str
    seed: int | None = None
    state: State | NoState = NoState.UNKNOWN
    attempts: int = 1
    retired: bool = False
    stage: str | None = None
    parents: tuple[str, ...] = ()
    metric: Mapping[str, str] | None = None
    quick: "Callable[[RecordedRun, str, str, str], Judged | None] | None" = None
    caution: Callable[[str], None] | None = None
    """A function that is called with a warning if the value in `record` may be misleading."""

    def __init__(
        self, folder: SweepFolder, files: Files, index: Index, on_error: OnError | None = None
    ) -> None:
        self.on_error = on_error
        self.store = folder.store
        self.root = folder.store.root
        self.sweep = folder.name
        self.sweep_folder = folder
        self.files = files
        self.index = index

    @property
    def key(self) -> dict[str, str]:
        """The run's id, sweep and root, which identify the run in every table."""
        return {"run": self.id, "sweep": self.sweep, "root": self.root}

    @functools.cached_property
    def config(self) -> dict[str, object]:
        """The values of the configuration that the grid sets."""
        return {}

    @property
    def evaluation(self) -> "Facts | None":
        """The facts about an evaluation in tinker-cookbook's EvalStore; None for other runs."""
        return None

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the folder of each attempt's metrics, oldest first, relative to the store's
        root."""

    def log_paths(self) -> list[str]:
        """Return the `log_path` of each attempt: the folder in which the recipe writes."""
        return self.folders()

    def metrics_paths(self) -> list[str]:
        """Return the path of each attempt's metrics file, oldest attempt first."""
        return [path for path, _ in self._metrics_files()]

    def _metrics_files(self) -> list[tuple[str, Stamp | None]]:
        return [metrics_stamp(self.files, folder) for folder in self.folders()]

    @property
    def folder(self) -> str:
        """The `log_path` of the latest submitted attempt, relative to the store's root."""
        return self.folders()[-1]

    @property
    def path(self) -> str:
        """The full path or address of `folder`, the `log_path` of the latest submitted attempt."""
        return self.store.local_path(self.folder) or f"{self.root.rstrip('/')}/{self.folder}"

    def readable(self, find: Callable[[], T], otherwise: T) -> T:
        """Return the result of `find`. If `find` raises `StoreError` and the run has an `on_error`,
        pass the error to `on_error` and return `otherwise`."""
        try:
            return find()
        except StoreError as error:
            if self.on_error is None:
                raise
            self.on_error(error)
            return otherwise

    @functools.cached_property
    def outcome(self) -> Outcome:
        """The outcome of the latest submitted attempt; empty if unknown."""
        return NOTHING

    def used(self, attempt: int) -> Used:
        """Return the usage of an attempt."""
        del attempt
        return Used()

    @functools.cached_property
    def usage(self) -> Usage:
        """The usage of all attempts. A step that two attempts executed counts twice, because it was
        paid for twice."""
        return total(self.used(attempt).usage for attempt in range(1, self.attempts + 1))

    @property
    def backend(self) -> str | None:
        """The backend of the latest attempt if the sweep uses several backends, else None."""
        return None

    @property
    def origin(self) -> Origin | None:
        """The provenance of the latest submitted attempt; None if unknown."""
        return None

    @property
    def reason(self) -> str | None:
        """The reason why the latest submitted attempt ended; None if unknown."""
        return self.outcome.reason

    @property
    def explained(self) -> str | None:
        """The `reason`, and if the run has failed also the cause (`error: ValueError: no`). None
        if unknown."""
        detail = self.outcome.detail if self.state is State.FAILED else None
        return ": ".join(filter(None, (self.reason, detail))) or None

    @property
    def last_event(self) -> str | None:
        """The time of the run's last event (UTC, ISO 8601); None if there is none. Runs outside
        sweeps have no events."""
        return None

    @property
    def times(self) -> "Times":
        """The times of the run. `started` is when the first attempt started, `ended` is when the
        latest submitted attempt ended (UTC, ISO 8601). `wall_s` is the sum of the recorded
        durations of all attempts, in seconds. Unknown times are None."""
        return {"started": None, "ended": None, "wall_s": None}

    def record(self, *, values: bool = True) -> "RunRecord":
        """Return the run as plain values, in the form of `--json`, with the keys `id sweep name
        cell seed state attempts reason retired started ended wall_s root code commit launched
        metric value config`. Runs of sweeps with stages also have `stage parents`. If the sweep has
        several backends, there is also `backend`.

        `metric` is the name of the sweep's metric. `value` is the run's value of this metric (see
        `metrics.objective`), or None if nothing was recorded. With `values=False`, `metric` and
        `value` are left out, and no metrics file is read.
        """
        record: dict[str, object] = {
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
        origin = self.origin
        record["code"] = None if origin is None else origin.code
        record["commit"] = None if origin is None else origin.commit
        record["launched"] = None if origin is None else origin.launched
        if self.stage is not None:
            record |= {"stage": self.stage, "parents": list(self.parents)}
        if self.backend is not None:
            record["backend"] = self.backend
        if values:
            metric = self.metric
            point = None
            if metric is not None:
                point = self.readable(lambda: self.value(metric), None)
                if point is not None and point.missing and self.caution is not None:
                    self.caution(f"{self.sweep}/{self.name}: {missing_text(metric['name'], point)}")
            record["metric"] = None if metric is None else metric["name"]
            record["value"] = None if point is None else point.value
        record["config"] = self.config
        return cast("RunRecord", record)

    def value(self, metric: Mapping[str, str]) -> Judged | None:
        """Return the run's value of `metric` (`name`, `goal`, `at`); None if the run recorded no
        value."""
        name, goal = metric["name"], metric.get("goal", "minimize")
        at = metric.get("at", "last")

        def find() -> tuple[float | None, float, int] | tuple[()]:
            if self.quick is not None and sum(s.size for s in stamps if s) > _LARGE:
                return self.quick(self, name, goal, at) or ()
            rows = self.history.rows
            point = judged(numbers(rows, name), goal, at)
            return () if point is None else (point.step, point.value, missing_in(rows, name))

        stamps: list[Stamp | None] = []

        if "history" in self.__dict__:
            point = find()
        else:
            located = self._metrics_files()
            stamps = [stamp for _, stamp in located]
            if not any(stamps):
                return None
            files = [
                (f"{number}{path.rpartition('.')[2]}", stamp)
                for number, (path, stamp) in enumerate(located, start=1)
            ]
            point = self.index.recall(self.id, f"{goal} {at} {name}", files, find)
        return Judged(*point) if point else None

    @functools.cached_property
    def history(self) -> Merged:
        """The merged metrics of all attempts (see `rows.merge`). The files are read only once."""
        return merge(self._parsed_metrics())

    def written_rows(self) -> list[Row]:
        """Return the rows that each attempt wrote; see `rows.written`."""
        return written(self._parsed_metrics())

    def _parsed_metrics(self) -> list[Parsed]:
        return [MetricsFile(path).parse(self.read(path)) for path in self.metrics_paths()]

    @property
    def readable_history(self) -> Merged:
        """The `history`. If it cannot be read and the run has an `on_error`, the error is passed
        to `on_error`, and the history is empty."""
        return self.readable(lambda: self.history, NO_ROWS)

    def checkpoint_records(self) -> list[dict[str, object]]:
        """Return the records in `checkpoints.jsonl` of all attempts, oldest first, each with its
        `attempt` number. Among records with the same name, only the latest is returned."""
        paths = (f"{folder}/checkpoints.jsonl".lstrip("/") for folder in self.folders())
        return merge_checkpoints(parse(self.read(path)) for path in paths)

    def read(self, path: str) -> bytes:
        """Read a file of the store, even if it is stored in parts. Return b"" if there is no
        file."""
        try:
            return self.store.read(path)
        except NotFound:
            source = Files(self.store, path.rpartition("/")[0]).source(path)
        try:
            return b"" if source is None else source.read(0)[1]
        except NotFound:  # the parts were joined to one file in the meantime
            try:
                return self.store.read(path)
            except NotFound:
                return b""

    def log(self, attempt: int | None = None) -> str:
        """Return the output of an attempt (None: the latest attempt that printed something); "" if
        there is none. Bytes that are not UTF-8 become U+FFFD."""
        attempts = [attempt] if attempt is not None else range(self.attempts, 0, -1)
        for candidate in attempts:
            data = self.read(self.sweep_folder.log(self.id, candidate))
            if data:
                return data.decode("utf-8", "replace")
        return ""

    def log_tail(self, lines: int = 20, limit: int = 65536) -> list[str]:
        """Return the last `lines` lines of the newest log that is not empty; [] if there is none.
        Reads at most the last `limit` bytes of the log."""
        for attempt in range(self.attempts, 0, -1):
            files = Files(self.store, self.sweep_folder.attempt(self.id, attempt))
            source = files.source(self.sweep_folder.log(self.id, attempt))
            if source is not None and source.stamp.size:
                start = max(0, source.stamp.size - limit)
                shown = source.read(start)[1][:limit].decode("utf-8", "replace").splitlines()
                return (shown[1:] if start and len(shown) > 1 else shown)[-lines:]
        return []

    def metrics(self) -> object:
        """Return the metrics as a DataFrame: `step`, then one column per key in order of
        appearance."""
        import pandas

        rows = self.history.rows
        return pandas.DataFrame(rows, columns=_keys(rows))

    def checkpoints(self) -> object:
        """Return the checkpoint records as a DataFrame: `attempt`, then one column per key."""
        import pandas

        records = self.checkpoint_records()
        keys = ["attempt", *(key for key in _keys(records)[1:] if key != "attempt")]
        return pandas.DataFrame(records, columns=keys)

    def plot(self, *keys: str) -> Any:
        """Return a plotly figure of the metrics `keys` by step (default: the metric of the grid).
        Raises `UsageError` if there is no metric to show, or if a metric was not recorded."""
        import plotly.graph_objects as go  # pyright: ignore[reportMissingTypeStubs]

        wanted = keys or ((self.metric["name"],) if self.metric is not None else ())
        if not wanted:
            raise UsageError(
                f"the grid of {self.name} declares no metric: name what to plot, as in "
                "plot('test/nll')"
            )
        rows = self.history.rows
        figure: Any = go.Figure()
        for key in wanted:
            points = numbers(rows, key)
            if not points:
                recorded = ", ".join(_keys(rows)[1:]) or "nothing"
                raise UsageError(f"{self.name} has not recorded {key!r}; it has {recorded}")
            steps, values = zip(*points, strict=True)
            figure.add_scatter(x=list(steps), y=list(values), name=key, mode="lines+markers")
        title = wanted[0] if len(wanted) == 1 else None
        return figure.update_layout(title=self.name, xaxis_title="step", yaxis_title=title)

    def _repr_html_(self) -> str:
        """Return the run's state and configuration as HTML for a notebook."""
        from sweeper.common.html import table, title

        record = self.record()
        facts = [(key, record[key]) for key in ("state", "reason", "attempts", "wall_s")]
        facts += [(record["metric"], record["value"])] if record["metric"] else []
        rows = [(key, value) for key, value in facts if value is not None]
        return title(f"{self.sweep}/{self.name}", self.id) + table(
            ["", ""], [*rows, *self.config.items()]
        )

    def __repr__(self) -> str:
        return f"<run {self.sweep}/{self.name} {self.id} {self.state.value}>"


def missing_text(metric: str, value: Judged) -> str:
    """Return a warning that the last rows of a run have no value of the metric."""
    rows = f"last {value.missing} rows have" if value.missing > 1 else "last row has"
    at = "an earlier row" if value.step is None else f"step {value.step:g}"
    return f"the {rows} no {metric}; the value is from {at}, and the run may have diverged since"


def _keys(rows: list[dict[str, object]]) -> list[str]:
    keys: dict[str, None] = {"step": None}
    for row in rows:
        keys.update(dict.fromkeys(row))
    return list(keys)
