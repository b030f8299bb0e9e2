"""What the launcher sees of workers that live: how long they have been silent, and whether the
service holds their recipes back."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from sweeper.errors import NotFound, StoreError
from sweeper.store.documents import read_json
from sweeper.store.files import Store
from sweeper.store.layout import Layout

__all__ = ["Heartbeats"]

_WORDS = {"rate_limit": "rate limit", "capacity": "capacity", "quota": "quota"}


class _Beat(NamedTuple):
    stamp: int
    seen: float
    paused: str | None


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
                paused = self._paused(run, attempt) if stamp else None
                before = _Beat(stamp, now, paused)
            beats[run, attempt] = before
        self._beats = beats

    def quiet(self, run: str, attempt: int) -> float:
        """Seconds since the heartbeat was last seen to change."""
        return self._clock() - self._beats[run, attempt].seen

    def paused(self, run: str, attempt: int) -> str | None:
        """`rate limit since 12:01:03Z`, when the service holds the run back."""
        return self._beats[run, attempt].paused

    def _paused(self, run: str, attempt: int) -> str | None:
        """What the heartbeat itself says. One that cannot be read is a heartbeat all the same."""
        try:
            found: Any = read_json(self._store, self._layout.heartbeat(run, attempt)).get("paused")
        except (NotFound, StoreError):
            return None
        if not isinstance(found, dict):
            return None
        told = cast(dict[str, Any], found)
        reason, since = str(told.get("reason")), str(told.get("since") or "")
        word = _WORDS.get(reason, reason)
        return f"{word} since {since.partition('T')[2] or since}" if since else word
