"""Shows the progress of a sweep: as lines, as a bar on a terminal, as observations in the store,
and on the display of a backend that shows jobs. A failure to show it never affects the sweep."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TextIO

from sweeper.backends.base import Backend
from sweeper.common.codec import SCHEMA
from sweeper.common.sanitize import raw, sanitize
from sweeper.errors import SweeperError
from sweeper.scheduler.context import Context
from sweeper.store.documents import encode, timestamp
from sweeper.sweep import labels
from sweeper.sweep.folder import token
from sweeper.sweep.labels import LOWERED
from sweeper.sweep.launcher import Observations
from sweeper.sweep.observation import Observation
from sweeper.sweep.states import OPEN, State

if TYPE_CHECKING:
    from sweeper.sweep.run_table import View


_REPORTED = (
    State.RUNNING,
    State.SUBMITTED,
    State.FAILED,
    State.PREEMPTED,
    State.LOST,
    State.CANCELLED,
)

_OVER = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Summary(NamedTuple):
    """The state of a sweep. `counts` has the number of runs in each state. `to_start` counts the
    runs that the launcher will still start.

    `unreachable` says what does not answer. `held` says why no runs are started. `held_back` counts
    the runs that wait for a user's action. `limit` is the number of jobs that may run at the same
    time, if that differs from the plan's `max_parallel`, and `limit_by` the reason, a key of
    `labels.LOWERED`. `alarms` are messages for users. `again` counts, by their last state, the runs
    that have run before and will be started again. `waits` are messages about stages or the race,
    for example that runs wait in vain (see `Stages`). `ends` says why the scheduler ends before the
    sweep is over. `to_come` counts the runs that stages or the race will create later.
    """

    counts: Counter[State]
    to_start: int
    unreachable: str | None
    held: str | None = None
    limit: int | None = None
    held_back: int = 0
    alarms: tuple[str, ...] = ()
    limit_by: str = "service"
    again: Mapping[State, int] = MappingProxyType({})
    waits: tuple[str, ...] = ()
    ends: str | None = None
    to_come: int = 0

    @property
    def total(self) -> int:
        """The number of runs, including `to_come`."""
        return self.counts.total() + self.to_come

    @property
    def open(self) -> int:
        """The number of runs with a job."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing is left to start."""
        return self.open == 0 and self.to_start == 0


def line(summary: Summary) -> str:
    """Describe a summary in a line: `12:01:03  7/18 succeeded, 4 running, 1 failed, 6 to start`."""
    return f"{time.strftime('%H:%M:%S')}  {_sentence(summary)}"


def exit_code(summary: Summary) -> int:
    """Return the exit code that `sweeper status` has for a sweep: 4 while runs are running, still
    to start or held back, else 0 if all runs have succeeded, else 3."""
    if not summary.finished or summary.held_back:
        return 4
    return 0 if summary.counts[State.SUCCEEDED] == summary.counts.total() else 3


def printer(stream: TextIO) -> Callable[[Summary], None]:
    """Return a function that prints a line for a summary. The function prints each alarm, and each
    reason why runs wait or none is started, only once."""
    printed: set[str] = set()

    def tell(summary: Summary) -> None:
        print(sanitize(line(summary)), file=stream, flush=True)
        for text in _news(summary, printed):
            print(text, file=stream, flush=True)

    return tell


@contextmanager
def showing_progress() -> Generator[Callable[[Summary], None]]:
    """Yield a function that shows a summary as a bar on a terminal, and as a line elsewhere."""
    if not sys.stderr.isatty():
        yield printer(sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # The reason is plain text, not markup.
    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=raw(sys.stderr))) as bar:
        task = bar.add_task("starting")
        printed: set[str] = set()

        def show(summary: Summary) -> None:
            bar.update(
                task,
                total=summary.total,
                completed=sum(summary.counts[s] - summary.again.get(s, 0) for s in _OVER),
                description=sanitize(_sentence(summary)),
            )
            for text in _news(summary, printed):
                bar.console.print(text, markup=False, highlight=False)

        yield show


def _news(summary: Summary, printed: set[str]) -> list[str]:
    """Return the lines of a summary that are not in `printed`, and add them to `printed`."""
    held = [f"held: {summary.held}"] if summary.held is not None else []
    lines = [*held, *summary.waits, *summary.alarms]
    lines += [] if summary.ends is None else [summary.ends]
    lines = map(sanitize, lines)
    fresh = [text for text in dict.fromkeys(lines) if text not in printed]
    printed.update(fresh)
    return fresh


def _sentence(summary: Summary) -> str:
    counts = summary.counts
    parts = [f"{counts[State.SUCCEEDED]}/{summary.total} succeeded"]
    again = summary.again
    fresh_counts = {state: counts[state] - again.get(state, 0) for state in _REPORTED}
    parts += [f"{number} {state.value}" for state, number in fresh_counts.items() if number]
    if fresh := summary.to_start - sum(again.values()):
        parts.append(f"{fresh} to start")
    if again:
        parts.append(f"{sum(again.values())} to start again")
    if summary.limit is not None:
        parts.append(f"at most {summary.limit} at once: {LOWERED[summary.limit_by]}")
    if summary.unreachable:
        parts.append(f"waiting: {summary.unreachable}")
    return ", ".join(parts)


_SECONDS = 1.0
"""Seconds between two updates of a display. The changes of many steps are shown as one."""


class Publisher:
    """Writes a sweep's observations to its store when the observations change. `starting` says
    whether this launcher starts runs."""

    def __init__(self, context: Context, *, starting: bool) -> None:
        self._context = context
        self._starting = starting
        self._published: dict[str, object] | None = None

    def publish(self, observations: Observations) -> None:
        """Write the observations (such as silent workers, or a backend that does not answer), if
        they have changed. Also write the launcher's process id, and whether the launcher starts
        runs."""
        observed = {run: seen.document() for run, seen in observations.observed.items()}
        usage = None if observations.usage is None else observations.usage.document()
        fields: dict[str, object] = {
            **observations._asdict(),
            "observed": observed,
            "usage": usage,
            "starting": self._starting,
        }
        del fields["pid"]
        if fields != self._published:
            document = {"schema": SCHEMA, "time": timestamp(), "pid": os.getpid()} | fields
            self._context.store.replace(self._context.folder.observations, encode(document))
            self._published = fields


class StatusDisplay:
    """Shows the sweep and its runs on the first backend that has a display."""

    def __init__(self, backends: Iterable[Backend], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock()
        self._display = next((backend for backend in backends if backend.shows), None)
        self._words: dict[str, str] = {}
        self._summary: Summary | None = None

    def show(
        self, summary: Summary, views: Mapping[str, "View"], observed: Mapping[str, Observation]
    ) -> None:
        """Show the sweep and its runs. If the display fails, the next call tries again."""
        if self._display is None or (self._clock() < self._next and not summary.finished):
            return
        words = {
            token(run, view.state.attempt): _word(view, observed.get(run))
            for run, view in views.items()
            if view.state.attempt
        }
        news = {job: word for job, word in words.items() if self._words.get(job) != word}
        if not news and summary == self._summary:
            return
        self._next = self._clock() + _SECONDS
        try:
            self._display.show(line(summary), news)
        except SweeperError:
            # Nothing depends on the display, and unreachable backends are reported elsewhere.
            return
        self._words, self._summary = words, summary


def _word(view: "View", seen: Observation | None) -> str:
    return view.state.state.value if seen is None else labels.observed(seen)
