"""Compares the usage that the service has billed (by hour, session, model and kind) with the usage
that runs have counted."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common import codec
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.results.service_requests import Service
from sweeper.sweep.usage import KINDS, Counts

_HOUR = timedelta(hours=1)
_MOST = timedelta(days=14)
"""The longest period of usage that the service returns in one response."""
_OLDEST = timedelta(days=365)
_NOTHING: Mapping[str, object] = MappingProxyType({})

Owner = tuple[str, str]
"""The owner of usage: a sweep's name and a run's id."""


class Billed(NamedTuple):
    """The billed usage of a run: tokens by kind, and `usd`, the service's estimate of their price.
    `unpriced` is True if the service has no price yet for some of the tokens."""

    counts: Counts = Counts()
    usd: float = 0.0
    unpriced: bool = False

    def plus(self, other: "Billed") -> "Billed":
        """Return the sum."""
        return Billed(
            self.counts.plus(other.counts), self.usd + other.usd, self.unpriced or other.unpriced
        )

    def record(self) -> dict[str, object]:
        """Return the values as plain data."""
        kinds = {kind: getattr(self.counts, kind) for kind in KINDS}
        return {**kinds, "usd": None if self.unpriced else self.usd}


class _Info(NamedTuple):
    type: str
    token_count: int = 0
    cached: bool = False


class _Event(NamedTuple):
    event_info: _Info
    session_id: str = ""
    estimated_cost_usd: float | None = None


class _Session(NamedTuple):
    user_metadata: Mapping[str, object] = _NOTHING


class _Answer(NamedTuple):
    data: tuple[_Event, ...]
    sessions: Mapping[str, _Session] = MappingProxyType({})


def billed(service: Service, since: datetime) -> dict[Owner, Billed]:
    """Return {(sweep, run): usage} with the usage that the service has billed since `since`. Usage
    that is more than 365 days old is left out. Raises `EnvironmentFailure` if the service refuses
    or does not answer."""
    by_owner: dict[Owner, Billed] = {}
    try:
        for answer in _answers(service, since):
            for event in answer.data:
                session = answer.sessions.get(event.session_id, _Session()).user_metadata
                owner = str(session.get("sweeper_sweep")), str(session.get("sweeper_run"))
                if "sweeper_run" in session:
                    by_owner[owner] = by_owner.get(owner, Billed()).plus(_of(event))
    except StoreError as error:
        raise EnvironmentFailure(
            f"the service's billing has an unexpected format: {error}"
        ) from error
    return by_owner


def _of(event: _Event) -> Billed:
    info, tokens = event.event_info, event.event_info.token_count
    kind = {
        "training": "train",
        "sampling_sample": "sample",
        "sampling_prefill": "cached" if info.cached else "prefill",
    }.get(info.type)
    if kind is None:
        return Billed()
    cost = event.estimated_cost_usd
    return Billed(Counts(**{kind: tokens}), cost or 0.0, unpriced=cost is None and tokens > 0)


def _answers(service: Service, since: datetime) -> Iterator[_Answer]:
    end = _hour(datetime.now(UTC)) + _HOUR
    begin = max(_hour(since), end - _OLDEST)
    while begin < end:
        until = min(end, begin + _MOST)
        path = "billing/usage/events"
        answer = service.ask(path, "billing", starting_on=_text(begin), ending_before=_text(until))
        yield codec.read(_Answer, answer, path)
        begin = until


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def explained(counted: Counts, billed: Counts, *, fresh: bool, unseen: int) -> list[str]:
    """Return lines that explain to the user how usage that sweeper `counted` differs from usage
    that the service `billed`; empty if they do not differ. `fresh` means that the runs used the
    service in the last hours. `unseen` is the number of runs without any counted usage."""
    lines: list[str] = []
    more = {kind: getattr(billed, kind) - getattr(counted, kind) for kind in KINDS}
    billed_only = {kind: n for kind, n in more.items() if n > 0}
    counted_only = {kind: -n for kind, n in more.items() if n < 0}
    # One side may count tokens as cached that the other counts as prefill. The total is the same.
    moved = min(billed_only.get("cached", 0), counted_only.get("prefill", 0))
    if moved:
        lines.append(f"{moved:,} prompt tokens were read from the cache; only the bill shows this")
        _less(billed_only, "cached", moved)
        _less(counted_only, "prefill", moved)
    if billed_only:
        why = "requests of runs that were stopped before the answer came"
        why += ", and runs whose requests are not counted" if unseen else ""
        lines.append(f"billed but not counted: {_counts(billed_only)} ({why})")
    if counted_only:
        why = "billing lags by some hours" if fresh else "the service no longer lists this usage"
        lines.append(f"counted but not billed: {_counts(counted_only)} ({why})")
    return lines


def _less(counts: dict[str, int], kind: str, tokens: int) -> None:
    counts[kind] -= tokens
    if not counts[kind]:
        del counts[kind]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens:,} {kind}" for kind, tokens in counts.items())


def since_first(times: Iterable[str | None]) -> datetime:
    """Return the earliest of some recorded times; now if there are none."""
    begun = sorted(time for time in times if time)
    if not begun:
        return datetime.fromtimestamp(time.time(), UTC)
    return datetime.fromisoformat(begun[0])
