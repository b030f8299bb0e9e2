"""Counts each session's usage: tokens trained and sampled, steps, and paused requests. Also counts
tokens by hour and model, as a service bills them."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

ENDED = 1000  # how many ended sessions are listed; older ones count only in the total


HOURS = 14 * 24  # how many hours billed usage is kept
_SECONDS = 3600


class Billed(NamedTuple):
    """The key under which billed tokens are counted. The hour begins at `hour` (Unix seconds).
    `kind` is the kind of token, named as in Tinker's billing. `cached` is True for prompt tokens
    that were in the cache of prompts."""

    hour: int
    session: str
    model: str
    kind: str
    cached: bool = False


@dataclass
class Usage:
    """The usage of one session, or of all sessions.

    `trained_tokens` went through forward and backward passes, `forward_tokens` through forward
    passes only. `prompt_tokens` counts a request's prompt once, even if the request draws several
    samples. `cached_tokens` are the prompt tokens that were in the cache of prompts (`prefixes`).
    `sampled_tokens` were generated. `paused` counts requests that had to wait. `refused` counts
    requests that got a 429, and `failed` counts simulated failures; both are 0 in the usage of one
    session.
    """

    trained_tokens: int = 0
    forward_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    steps: int = 0
    samples: int = 0
    refused: int = 0
    failed: int = 0
    paused: int = 0

    def add(self, counts: dict[str, int]) -> None:
        """Add `counts` to the fields of the same names."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class _Line:
    """A session in the meter's report."""

    session_id: str
    tags: list[str]
    user_metadata: dict[str, object] | None
    display_name: str | None
    started: float
    ended: float | None = None
    usage: Usage = field(default_factory=Usage)


class Meter:
    """A record of the usage of each session. Thread-safe. Keeps the last 1,000 ended sessions.
    `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._total = Usage()
        self._billed: dict[Billed, int] = {}
        self._about: dict[str, dict[str, object] | None] = {}

    def open(
        self,
        session: str,
        tags: list[str],
        user_metadata: dict[str, object] | None,
        name: str | None,
    ) -> None:
        """Begin to count the usage of a session."""
        with self._lock:
            self._lines[session] = _Line(session, tags, user_metadata, name, self._clock())
            self._about[session] = user_metadata

    def end(self, session: str) -> None:
        """Mark a session as ended. Its counts are kept."""
        with self._lock:
            line = self._lines.get(session)
            if line is None or line.ended is not None:
                return
            line.ended = self._clock()
            self._ended[session] = None
            while len(self._ended) > ENDED:
                del self._lines[self._ended.popitem(last=False)[0]]

    def add(self, session: str | None, **counts: int) -> None:
        """Add to the counts of a session and to the total; for an unknown session, only to the
        total."""
        with self._lock:
            self._total.add(counts)
            if session is not None and (line := self._lines.get(session)) is not None:
                line.usage.add(counts)

    def bill(self, session: str, model: str, **counts: int) -> None:
        """Add `counts` (named as in `Usage`) to a session's usage, and to its billed tokens for a
        model."""
        self.add(session, **counts)
        hour = int(self._clock()) // _SECONDS * _SECONDS
        cached = counts.get("cached_tokens", 0)
        read = counts.get("prompt_tokens", 0) - cached + counts.get("forward_tokens", 0)
        kinds = {
            Billed(hour, session, model, "training"): counts.get("trained_tokens", 0),
            Billed(hour, session, model, "sampling_prefill"): read,
            Billed(hour, session, model, "sampling_prefill", cached=True): cached,
            Billed(hour, session, model, "sampling_sample"): counts.get("sampled_tokens", 0),
        }
        with self._lock:
            for billed, tokens in kinds.items():
                if tokens:
                    self._billed[billed] = self._billed.get(billed, 0) + tokens
            self._forget(hour - HOURS * _SECONDS)

    def _forget(self, before: int) -> None:
        """Drop the billed usage of hours before `before`."""
        if self._billed and next(iter(self._billed)).hour < before:
            self._billed = {key: n for key, n in self._billed.items() if key.hour >= before}
            sessions = {key.session for key in self._billed} | self._lines.keys()
            self._about = {name: about for name, about in self._about.items() if name in sessions}

    def billed(
        self, begin: float, end: float
    ) -> tuple[dict[Billed, int], dict[str, dict[str, object] | None]]:
        """Return two dicts for the hours from `begin` to `end` (exclusive): from `Billed` to a
        number of tokens, and from a session's id to its user metadata."""
        with self._lock:
            billed = {key: n for key, n in self._billed.items() if begin <= key.hour < end}
            return billed, {key.session: self._about.get(key.session) for key in billed}

    def report(self) -> dict[str, object]:
        """Return `{"total": counts, "sessions": [...]}`, with the newest session first. Times are
        in Unix seconds."""
        with self._lock:
            lines = [asdict(line) for line in reversed(self._lines.values())]
            total = asdict(self._total)
        sessions = [
            {**{k: v for k, v in line.items() if k != "usage"}, **line["usage"]} for line in lines
        ]
        return {"total": total, "sessions": sessions}
