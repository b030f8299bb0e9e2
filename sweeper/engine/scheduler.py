"""Who waits for what: promises, and lanes of jobs that a few worker threads take turns at.

A lane holds the requests of one training client, which run one at a time and in the order of
their sequence numbers, however they arrive; or those of one sampler, the newest first. Lanes take
turns, so a client with many requests does not starve the others.

The newest first, since the next turn of an episode begins with what was read a moment ago for its
last one (`prefixes.py`). Of hundreds of episodes that are begun at once few are then under way at a
time, and what these begin with is still kept; in the order of arrival all of them are, each turn of
one after a turn of every other, by which time it is not. So that none waits for ever, every so many
times the oldest is taken.
"""

import collections
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from sweeper.engine.errors import RequestError
from sweeper.engine.limits import Paused

__all__ = ["Lane", "Promises", "Reply", "Scheduler", "fail", "failure"]

log = logging.getLogger("sweeper.engine")


class Reply(NamedTuple):
    """What a client gets for a promise: bytes of protobuf, or a JSON document."""

    body: bytes | dict[str, object]


def failure(message: str, category: str) -> Reply:
    """A request that failed; `category` is `user` or `server`, which the SDK tells apart."""
    return Reply({"error": message, "category": category})


def fail(futures: Iterable[Future[Reply]], message: str) -> None:
    """Answer requests that have not begun, unless they were given up, with a failure."""
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_result(failure(message, "user"))


Work = Callable[[], Reply]


class Promises:
    """Promises by id: kept until they were fetched, and a while longer.

    A client that lost an answer asks again, so a fetched promise stays for `linger` seconds but
    no more than `most` of them do; one that nobody fetches is dropped after `forget` seconds.
    """

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
        """A new promise, or None when there is one of that name: the request was sent again."""
        with self._lock:
            if name in self._open or name in self._fetched:
                return None
            future = Future[Reply]()
            self._open[name] = future, time.monotonic()
            return future

    def get(self, name: str) -> Future[Reply] | None:
        """The promise of that name, or None when there is none or none any more."""
        with self._lock:
            found = self._open.get(name) or self._fetched.get(name)
            return found[0] if found else None

    def pause(self, name: str, why: Paused) -> None:
        """Say of a promise that what it is for has to wait."""
        self._paused[name] = why

    def resume(self, name: str) -> None:
        """It need not wait any more."""
        self._paused.pop(name, None)

    def paused(self, name: str) -> Paused | None:
        """Why a promise has to wait; None if it need not."""
        return self._paused.get(name)

    def since(self, name: str) -> float:
        """When an answer was first asked for, on the monotonic clock; 0 if it was fetched."""
        found = self._open.get(name)
        return found[1] if found else 0.0

    def fetched(self, name: str) -> None:
        """Remember that a client has had the answer."""
        with self._lock:
            if found := self._open.pop(name, None):
                self._fetched[name] = found[0], time.monotonic()
            while len(self._fetched) > self._most:
                self._fetched.popitem(last=False)

    def sweep(self, now: float | None = None) -> None:
        """Drop what has been kept long enough."""
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
"""Of so many requests of a sampler that are taken one is the oldest."""


class _Job(NamedTuple):
    future: Future[Reply]
    work: Work


class Lane:
    """Jobs that belong together. `ordered`: by sequence number, from 1, one at a time; else the
    newest first."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered, self._taken = ordered, 0
        self.limit = 1 if ordered else 1_000_000
        self.next = 1
        self.early: list[tuple[int, int, _Job]] = []
        self.early_since = 0.0  # when it began to wait for the number that is next
        self.queue: collections.deque[_Job] = collections.deque()
        self.running = 0
        self.is_ready = False
        self.closed = False

    def take(self) -> _Job:
        """The job that is next; there is one."""
        self._taken += 1
        oldest = self._ordered or self._taken % _OLDEST == 0
        return self.queue.popleft() if oldest else self.queue.pop()


class Scheduler:
    """Worker threads and the lanes they serve."""

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
        """Queue a job. With a sequence number it waits until all before it have been queued.

        A number that has had its turn is a request whose answer was fetched and forgotten, or
        whose lane is closed: it fails and is not run again.
        """
        job = _Job(future, work)
        with self._condition:
            if lane.closed or (sequence is not None and sequence < lane.next):
                future.set_result(failure("this request is over and its answer gone", "user"))
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
        """Give up on a number that requests have waited for so long: they fail, and the next one
        is the one after them. A client that lost a request for good would wait for ever."""
        with self._condition:
            if not lane.early or time.monotonic() - lane.early_since < seconds:
                return
            missing = lane.next
            lane.next = 1 + max(number for number, _, _ in lane.early)
            waiting = [job.future for _, _, job in lane.early]
            lane.early.clear()
        fail(waiting, f"request {missing} of this training client, which goes before, never came")

    def close(self, lane: Lane) -> None:
        """Fail what waits in a lane and refuse what comes; what runs ends by itself."""
        with self._condition:
            lane.closed = True
            waiting = [job.future for job in (*lane.queue, *(job for _, _, job in lane.early))]
            lane.queue.clear()
            lane.early.clear()
        fail(waiting, "the session has ended")

    def stop(self, timeout: float) -> None:
        """Let what runs end, start nothing more, and wait at most `timeout` seconds for it."""
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
            del job  # the promise alone decides how long the answer is kept
            with self._condition:
                lane.running -= 1
                self._mark_ready(lane)


def _answer(work: Work) -> Reply:
    try:
        return work()
    except RequestError as error:
        return failure(str(error), "user")
    except Exception as error:  # one request must not end the service
        log.exception("a request failed")
        return failure(f"{type(error).__name__}: {error}", "server")
