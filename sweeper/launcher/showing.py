"""What a launcher tells a backend that people look at: how the sweep stands, and a
word for each job. Only what has changed, and never to the sweep's cost."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sweeper import labels
from sweeper.backends.base import Backend
from sweeper.errors import SweeperError
from sweeper.launcher.progress import Summary, line
from sweeper.model.observation import Observation
from sweeper.store.layout import token

if TYPE_CHECKING:
    from sweeper.launcher.board import View

__all__ = ["Showing"]

_SECONDS = 1.0
"""Between two times that something is shown: what runs change in a hundred steps is one change."""


class Showing:
    """Passes on what is new; to a backend that shows nothing, nothing."""

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock()
        self._display = backend if backend.shows else None
        self._words: dict[str, str] = {}
        self._summary: Summary | None = None

    def show(
        self, summary: Summary, views: Mapping[str, "View"], observed: Mapping[str, Observation]
    ) -> None:
        """How the sweep and its runs stand. What cannot be shown now is tried again next time."""
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
