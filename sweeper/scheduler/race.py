"""The race for seeds of a running sweep: when all runs of a round have ended, which cells get more.

A round is recorded exclusively before any run that it adds is started, so a launcher that is killed
and the next one agree. Nothing else is remembered.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import AlreadyExists, StoreError
from sweeper.metrics.objective import sign_of
from sweeper.results.race import contenders, level, next_round
from sweeper.scheduler.context import Context
from sweeper.scheduler.stages import Stages
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.metric import Metric
from sweeper.sweep.plan import Race, Run
from sweeper.sweep.race import judged
from sweeper.sweep.race_rounds import Ended, Round
from sweeper.sweep.request import Asked
from sweeper.sweep.run_table import RunTable


class _Results(NamedTuple):
    """The values of each cell, and the cells with a run that has diverged."""

    values: dict[str, list[float]]
    diverged: set[str]


class Racing(Stages):
    """The race of one sweep, as of the last `look`, in place of stages, which it has none of."""

    def __init__(self, context: Context, run_table: RunTable) -> None:
        super().__init__(context, run_table)
        self._why_not: str | None = None

    @property
    def messages(self) -> tuple[str, ...]:
        """Return why the race does not go on, unless somebody does something."""
        left = sum(self._plan.unknown.values())
        return () if self._why_not is None else (f"race: {self._why_not} (up to {left} runs)",)

    @property
    def to_come(self) -> int:
        """Return the most runs that the race may still start."""
        return 0 if self._why_not is not None else sum(self._plan.unknown.values())

    @property
    def held_back(self) -> int:
        """Return the most runs that the race would start if it went on."""
        return 0 if self._why_not is None else sum(self._plan.unknown.values())

    def look(self, cancelled: Asked | None = None) -> None:
        """Record the next round once all runs of the last have ended; none if the sweep was
        `cancelled`. Files that cannot be read are `trouble`, and are read again at the next
        look."""
        self._recorded, self.trouble, self._why_not = None, (), None
        race, metric = self._plan.race, self._plan.metric
        if race is None or metric is None or not self._plan.unknown:
            return
        if cancelled is not None:
            advice = "the next launch or retry goes on with it"
            self._why_not = f"{cancelled.by} has cancelled the sweep: {advice}"
            return
        fates = Counter(self._fate(run.id) for run in self._planned())
        if fates["open"]:
            return
        if fates["cancelled"]:
            self._why_not = "waits for runs that were cancelled: retry them, or launch again"
            return
        try:
            decision = self._decide(race, metric)
            if decision is not None:
                self._record(decision)
        except StoreError as error:
            self.trouble = (str(error),)

    def _planned(self) -> Iterator[Run]:
        return (run for run in self._plan.runs if not run.retired)

    def _decide(self, race: Race, metric: Metric) -> Round | None:
        """Return the next round. None if too few cells have a value."""
        results = self._results(metric)
        if len(results.values.keys() | results.diverged) < 2 or not results.values:
            self._why_not = f"waits for cells with a value of {metric.name}: see why runs failed"
            return None
        last = self._plan.rounds[-1].seeds if self._plan.rounds else race.least
        seeds = min(max(race.least, last), race.most)
        alive = contenders(results.values, sign_of(metric.goal), level(seeds, race.most))
        ended: Ended | None = "identical" if alive is None else None
        runs: tuple[str, ...] = ()
        if alive is not None and len(alive) == 1:
            ended = "clear"
        elif alive is not None:
            seeds, runs = self._next_runs(race, set(alive), seeds)
            ended = None if runs else "spent"
        return Round(seeds, runs, ended, judged(self._plan), timestamp())

    def _next_runs(self, race: Race, alive: set[str], seeds: int) -> tuple[int, tuple[str, ...]]:
        """Return how many seeds the cells that are `alive` go up to, and the runs that this takes:
        a cell that was behind for a while catches up."""
        there = Counter(run.cell for run in self._planned())
        started = {run.id for run in self._planned()}
        while True:
            runs: list[str] = []
            lacks = {cell: seeds - there[cell] for cell in alive}
            for run in race.runs:
                if lacks.get(run.cell, 0) > 0 and run.id not in started:
                    lacks[run.cell] -= 1
                    runs.append(run.id)
            if runs or seeds >= race.most:
                return seeds, tuple(runs)
            seeds = next_round(seeds, race.most)

    def _results(self, metric: Metric) -> _Results:
        """Read the values of all runs that have succeeded."""
        recorded = {run.id: run for run in self._sweep().runs}
        values: dict[str, list[float]] = {}
        diverged: set[str] = set()
        for run in self._planned():
            if self._fate(run.id) != "succeeded" or run.id not in recorded:
                continue
            point = recorded[run.id].value(metric._asdict())
            if point is not None and math.isfinite(point.value):
                values.setdefault(run.cell, []).append(point.value)
            elif point is not None:
                diverged.add(run.cell)
        return _Results({c: own for c, own in values.items() if c not in diverged}, diverged)

    def _record(self, decision: Round) -> None:
        """Record a round, unless an earlier launcher has, and go on with what is on record."""
        path = self._context.folder.race_round(len(self._plan.rounds) + 1)
        with suppress(AlreadyExists):
            self._context.store.create(path, encode(decision.document()))
        self._plan = self._context.folder.with_chosen(self._plan)
        self._run_table.grow(self._plan)
