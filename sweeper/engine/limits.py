"""Limits to rehearse a shared service with: who must wait, who is turned away, what fails.

Standard library only: the command line imports it.

- A gate lets so many in at once and the others wait in the order they came: the promise is given,
  and polls for it say why it is paused.
- A bucket gives out so many requests a second; who finds it empty is turned away with a 429 that
  says when to come back.
- Failures are drawn from a seeded generator, one draw for each request that can fail: the same
  requests in the same order fail alike.
"""

import argparse
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sweeper.errors import EngineError

__all__ = ["Bucket", "Failures", "Gate", "Limits", "Paused", "add_limits", "limits_of"]


class Limits(NamedTuple):
    """What a service restricts; None and 0 are no restriction.

    `max_sessions` have training clients at once, `max_concurrent_samples` are drawn at once over
    all sessions, `rate_limit` requests a second are taken, an answer takes at least `latency`
    seconds, and `fail_rate` is the share of requests that fail with a 500; `seed` says which.
    """

    max_sessions: int | None = None
    max_concurrent_samples: int | None = None
    rate_limit: float | None = None
    latency: float = 0.0
    fail_rate: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raise EngineError if a limit is none that can be kept."""
        for name in ("max_sessions", "max_concurrent_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError(f"{name} is {value}: it must be at least 1")
        rate, latency, share = self.rate_limit, self.latency, self.fail_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise EngineError(f"rate_limit is {rate}: it must be above 0 requests a second")
        if not (math.isfinite(latency) and latency >= 0):
            raise EngineError(f"latency is {latency}: it must be 0 seconds or more")
        if not 0 <= share < 1:
            raise EngineError(f"fail_rate is {share}: it must be at least 0 and below 1")

    def arguments(self) -> list[str]:
        """These limits as arguments of `python -m sweeper.engine serve`."""
        default = Limits()
        given = {k: v for k, v in self._asdict().items() if v != getattr(default, k)}
        return [part for k, v in given.items() for part in ("--" + k.replace("_", "-"), str(v))]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Give a parser the flags of `Limits`."""
    flags = parser.add_argument_group("limits, to rehearse a shared service with")
    for name, kind, meaning in (
        ("max-sessions", int, "so many sessions have training clients; others wait, paused"),
        ("max-concurrent-samples", int, "so many samples are drawn at once; others get a 429"),
        ("rate-limit", float, "requests a second; others get a 429"),
        ("latency", float, "seconds that an answer takes at least"),
        ("fail-rate", float, "share of the requests that fail with a 500"),
        ("seed", int, "which requests fail"),
    ):
        default = getattr(Limits(), name.replace("-", "_"))
        flags.add_argument("--" + name, type=kind, default=default, metavar="N", help=meaning)


def limits_of(arguments: argparse.Namespace) -> Limits:
    """The limits that a parser with `add_limits` read."""
    return Limits(**{name: getattr(arguments, name) for name in Limits._fields})


class Paused(NamedTuple):
    """Why a request waits, in the protocol's words: a `queue_state` and its reason."""

    state: str
    reason: str


class Gate:
    """At most `limit` keys inside at once (None: any number); the others wait in their order.

    Who enters hands over what to start then: it is called at once, or by the thread of whoever
    leaves.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._inside = set[str]()
        self._waiting: OrderedDict[str, list[Callable[[], None]]] = OrderedDict()

    def full(self) -> bool:
        """Whether who enters now would have to wait."""
        return self._limit is not None and len(self._inside) >= self._limit

    def inside(self) -> set[str]:
        """The keys that are inside."""
        with self._lock:
            return set(self._inside)

    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def enter(self, key: str, start: Callable[[], None]) -> bool:
        """Call `start` once `key` is inside, at once if it is already. Whether it was at once."""
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
        """Let `key` out and the next ones in; if it waits, it goes on waiting."""
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
        """Let `key` out, or out of the queue: what it wanted to start is not started."""
        with self._lock:
            self._waiting.pop(key, None)
        self.leave(key)


class Bucket:
    """`rate` tokens a second, at most a second's worth (and at least one) kept."""

    def __init__(self, rate: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._most = max(1.0, rate or 0.0)
        self._held, self._since = self._most, now()
        self._lock = threading.Lock()

    def take(self) -> float:
        """0 if a token was there; else the seconds until there is one."""
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
    """Which requests fail: a share of them, the same for the same seed and order."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random = share, random.Random(seed)  # noqa: S311 -- no secret
        self._lock = threading.Lock()

    def next(self) -> bool:
        """Whether the request at hand fails."""
        if not self._share:
            return False
        with self._lock:
            return self._random.random() < self._share
