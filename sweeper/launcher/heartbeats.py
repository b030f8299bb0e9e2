"""What the launcher sees of workers that live: how long they have been silent, and whether the
service holds their recipes back."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.model import heartbeat
from sweeper.model.heartbeat import SILENT, Heartbeat
from sweeper.store.documents import read_as
from sweeper.store.files import Store
from sweeper.store.layout import Layout

__all__ = ["Heartbeats", "read_heartbeat", "why_paused"]

_WORDS = {"rate_limit": "rate limit", "capacity": "capacity", "quota": "quota"}


class _Beat(NamedTuple):
    stamp: int
    seen: float
    body: Heartbeat


class Heartbeats:
    """The heartbeats of attempts that may be at work, by a clock of our own: a worker's may differ
    by hours. An attempt is first seen alive when it is first asked about."""

    def __init__(self, store: Store, layout: Layout, clock: Callable[[], float]) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock
        self._beats: dict[tuple[str, int], _Beat] = {}

    def look(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Look at the heartbeats of these (run, attempt), and forget those of others."""
        now = self._clock()
        folder = f"{self._layout.heartbeats}/"
        stamps = {
            entry.path.removeprefix(folder): entry.stamp
            for entry in self._store.list(self._layout.heartbeats)
        }
        beats: dict[tuple[str, int], _Beat] = {}
        for run, attempt in attempts:
            stamp = stamps.get(f"{run}.{attempt}", 0)
            before = self._beats.get((run, attempt))
            if before is None or before.stamp != stamp:
                path = self._layout.heartbeat(run, attempt)
                body = read_heartbeat(self._store, path) if stamp else SILENT
                before = _Beat(stamp, now, body)
            beats[run, attempt] = before
        self._beats = beats

    def quiet(self, run: str, attempt: int) -> float:
        """Seconds since the heartbeat was last seen to change."""
        return self._clock() - self._beats[run, attempt].seen

    def of(self, run: str, attempt: int) -> tuple[float, Mapping[str, Any]]:
        """`quiet`, and what the heartbeat says (`paused`, `machine`, `host`): nothing while there
        is none."""
        beat = self._beats.get((run, attempt))
        return (0.0, {}) if beat is None else (self._clock() - beat.seen, beat.body.document)

    def paused(self, run: str, attempt: int) -> str | None:
        """`rate limit since 12:01:03Z`, when the service holds the run back."""
        return why_paused(self._beats[run, attempt].body)


def read_heartbeat(store: Store, path: str) -> Heartbeat:
    """The heartbeat in a file. One that cannot be read is a heartbeat all the same."""
    try:
        return read_as(store, path, heartbeat.read)
    except (NotFound, StoreError):
        return SILENT


def why_paused(beat: Heartbeat) -> str | None:
    """What a heartbeat says of a run that the service holds back: `rate limit since 12:01:03Z`."""
    if beat.paused is None:
        return None
    reason, since = beat.paused
    word = _WORDS.get(reason, reason)
    return f"{word} since {since.partition('T')[2] or since}" if since else word
