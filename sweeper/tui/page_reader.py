"""Reads the data of a run's page: everything once, then only additions."""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rollout_files import flat, summary_files
from sweeper.metrics.rows import Point, Row, as_float, as_number, as_step, parse
from sweeper.metrics.sources import Files
from sweeper.results.metrics_follower import Follower
from sweeper.results.rollouts import Found, Words
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.states import OPEN
from sweeper.tui.model import RunView
from sweeper.tui.panels import PageData, Points, Rollout
from sweeper.tui.series import Series
from sweeper.tui.text import value

_LOG_LINES = 300
_ROLLOUTS = 8
_BEST = 2
_SUMMARY_BYTES = 4_000_000
"""A larger file of rollout summaries is not read for the screen."""


class _Metrics:
    """All metrics of one run, as curves."""

    def __init__(self, run: SweepRun) -> None:
        self.run = run
        self._series: dict[str, Series] = {}
        self._curves: Mapping[str, Points] = {}
        self._changed = True
        self.take(run.history.rows)
        del run.history  # it may be large, and is not needed again

    def curves(self, first: str | None) -> Mapping[str, Points]:
        """Return the curves, `first` before all others; the same object until there is more."""
        if self._changed:
            keys = sorted(self._series, key=lambda key: key != first)
            self._curves = {key: tuple(self._series[key].points) for key in keys}
            self._changed = False
        return self._curves

    def take(self, rows: Sequence[Row]) -> None:
        """Add new rows."""
        self._changed = True
        for row in rows:
            step = as_step(row.get("step"))
            for key, recorded in row.items():
                number = as_number(recorded)
                if key != "step" and number is not None:
                    if key not in self._series:
                        self._series[key] = Series(key)
                    self._series[key].load([Point(step, number)])


class PageReader:
    """Reads one run's page. `run` is its current handle: another attempt or state needs another
    reader. `handle` returns the handle of any run of the sweep. Runs that are over are read
    once."""

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
        self._others: dict[tuple[str, int, str], _Metrics] = {}
        self._follower = Follower(())
        self._followed: Set[str] = frozenset()
        self._added = True
        self._log: tuple[object, tuple[str, ...]] = (None, ())
        self._rollouts: tuple[str, tuple[Rollout, ...]] = ("", ())
        self._data: PageData | None = None

    def read(self, best: RunView | None = None) -> PageData:
        """Read the page as it is now. `best` is the run to compare with. A read error is reported
        in the page's `problem`."""
        problem = ""
        best_curves: dict[str, Points] = {}
        parts = [self._read_metrics, self._poll, self._read_log, self._read_rollouts]
        if best is not None:
            parts.append(partial(self._read_best, best, best_curves))
        for read in parts:
            try:
                read()
            except (NotFound, StoreError, OSError) as error:
                problem = problem or str(error)
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

    def _read_metrics(self) -> None:
        if self._metrics is None:
            self._metrics = self._begin(self._run)

    def _poll(self) -> None:
        """Read additions."""
        for news in self._follower.poll():
            for known in self._known():
                if known.run.id == news.run.id:
                    known.take(news.rows)
                    self._added |= known is self._metrics

    def _known(self) -> list[_Metrics]:
        own = [] if self._metrics is None else [self._metrics]
        return [*own, *self._others.values()]

    def _begin(self, run: SweepRun) -> _Metrics:
        """Read everything that a run has recorded, and follow its additions from now on."""
        self._follow([*(known.run for known in self._known()), run])
        return _Metrics(run)

    def _follow(self, runs: Sequence[SweepRun]) -> None:
        """Follow the runs that are at work, all with one follower: on a remote store each of its
        polls costs a listing."""
        at_work = {run.id: run for run in runs if run.state in OPEN}
        if at_work.keys() != self._followed:
            follower = Follower([*at_work.values()])
            with suppress(StoreError, OSError):
                self._poll()  # take what they have recorded until now
            self._follower, self._followed = follower, at_work.keys()

    def _read_best(self, best: RunView, into: dict[str, Points]) -> None:
        """Read the curves of another run. Those of the last few best runs are kept, since two
        close runs change places often."""
        place = (best.id, best.attempt, best.state)
        others = self._others.pop(place, None)
        recent = [*self._others.items()][1 - _BEST :]
        self._others = {one: known for one, known in recent if self._is_as_then(known.run)}
        if others is None:
            others = self._begin(self._handle(best.id))
        self._others[place] = others
        self._follow([known.run for known in self._known()])
        into.update(others.curves(self._metric))

    def _is_as_then(self, run: SweepRun) -> bool:
        now = self._handle(run.id)
        return (now.state, now.attempts) == (run.state, run.attempts)

    def _read_log(self) -> None:
        run = self._run
        path = run.sweep_folder.log(run.id, max(run.attempts, 1))
        full = run.store.local_path(path)
        # A remote log has no cheap stamp.
        stamp: object = object() if run.state in OPEN else run.state
        if full is not None:
            try:
                status = os.stat(full)
            except OSError:
                return
            stamp = (status.st_size, status.st_mtime_ns)
        if stamp != self._log[0]:
            self._log = (stamp, tuple(run.log_tail(_LOG_LINES)))

    def _read_rollouts(self) -> None:
        """Read the rollouts of the last iteration, if there may be new ones."""
        if self._added:
            self._read_last_rollouts()
            self._added = False

    def _read_last_rollouts(self) -> None:
        """Read some rollouts of the last iteration."""
        run = self._run
        run.files = Files(run.store, run.sweep_folder.runs)
        files = summary_files(run.files, run.folders())
        trained = [file for file in files if file.name == "train"] or files
        if not trained or trained[-1].path == self._rollouts[0]:
            return
        file = trained[-1]
        source = run.files.source(file.path)
        if source is None or source.stamp.size > _SUMMARY_BYTES:
            return
        records = parse(source.read(0)[1]).rows
        rollouts = [Found(file, record, flat(record, file)) for record in records[:_ROLLOUTS]]
        words = Words(run, rollouts)
        shown: list[Rollout] = []
        for one in rollouts:
            numbers = one.numbers
            reward, length = as_float(numbers.get("total_reward")), as_float(numbers.get("ac_len"))
            head = (
                f"iteration {file.iteration} {file.name}, group {numbers.get('group_idx')}, "
                f"trajectory {numbers.get('traj_idx')}: reward {value(reward)}, "
                f"{value(length)} tokens"
            )
            shown.append(Rollout(head, tuple(words.of(one).shown())))
        self._rollouts = (file.path, tuple(shown))
