"""Limits that simulate a shared service: concurrency (gates, where requests wait), request rate
(buckets, which answer 429), latency, and seeded failures. Uses only the standard library."""

import argparse
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sweeper.errors import EngineError


class Limits(NamedTuple):
    """The limits of a service. The defaults mean no limit. `max_sessions` limits the sessions with
    training clients. `max_concurrent_samples` limits the samples that all sessions draw at the same
    time. `rate_limit` limits the requests for work (such as training or sampling) per second.
    `latency` is the minimum time in seconds from a request to its result. `fail_rate` is the
    fraction of requests (for work or for results) that fail with a 500. `seed` determines which
    requests fail."""

    max_sessions: int | None = None
    max_concurrent_samples: int | None = None
    rate_limit: float | None = None
    latency: float = 0.0
    fail_rate: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raise EngineError if a limit is invalid."""
        for name in ("max_sessions", "max_concurrent_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError(f"{name} is {value}: it must be at least 1")
        rate, latency, share = self.rate_limit, self.latency, self.fail_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise EngineError(f"rate_limit is {rate}: it must be above 0 requests per second")
        if not (math.isfinite(latency) and latency >= 0):
            raise EngineError(f"latency is {latency}: it must be 0 seconds or more")
        if not 0 <= share < 1:
            raise EngineError(f"fail_rate is {share}: it must be at least 0 and below 1")

    def arguments(self) -> list[str]:
        """Return these limits as arguments of `python -m sweeper.engine serve`."""
        default = Limits()
        changed = {k: v for k, v in self._asdict().items() if v != getattr(default, k)}
        return [part for k, v in changed.items() for part in ("--" + k.replace("_", "-"), str(v))]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `Limits` to a parser."""
    flags = parser.add_argument_group("simulated limits of a shared service")
    for name, kind, meaning in (
        ("max-sessions", int, "maximum number of sessions with training clients; more are paused"),
        (
            "max-concurrent-samples",
            int,
            "maximum number of samples at the same time; more wait or get a 429",
        ),
        ("rate-limit", float, "maximum number of requests per second; more get a 429"),
        ("latency", float, "minimum response time in seconds"),
        ("fail-rate", float, "fraction of requests that fail with a 500"),
        ("seed", int, "seed for choosing the requests that fail"),
    ):
        default = getattr(Limits(), name.replace("-", "_"))
        flags.add_argument("--" + name, type=kind, default=default, metavar="N", help=meaning)


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Return the limits in parsed `arguments`. The parser must have the flags of `add_limits`."""
    return Limits(**{name: getattr(arguments, name) for name in Limits._fields})


class Paused(NamedTuple):
    """The reason why a request waits: the protocol's `queue_state` and `queue_state_reason`."""

    state: str
    reason: str


class Gate:
    """A gate that admits at most `limit` keys at the same time; None means no limit. A key is the
    name of a session or request. Keys beyond the limit wait, in the order of their arrival. `leave`
    and `forget` admit waiting keys, and call the keys' functions `start` (see `enter`)."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._inside = set[str]()
        self._waiting: OrderedDict[str, list[Callable[[], None]]] = OrderedDict()

    def full(self) -> bool:
        """Return whether a new key would have to wait."""
        return self.limit is not None and len(self._inside) >= self.limit

    def inside(self) -> set[str]:
        """Return the admitted keys."""
        with self._lock:
            return set(self._inside)

    def waiting(self) -> list[str]:
        """Return the waiting keys, in the order of their arrival."""
        with self._lock:
            return list(self._waiting)

    def enter(self, key: str, start: Callable[[], None]) -> bool:
        """Call `start` as soon as `key` is admitted. Return False if `key` has to wait, else
        True."""
        with self._lock:
            now = key in self._inside or (not self.full() and not self._waiting)
            if now:
                self._inside.add(key)
            else:
                self._waiting.setdefault(key, []).append(start)
        if now:
            start()
        return now

    def leave(self, key: str) -> None:
        """Remove `key` if it is admitted, and admit waiting keys."""
        due = list[Callable[[], None]]()
        with self._lock:
            self._inside.discard(key)
            while self._waiting and not self.full():
                name, starts = self._waiting.popitem(last=False)
                self._inside.add(name)
                due += starts
        for start in due:
            start()

    def forget(self, key: str) -> None:
        """Remove `key`, whether admitted or waiting, and admit waiting keys."""
        with self._lock:
            self._waiting.pop(key, None)
        self.leave(key)


class Bucket:
    """A token bucket that gains `rate` tokens per second; None means no limit. The capacity is
    `rate` tokens, or one token if `rate` is below 1."""

    def __init__(self, rate: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._most = max(1.0, rate or 0.0)
        self._held, self._since = self._most, now()
        self._lock = threading.Lock()

    def take(self) -> float:
        """Take a token and return 0. If the bucket has no token, return the seconds until the next
        token."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._now()
            self._held = min(self._most, self._held + (now - self._since) * self._rate)
            self._since = now
            if self._held < 1:
                return (1 - self._held) / self._rate
            self._held -= 1
            return 0.0


class Failures:
    """A generator of simulated failures for the fraction `share` of requests. The same seed and the
    same order of requests give the same failures."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random = share, random.Random(seed)  # noqa: S311 -- no secret
        self._lock = threading.Lock()

    def next(self) -> bool:
        """Return whether the current request fails."""
        if not self._share:
            return False
        with self._lock:
            return self._random.random() < self._share
