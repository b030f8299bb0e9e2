"""Makes tables of recorded metrics through the cache, and reports what could not be read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.files import MetricsFile
from sweeper.metrics.objective import Judged, counting_rows, missing_rows, reduced
from sweeper.metrics.rollout_files import COLUMNS, LABELS
from sweeper.metrics.tables.columns import Columns, Floats, last_number, present
from sweeper.metrics.tables.frames import Part, numbers_table, plain_table
from sweeper.metrics.tables.merging import merge_columns, odd_steps
from sweeper.metrics.tables.reading import Reader
from sweeper.metrics.tables.rollouts import Recorded, rollout_parts
from sweeper.results.items import ITEM_COLUMNS, files_of, item_files, item_rows, read_answers
from sweeper.results.problems import Problems
from sweeper.results.runs import RecordedRun
from sweeper.results.scores import SCORE_COLUMNS, Point, Score, item_keys, scores_of, suite_of
from sweeper.results.sql import mentioned, mentions_all
from sweeper.sweep.labels import plural
from sweeper.sweep.run_record import RUN_KEY, ItemRow

T = TypeVar("T")

_HEAD = 65_536
"""The number of bytes at the beginning of a file that show its format."""
_SMALL = 1 << 16
"""A file of fewer bytes than this is parsed completely. In a larger file, only the end is searched
for the last value."""


class Tabulator:
    """A reader of the metrics of runs in several roots. `memories` maps each root to its cache.
    `problems` gets a line for each run with unreadable lines, and for each run that was skipped
    because it could not be read."""

    def __init__(self, memories: Mapping[str, Folder | None], problems: Problems) -> None:
        self._memories = memories
        self._readers: dict[str, Reader] = {}
        self._problems = problems

    def _reader(self, run: RecordedRun) -> Reader:
        if run.root not in self._readers:
            self._readers[run.root] = Reader(self._memories.get(run.root))
        return self._readers[run.root]

    def save(self) -> None:
        """Save what was read to the cache."""
        for reader in self._readers.values():
            reader.save()

    def metrics(self, runs: Sequence[RecordedRun], keys: Sequence[str] | None = None) -> list[Part]:
        """Return the merged history of each run. With `keys`, return only these columns, and only
        rows with a value in one of them."""
        for reader in dict.fromkeys(map(self._reader, runs)):
            of_reader = (run for run in runs if self._reader(run) is reader)
            reader.fill((run.files, path) for run in of_reader for path in run.metrics_paths())
        parts = list(self._each(runs, lambda run: [self.part(run, keys)]))
        self.save()
        return parts

    def _each(
        self, runs: Sequence[RecordedRun], read: Callable[[RecordedRun], Iterable[T]]
    ) -> Iterator[T]:
        """Yield the items that `read` returns for each run. Report runs that cannot be read."""
        for run in runs:
            try:
                yield from read(run)
            except StoreError as error:
                self._problems.unreadable(error)

    def part(self, run: RecordedRun, keys: Sequence[str] | None) -> Part:
        """Return the merged history of one run. Raises `StoreError` if a metrics file cannot be
        read."""
        attempts = self._attempts(run, keys)
        merged = merge_columns(attempts)
        notes = _skipped(merged)
        if merged.malformed > merged.rows:
            notes = [f"{note}: {_unlike(run)}" for note in notes]
        notes += odd_steps(attempts)
        for note in notes:
            self._problems.tell(f"{run.sweep}/{run.name}: {_names(run)}: {note}")
        return Part(run.key, merged.with_any(keys), tuple(notes))

    def _attempts(self, run: RecordedRun, keys: Sequence[str] | None) -> list[Columns]:
        """Return the metrics of each attempt, oldest first."""
        read = self._reader(run).columns
        columns_of_attempts = (read(run.files, path, keys) for path in run.metrics_paths())
        return [columns for columns in columns_of_attempts if columns is not None]

    def value(self, run: RecordedRun, key: str, goal: str, at: str) -> Judged | None:
        """Return a run's value of `key` (see `objective.judged`); None if the run recorded no
        value."""
        last = self._last(run, key) if at == "last" else None
        if last is not None:
            return last
        merged = merge_columns(self._attempts(run, [key]))
        steps, values = _counting(merged, key)
        if not len(values):
            return None
        row, value = reduced(values, goal, at)
        stepped = bool(present(steps[row : row + 1])[0])
        return Judged(float(steps[row]) if stepped else None, value, missing_at_end(merged, key))

    def curve(self, run: RecordedRun, key: str) -> tuple[Floats, Floats]:
        """Return the steps and values of the rows with a number for `key`. Rows without a step are
        included only if no row has a step; their steps are ABSENT. Raises `StoreError`."""
        return _counting(merge_columns(self._attempts(run, [key])), key)

    def _last(self, run: RecordedRun, key: str) -> Judged | None:
        """Return the last value of `key` from the end of the newest metrics file, without parsing
        the whole file. None if the end has no value, or if the file is cached, small or in
        parts."""
        for path in reversed(run.metrics_paths()):
            source = run.files.source(path)
            if source is None:
                continue
            cached = self._reader(run).has(run.files, path)
            if cached or source.pieces or source.stamp.size < _SMALL:
                return None
            try:
                last = last_number(source.read(0)[1], key)
            except NotFound:
                return None
            return None if last is None else Judged(last.step, last.value)
        return None

    def rollouts(
        self,
        runs: Sequence[RecordedRun],
        iteration: int | None = None,
        keys: Sequence[str] | None = None,
    ) -> list[Part]:
        """Return the rollouts of each run; see `rollouts.rollout_parts`."""

        def read(run: RecordedRun) -> list[Part]:
            cache = self._reader(run).cache(run.files, "rollouts")
            recorded = Recorded(run.files, run.folders(), cache)
            parts = rollout_parts(recorded, run.key, iteration, keys)
            malformed = sum(part.columns.malformed for part in parts)
            for note in _skipped(Columns(malformed=malformed)):
                self._problems.tell(f"{run.sweep}/{run.name}: rollout summaries: {note}")
            return parts

        parts = list(self._each(runs, read))
        self.save()
        return parts

    def checkpoints(self, runs: Sequence[RecordedRun]) -> list[dict[str, object]]:
        """Return the checkpoint records, with the attempt's number and `run`, `sweep`, `root`."""

        def read(run: RecordedRun) -> list[dict[str, object]]:
            return [{**recorded, **run.key} for recorded in run.checkpoint_records()]

        return list(self._each(runs, read))

    def items(self, runs: Sequence[RecordedRun]) -> list[ItemRow]:
        """Return each answer of the runs' last evaluations as a dict with `ITEM_COLUMNS`."""

        def read(run: RecordedRun) -> list[ItemRow]:
            answers, large = read_answers(run, item_files(files_of(run).items()))
            for path in large:
                self._problems.tell(f"{run.sweep}/{run.name}: {path}: too large to be read")
            return [
                {"run": run.id, "sweep": run.sweep, "root": run.root, **row}
                for file, answers in answers
                for row in item_rows(answers, file.kind)
            ]

        return list(self._each(runs, read))

    def scores(self, runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, list[Score]]]:
        """Return the scores of each run's checkpoints."""

        def read(run: RecordedRun) -> list[tuple[RecordedRun, list[Score]]]:
            return [(run, scores_of(run, self._points(run), files_of(run)))]

        scores = list(self._each(runs, read))
        self.save()
        return scores

    def _points(self, run: RecordedRun) -> list[Point]:
        """Return the scores that a run recorded as metrics, in the order of its rows."""
        keys = self._reader(run).keys
        recorded = {key for path in run.metrics_paths() for key in keys(run.files, path)}
        suites = [key for key in sorted(recorded) if suite_of(key) is not None]
        counts = [count for key in suites for count in item_keys(key) if count in recorded]
        return points_of(self.part(run, ["step", *suites, *counts]).columns) if suites else []

    def score_rows(self, runs: Sequence[RecordedRun]) -> list[dict[str, object]]:
        """Return the scores as dicts with `SCORE_COLUMNS`."""
        pairs = ((run, score) for run, scores in self.scores(runs) for score in scores)
        return [{**run.key, **score._asdict()} for run, score in pairs]

    def makers(self, query: str, runs: Sequence[RecordedRun]) -> dict[str, Callable[[], object]]:
        """Return {table name: function that makes the table} for a query over these runs."""

        def metrics() -> object:
            parts = self.metrics(runs, self._meant(query, runs))
            return numbers_table(parts, ["step"], metric_column, whole=["step"])

        def checkpoints() -> object:
            return plain_table(self.checkpoints(runs), (*RUN_KEY, "attempt", "name"))

        return {
            "metrics": metrics,
            "rollouts": lambda: numbers_table(
                self.rollouts(runs), COLUMNS, common=(*RUN_KEY, *LABELS)
            ),
            "checkpoints": checkpoints,
            "items": lambda: plain_table(self.items(runs), ITEM_COLUMNS),
            "scores": lambda: plain_table(self.score_rows(runs), SCORE_COLUMNS),
        }

    def _meant(self, query: str, runs: Sequence[RecordedRun]) -> list[str] | None:
        """Return the keys of metrics that a query may use; None if it may use all."""
        if mentions_all(query, "metrics"):
            return None
        recorded: dict[str, None] = {}

        def read(run: RecordedRun) -> list[str]:
            keys = self._reader(run).keys
            return [key for path in run.metrics_paths() for key in keys(run.files, path)]

        recorded.update(dict.fromkeys(self._each(runs, read)))
        return ["step", *(key for key in recorded if key != "step" and mentioned(key, query))]


def points_of(columns: Columns) -> list[Point]:
    """Return the scores in a run's metrics, such as `eval/gsm8k/score`."""
    steps = columns.column("step")
    points: list[Point] = []
    for key in (*columns.values, *columns.odd):
        suite = suite_of(key)
        if suite is None:
            continue
        values = columns.numbers(key)
        items = next((columns.column(k) for k in item_keys(key) if k in columns.values), None)
        for row in np.flatnonzero(np.isfinite(values)):
            step = float(steps[row]) if np.isfinite(steps[row]) else None
            count = None if items is None else float(items[row])
            points.append(Point(suite, step, float(values[row]), count))
    return points


def _skipped(columns: Columns) -> list[str]:
    """Describe the skipped lines; empty if no lines were skipped."""
    parts = [plural(columns.malformed, "malformed line")] if columns.malformed else []
    parts += ["a torn last line"] if columns.torn else []
    return [f"{' and '.join(parts)} skipped"] if parts else []


def _unlike(run: RecordedRun) -> str:
    for path in reversed(run.metrics_paths()):
        source = run.files.source(path)
        if source is None:
            continue
        with suppress(NotFound):
            data, file = source.read(0, _HEAD)[1], MetricsFile(path)
            if file.parse(data).malformed:
                return file.describe_malformed(data)
    return "most lines are not rows"


def _names(run: RecordedRun) -> str:
    return ", ".join(dict.fromkeys(path.rpartition("/")[2] for path in run.metrics_paths()))


def missing_at_end(columns: Columns, key: str) -> int:
    """Return how many rows at the end of a merged history lack a number for `key`, though they
    should have one (see `objective.missing_in`)."""
    has_number = present(columns.numbers(key))
    return missing_rows(has_number, columns.has(key), present(columns.column("step")))


def _counting(columns: Columns, key: str) -> tuple[Floats, Floats]:
    steps, values = columns.column("step"), columns.numbers(key)
    rows = counting_rows(present(values), present(steps))
    return steps[rows], values[rows]


def metric_column(key: str) -> str:
    """Return the column name of a metric."""
    return f"metric.{key}" if key in RUN_KEY else key
