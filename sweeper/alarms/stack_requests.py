"""Requests the Python stacks of stalled recipes from workers. The alarm `stalled` waits for the
stacks for a bounded time, and includes the stacks."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from sweeper.alarms.watcher import Detection
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import StoreError
from sweeper.sweep import stacks
from sweeper.sweep.folder import SweepFolder

_SECONDS = 20.0
"""Seconds to wait for stacks. Workers look for requests every 5 s, and a recipe has 3 s to
answer."""
_MOST_WAITING = 20
"""The largest number of requests at the same time. If more attempts stall, they probably wait
for the same thing."""
_MOST_CHARACTERS = 8_000
_FRAMES = 4
_LINES = 24
_SHORT_CHARACTERS = 1_500


class _Waiting(NamedTuple):
    noticed: Detection
    word: str
    until: float


class StackRequests:
    """The requests for the stacks of stalled attempts. `clock` returns monotonic seconds."""

    def __init__(self, folder: SweepFolder, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._waiting: list[_Waiting] = []

    def ask(self, noticed: Detection) -> bool:
        """Request the stacks of an attempt, and return True. If too many requests are unanswered,
        request nothing and return False. Raises `StoreError`."""
        if len(self._waiting) >= _MOST_WAITING:
            return False
        word = stacks.ask(self._folder, noticed.run, noticed.attempt)
        self._waiting.append(_Waiting(noticed, word, self._clock() + _SECONDS))
        return True

    def answered(self, is_running: Callable[[str, int], bool]) -> Iterator[tuple[Detection, str]]:
        """Yield (detection, stacks) for each request that was answered, and (detection, "") for
        each request whose attempt or time ended without an answer."""
        for entry in list(self._waiting):
            run, attempt = entry.noticed.run, entry.noticed.attempt
            text = self._read(entry)
            if text or self._clock() >= entry.until or not is_running(run, attempt):
                self._waiting.remove(entry)
                yield entry.noticed, text

    def _read(self, entry: _Waiting) -> str:
        with suppress(StoreError):
            answer = stacks.read(self._folder, entry.noticed.run, entry.noticed.attempt)
            if answer is not None and answer.word == entry.word:
                return sanitize_lines(answer.text[:_MOST_CHARACTERS]).strip("\n")
        return ""


def shortened(text: str) -> str:
    """Shorten stacks for a message: keep only the innermost frames of each thread."""
    lines: list[str] = []
    for block in text.split("\n\n"):
        rows = block.splitlines()
        lines += rows[: _FRAMES + 1] + (["  ..."] if len(rows) > _FRAMES + 1 else [])
    more = ["..."] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])[:_SHORT_CHARACTERS]
