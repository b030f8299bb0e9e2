"""Limits on concurrency: training clients by seats for sessions, samples by how many are drawn.

A request that must wait still gets a promise. The promise says why it is paused.
"""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future

from sweeper.engine.limits import Gate, Limits, Paused
from sweeper.engine.meter import Meter
from sweeper.engine.scheduler import Lane, Promises, Reply, Scheduler, fail

_SEATS = Paused("paused_rate_limit", "concurrent training clients rate limit hit")
_SAMPLES = Paused("paused_capacity", "too many samples are being drawn at once")

Job = Callable[[], Reply]


class Admission:
    """The admission of jobs to the scheduler, within the limits."""

    def __init__(
        self, promises: Promises, scheduler: Scheduler, meter: Meter, limits: Limits
    ) -> None:
        self._promises, self._scheduler, self._meter = promises, scheduler, meter
        self._seats, self._draws = Gate(limits.max_sessions), Gate(limits.max_concurrent_samples)
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Future[Reply]]] = {}

    def _admit(
        self, gate: Gate, key: str, name: str, start: Callable[[], None], why: Paused
    ) -> None:
        # pause before entering: a leaving job may start this one at any moment
        self._promises.pause(name, why)
        if not gate.enter(key, start):
            self._meter.add(key.partition(":")[0], paused=1)

    def training_client(self, session: str, name: str, lane: Lane, job: Job) -> None:
        """Promise a training client. It is created once its session has a seat."""
        future = self._promises.create(name)
        if future is None:
            return
        with self._lock:
            self._waiting.setdefault(session, set()).add(future)

        def start() -> None:
            with self._lock:
                self._waiting.get(session, set[Future[Reply]]()).discard(future)
            self._promises.resume(name)
            self._scheduler.submit(lane, future, job)

        future.add_done_callback(lambda _: self._promises.resume(name))
        self._admit(self._seats, session, name, start, _SEATS)

    def full(self) -> bool:
        """Return whether a sample would have to wait."""
        return self._draws.full()

    def sample(self, name: str, lane: Lane, job: Job) -> None:
        """Promise a sample. It is drawn once few enough others are being drawn."""
        future = self._promises.create(name)
        if future is None:
            return

        def start() -> None:
            self._promises.resume(name)
            self._scheduler.submit(lane, future, job)

        def done(_future: Future[Reply]) -> None:  # or cancelled while it waited
            self._promises.resume(name)
            self._draws.forget(name)

        future.add_done_callback(done)
        self._admit(self._draws, name, name, start, _SAMPLES)

    def ended(self, session: str) -> None:
        """Free the seat of a session that has ended, and fail its waiting requests."""
        self._seats.forget(session)
        with self._lock:
            waiting = self._waiting.pop(session, ())
        fail(waiting, "the session has ended")

    def keep(self, sessions: Collection[str]) -> None:
        """Free the seats of all other sessions. Waiting requests go on waiting."""
        for session in self._seats.inside() - set(sessions):
            self._seats.leave(session)
