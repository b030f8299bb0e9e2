"""Reading what a run's page shows: all of it once, then only what was added."""

import os
from collections.abc import Callable, Mapping, Sequence

from sweeper.errors import NotFound, StoreError
from sweeper.metrics import Point, Row, as_float, parse
from sweeper.reading.rollouts import Found, Words
from sweeper.records.following import Follower
from sweeper.records.runs import SweepRun
from sweeper.tables.rollouts import flat, summary_files
from sweeper.tables.sources import Files
from sweeper.watch.curves import Points
from sweeper.watch.page import PageData, Rollout
from sweeper.watch.shapes import value
from sweeper.watch.trails import Trail
from sweeper.watch.view import RunView

__all__ = ["PageReader"]

_LOG_LINES = 300
_ROLLOUTS = 8
_BEST = 4
_SUMMARY_BYTES = 4_000_000
"""Above this a file of rollout summaries is not read for the screen."""


class _Metrics:
    """All metrics of one run, as curves."""

    def __init__(self, run: SweepRun) -> None:
        self._follower = Follower([run])
        self._trails: dict[str, Trail] = {}
        self._take(run.history.rows)
        del run.history  # it may be large, and is not needed again
        self._changed = True
        self._curves: Mapping[str, Points] = {}

    def read(self) -> bool:
        """See what was added; whether anything was."""
        rows = [row for news in self._follower.poll() for row in news.rows]
        self._take(rows)
        self._changed |= bool(rows)
        return bool(rows)

    def curves(self, first: str | None) -> Mapping[str, Points]:
        """The metric `first` before all others: the same object until there is more."""
        if self._changed:
            keys = sorted(self._trails, key=lambda key: key != first)
            self._curves = {key: tuple(self._trails[key].points) for key in keys}
            self._changed = False
        return self._curves

    def _take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            step = as_float(row.get("step"))
            for key, found in row.items():
                number = as_float(found)
                if key != "step" and number is not None:
                    if key not in self._trails:
                        self._trails[key] = Trail(key)
                    self._trails[key].load([Point(step, number)], {})


class PageReader:
    """Reads one run's page; `run` is a handle as of now, another attempt needs another reader.
    `handle` gives one of any run of the sweep."""

    def __init__(
        self,
        run: SweepRun,
        metric: str | None,
        handle: Callable[[str], SweepRun],
        links: tuple[str, ...] = (),
    ) -> None:
        self._run, self._metric, self._links = run, metric, links
        self._handle = handle
        self._metrics: _Metrics | None = None
        self._others: dict[tuple[str, int], _Metrics] = {}
        self._log: tuple[object, tuple[str, ...]] = (None, ())
        self._rollouts: tuple[str, tuple[Rollout, ...]] = ("", ())
        self._data: PageData | None = None

    def read(self, best: RunView | None = None) -> PageData:
        """The page as it is now, `best` being the run to compare with; what cannot be read is said
        in its `problem`."""
        problem = ""
        best_curves: Mapping[str, Points] = {}
        try:
            changed = self._read_metrics()
            if best is not None:
                best_curves = self._curves_of(best)
            self._read_log()
            if changed or self._data is None:
                self._read_rollouts()
        except (NotFound, StoreError, OSError) as error:
            problem = str(error)
        data = PageData(
            run=self._run.id,
            path=self._run.path,
            curves={} if self._metrics is None else self._metrics.curves(self._metric),
            best="" if best is None else best.id,
            best_curves=best_curves,
            log=self._log[1],
            rollouts=self._rollouts[1],
            links=self._links,
            problem=problem,
        )
        if self._data is None or data != self._data:
            self._data = data
        return self._data

    def _read_metrics(self) -> bool:
        """Whether there was anything new."""
        if self._metrics is None:
            self._metrics = _Metrics(self._run)
            return True
        return self._metrics.read()

    def _curves_of(self, other: RunView) -> Mapping[str, Points]:
        """Those of another run. The few that were the best of late are kept: two that are close
        change places often."""
        place = (other.id, other.attempt)
        metrics = self._others.pop(place, None)
        if metrics is None:
            metrics = _Metrics(self._handle(other.id))
        else:
            metrics.read()
        self._others[place] = metrics
        while len(self._others) > _BEST:
            del self._others[next(iter(self._others))]
        return metrics.curves(self._metric)

    def _read_log(self) -> None:
        run = self._run
        path = run.layout.log(run.id, max(run.attempts, 1))
        full = run.store.local_path(path)
        stamp: object = object()  # of a remote log nothing cheap is known
        if full is not None:
            try:
                status = os.stat(full)
            except OSError:
                return
            stamp = (status.st_size, status.st_mtime_ns)
        if stamp != self._log[0]:
            self._log = (stamp, tuple(run.log_tail(_LOG_LINES)))

    def _read_rollouts(self) -> None:
        """Some of the last iteration's."""
        run = self._run
        run.files = Files(run.store, run.layout.runs)
        files = summary_files(run.files, run.folders())
        trained = [file for file in files if file.name == "train"] or files
        if not trained or trained[-1].path == self._rollouts[0]:
            return
        file = trained[-1]
        source = run.files.source(file.path)
        if source is None or source.stamp.size > _SUMMARY_BYTES:
            return
        records = parse(source.read(0)[1]).rows
        found = [Found(file, record, flat(record, file)) for record in records[:_ROLLOUTS]]
        words = Words(run, found)
        told: list[Rollout] = []
        for one in found:
            numbers = one.numbers
            reward, length = as_float(numbers.get("total_reward")), as_float(numbers.get("ac_len"))
            head = (
                f"iteration {file.iteration} {file.name}, group {numbers.get('group_idx')}, "
                f"trajectory {numbers.get('traj_idx')}: reward {value(reward)}, "
                f"{value(length)} tokens"
            )
            told.append(Rollout(head, tuple(words.of(one))))
        self._rollouts = (file.path, tuple(told))
