"""Publishes a launcher's observations: for readers of the store, and for a backend with a display
(tmux), which shows a line for the sweep and a word for each job. Only changes are published. A
failure to publish never affects the sweep."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sweeper.backends.base import Backend
from sweeper.common.document_reader import SCHEMA
from sweeper.errors import SweeperError
from sweeper.scheduler.context import Context
from sweeper.scheduler.progress import Summary, line
from sweeper.store.documents import encode, timestamp
from sweeper.sweep import labels
from sweeper.sweep.folder import token
from sweeper.sweep.launcher import Observations
from sweeper.sweep.observation import Observation

if TYPE_CHECKING:
    from sweeper.scheduler.run_table import View

_SECONDS = 1.0
"""The interval between two updates of a display. The changes of many steps are shown as one."""


class Publisher:
    """Writes the observations of a sweep beside its events when they change. `starting` says
    whether this launcher starts runs."""

    def __init__(self, context: Context, *, starting: bool) -> None:
        self._context = context
        self._starting = starting
        self._published: dict[str, object] | None = None

    def publish(self, told: Observations) -> None:
        """Writes observations that are no states: runs whose worker is silent or waits, a backend
        that does not answer, the reason why nothing is started. Adds whether this launcher starts
        runs, and its process."""
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
            self._context.store.replace(self._context.folder.observations, encode(document))
            self._published = found


class StatusDisplay:
    """Passes changes to the first backend that has a display."""

    def __init__(self, backends: Iterable[Backend], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock()
        self._display = next((backend for backend in backends if backend.shows), None)
        self._words: dict[str, str] = {}
        self._summary: Summary | None = None

    def show(
        self, summary: Summary, views: Mapping[str, "View"], observed: Mapping[str, Observation]
    ) -> None:
        """Shows the state of the sweep and its runs. If that fails, it is tried again the next
        time."""
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
