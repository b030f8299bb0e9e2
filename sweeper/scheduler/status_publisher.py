"""Publishes what a launcher observes: for readers of the store, and for a backend that people look
at (tmux), which shows a line for the sweep and a word for each job. Only changes are published, and
a failure to publish never costs the sweep anything."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sweeper import labels
from sweeper.backends.base import Backend
from sweeper.errors import SweeperError
from sweeper.model.launcher import Observations
from sweeper.model.observation import Observation
from sweeper.scheduler.context import Context
from sweeper.scheduler.progress import Summary, line
from sweeper.storage.documents import SCHEMA, encode, timestamp
from sweeper.storage.layout import token

if TYPE_CHECKING:
    from sweeper.scheduler.run_table import View

__all__ = ["Publisher", "StatusDisplay"]

_SECONDS = 1.0
"""Between two updates of a display: the changes of many steps are shown as one."""


class Publisher:
    """Writes what readers are told of a sweep beside its events, when it has changed. `starting`
    says whether this launcher starts runs."""

    def __init__(self, context: Context, *, starting: bool) -> None:
        self._context = context
        self._starting = starting
        self._published: dict[str, object] | None = None

    def publish(self, told: Observations) -> None:
        """Write what is observed and is no state: runs whose worker is quiet or waits, a backend
        that does not answer, why nothing is started. Whether this launcher starts runs, and its
        process, are added."""
        observed = {run: seen.document() for run, seen in told.observed.items()}
        usage = None if told.usage is None else told.usage.document()
        found: dict[str, object] = {
            **told._asdict(),
            "observed": observed,
            "usage": usage,
            "starting": self._starting,
        }
        del found["pid"]
        if found != self._published:
            document = {"schema": SCHEMA, "time": timestamp(), "pid": os.getpid()} | found
            self._context.store.replace(self._context.layout.observations, encode(document))
            self._published = found


class StatusDisplay:
    """Gives the first backend that shows something to people what has changed."""

    def __init__(self, backends: Iterable[Backend], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock()
        self._display = next((backend for backend in backends if backend.shows), None)
        self._words: dict[str, str] = {}
        self._summary: Summary | None = None

    def show(
        self, summary: Summary, views: Mapping[str, "View"], observed: Mapping[str, Observation]
    ) -> None:
        """Show how the sweep and its runs stand. If that fails it is tried again the next time."""
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
            return  # nothing depends on it, and what does not answer is told elsewhere
        self._words, self._summary = words, summary


def _word(view: "View", seen: Observation | None) -> str:
    return view.state.state.value if seen is None else labels.observed(seen)
