"""Schedules requests on a few worker threads, with one queue (lane) per training client or sampler,
and stores the promises of the requests' results."""

import collections
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from sweeper.engine.errors import RequestError
from sweeper.engine.limits import Gate, Limits, Paused
from sweeper.engine.meter import Meter

# The lane of a training client runs its requests one at a time, in the order of their sequence
# numbers, whatever the order of arrival. The lane of a sampler takes the newest request first.
# Lanes take turns, so a client with many requests does not starve the others.
#
# A sampler's newest request goes first, because the next turn of an episode begins with a prompt
# that was just read (`prefixes.py`): few episodes are in progress at a time, and their prompts are
# still cached. At intervals (`_OLDEST`) the oldest request is taken, so that no request waits for
# ever.


log = logging.getLogger("sweeper.engine")


class Reply(NamedTuple):
    """The result of a request: a protobuf message as bytes, or a JSON document."""

    body: bytes | dict[str, object]


def failure(message: str, category: str) -> Reply:
    """Return the result of a failed request. The SDK distinguishes the categories `user` and
    `server`."""
    return Reply({"error": message, "category": category})


def fail(futures: Iterable[Future[Reply]], message: str) -> None:
    """Fail requests that have not begun. Cancelled requests are ignored."""
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_result(failure(message, "user"))


Work = Callable[[], Reply]


class Promises:
    """The promises (future results of requests), by id. A fetched promise is kept for `linger`
    seconds, because a client that lost the response fetches again; at most `most` are kept. A
    finished promise that no client has fetched is dropped `forget` seconds after its creation."""

    def __init__(self, most: int = 2048, linger: float = 60.0, forget: float = 3600.0) -> None:
        self._most, self._linger, self._forget = most, linger, forget
        self._lock = threading.Lock()
        self._paused: dict[str, Paused] = {}
        self._open: dict[str, tuple[Future[Reply], float]] = {}
        self._fetched: collections.OrderedDict[str, tuple[Future[Reply], float]] = (
            collections.OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._open) + len(self._fetched)

    def create(self, name: str) -> Future[Reply] | None:
        """Create a promise. Return None if `name` exists already: the client has repeated a
        request."""
        with self._lock:
            if name in self._open or name in self._fetched:
                return None
            future = Future[Reply]()
            self._open[name] = future, time.monotonic()
            return future

    def get(self, name: str) -> Future[Reply] | None:
        """Return a promise. None if it does not exist, or was dropped."""
        with self._lock:
            promise = self._open.get(name) or self._fetched.get(name)
            return promise[0] if promise else None

    def pause(self, name: str, why: Paused) -> None:
        """Mark a promise as paused."""
        self._paused[name] = why

    def resume(self, name: str) -> None:
        """Mark a promise as not paused."""
        self._paused.pop(name, None)

    def paused(self, name: str) -> Paused | None:
        """Return why a promise is paused; None if it is not paused."""
        return self._paused.get(name)

    def since(self, name: str) -> float:
        """Return the monotonic time at which a promise was created; 0 if the promise does not exist
        or its result was fetched."""
        promise = self._open.get(name)
        return promise[1] if promise else 0.0

    def fetched(self, name: str) -> None:
        """Record that a client has fetched the result."""
        with self._lock:
            if promise := self._open.pop(name, None):
                self._fetched[name] = promise[0], time.monotonic()
            while len(self._fetched) > self._most:
                self._fetched.popitem(last=False)

    def sweep(self, now: float | None = None) -> None:
        """Drop fetched promises after `linger` seconds, and finished promises after `forget`
        seconds."""
        now = time.monotonic() if now is None else now
        with self._lock:
            while self._fetched:
                name, (_, since) = next(iter(self._fetched.items()))
                if now - since < self._linger:
                    break
                del self._fetched[name]
            for name, (future, since) in list(self._open.items()):
                if future.done() and now - since > self._forget:
                    del self._open[name]


_OLDEST = 8
"""A sampler's lane takes its newest request, but its oldest request every eighth time."""


class _Job(NamedTuple):
    future: Future[Reply]
    work: Work


class Lane:
    """A queue of requests. If `ordered`, the requests run one at a time, in the order of their
    sequence numbers, which begin at 1. Otherwise the threads take the newest request, but every
    eighth time the oldest one."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered, self._taken = ordered, 0
        self.limit = 1 if ordered else 1_000_000
        self.next = 1
        self.early: list[tuple[int, int, _Job]] = []
        self.early_since = 0.0  # since when the lane has waited for the next number
        self.queue: collections.deque[_Job] = collections.deque()
        self.running = 0
        self.is_ready = False
        self.closed = False

    def take(self) -> _Job:
        """Take the next job of a non-empty lane."""
        self._taken += 1
        oldest = self._ordered or self._taken % _OLDEST == 0
        return self.queue.popleft() if oldest else self.queue.pop()


class Scheduler:
    """The worker threads and the lanes that they serve."""

    def __init__(self, threads: int = 1) -> None:
        self._condition = threading.Condition()
        self._ready: collections.deque[Lane] = collections.deque()
        self._tie = itertools.count()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"engine-worker-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, lane: Lane, future: Future[Reply], work: Work, sequence: int | None = None
    ) -> None:
        """Queue a job. A job with a sequence number waits until all earlier numbers have been
        queued. A job fails if its number was queued before, or if the lane is closed."""
        job = _Job(future, work)
        with self._condition:
            if lane.closed or (sequence is not None and sequence < lane.next):
                message = "the result of this request was already delivered, and is no longer kept"
                future.set_result(failure(message, "user"))
                return
            if sequence is None:
                lane.queue.append(job)
            else:
                heapq.heappush(lane.early, (sequence, next(self._tie), job))
                if len(lane.early) == 1 or sequence <= lane.next:
                    lane.early_since = time.monotonic()
                self._queue_due(lane)
            self._mark_ready(lane)

    @staticmethod
    def _queue_due(lane: Lane) -> None:
        while lane.early and lane.early[0][0] <= lane.next:
            number, _, due = heapq.heappop(lane.early)
            lane.next = max(lane.next, number + 1)
            lane.queue.append(due)

    def pass_over(self, lane: Lane, seconds: float) -> None:
        """Give up a missing sequence number for which the lane has waited `seconds`. Fail the
        requests with higher numbers, and continue after the highest of these numbers."""
        with self._condition:
            if not lane.early or time.monotonic() - lane.early_since < seconds:
                return
            missing = lane.next
            lane.next = 1 + max(number for number, _, _ in lane.early)
            waiting = [job.future for _, _, job in lane.early]
            lane.early.clear()
        fail(
            waiting,
            f"request {missing} of this training client, which must run first, never arrived",
        )

    def close(self, lane: Lane) -> None:
        """Fail the waiting requests of a lane, and reject new ones. Running requests continue."""
        with self._condition:
            lane.closed = True
            waiting = [job.future for job in (*lane.queue, *(job for _, _, job in lane.early))]
            lane.queue.clear()
            lane.early.clear()
        fail(waiting, "the session has ended")

    def stop(self, timeout: float) -> None:
        """Start no more jobs, and wait at most `timeout` seconds for running ones."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _mark_ready(self, lane: Lane) -> None:
        if lane.queue and not lane.is_ready and lane.running < lane.limit:
            lane.is_ready = True
            self._ready.append(lane)
            self._condition.notify()

    def _take(self) -> tuple[Lane, _Job] | None:
        with self._condition:
            while not self._stopped:
                while self._ready:
                    lane = self._ready.popleft()
                    lane.is_ready = False
                    if lane.queue:
                        job = lane.take()
                        lane.running += 1
                        self._mark_ready(lane)
                        return lane, job
                self._condition.wait()
            return None

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            lane, job = taken
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(_answer(job.work))
            del job  # only the promise may keep the result in memory
            with self._condition:
                lane.running -= 1
                self._mark_ready(lane)


def _answer(work: Work) -> Reply:
    try:
        return work()
    except RequestError as error:
        return failure(str(error), "user")
    except Exception as error:  # a failing request must not end the service
        log.exception("a request failed")
        return failure(f"{type(error).__name__}: {error}", "server")


_SEATS = Paused("paused_rate_limit", "concurrent training clients rate limit hit")
_SAMPLES = Paused("paused_capacity", "too many samples are being drawn at once")

Job = Callable[[], Reply]


class Admission:
    """A gatekeeper that passes jobs to the scheduler as the limits allow. Each session with
    training clients takes one of `max_sessions` seats."""

    def __init__(
        self, promises: Promises, scheduler: Scheduler, meter: Meter, limits: Limits
    ) -> None:
        self._promises, self._scheduler, self._meter = promises, scheduler, meter
        self.seats, self._draws = Gate(limits.max_sessions), Gate(limits.max_concurrent_samples)
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Future[Reply]]] = {}

    def _admit(
        self, gate: Gate, key: str, name: str, start: Callable[[], None], why: Paused
    ) -> None:
        # Pause first: after `enter`, a job that leaves the gate may start this one at any moment.
        self._promises.pause(name, why)
        if not gate.enter(key, start):
            self._meter.add(key.partition(":")[0], paused=1)

    def training_client(self, session: str, name: str, lane: Lane, job: Job) -> None:
        """Create the promise `name`, and queue `job` (the creation of a training client) when the
        session has a seat."""
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
        self._admit(self.seats, session, name, start, _SEATS)

    def full(self) -> bool:
        """Return whether a new sample would have to wait."""
        return self._draws.full()

    def sample(self, name: str, lane: Lane, job: Job) -> None:
        """Create the promise `name`, and queue `job` (the drawing of a sample) when
        `max_concurrent_samples` allows it."""
        future = self._promises.create(name)
        if future is None:
            return

        def start() -> None:
            self._promises.resume(name)
            self._scheduler.submit(lane, future, job)

        # `done` is also called if the request is cancelled while it waits.
        def done(_future: Future[Reply]) -> None:
            self._promises.resume(name)
            self._draws.forget(name)

        future.add_done_callback(done)
        self._admit(self._draws, name, name, start, _SAMPLES)

    def ended(self, session: str) -> None:
        """Free the seat of an ended session, and fail its requests that wait for the seat."""
        self.seats.forget(session)
        with self._lock:
            waiting = self._waiting.pop(session, ())
        fail(waiting, "the session has ended")

    def keep(self, sessions: Collection[str]) -> None:
        """Free the seats of all sessions that are not in `sessions`. Waiting sessions get these
        seats."""
        for session in self.seats.inside() - set(sessions):
            self.seats.leave(session)
