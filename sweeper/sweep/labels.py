"""Words that all commands show for codes in documents, such as kinds of observations."""

from collections.abc import Iterable, Sequence

from sweeper.sweep.observation import Kind, Observation

LOWERED = {
    "service": "the service delays runs",
    "machine": "this machine cannot run more",
    "quota": "the quota in your configuration",
    "room": "the machines have no more free GPUs or slots",
    "asked": "requested with `sweeper parallel`",
    "shared": "other sweeps share the quota",
}
"""The reasons why a launcher has lowered its limit on jobs. The keys are the values of
`Observations.limit_by`."""

_PAUSES = {"rate_limit": "rate limit"}
_WORDS = {
    Kind.QUEUED: "queued",
    Kind.HELD: "held back",
    Kind.ENGINE: "waits for the engine",
    Kind.ORPHAN: "held back",
    Kind.DOUBTED: "waits: the first runs failed with the same error and are retried",
}


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return `1 seed` or `3 seeds`. `several` is the noun's plural, if it is irregular."""
    return f"{count} {noun if count == 1 else several or noun + 's'}"


def first_of(names: Sequence[str], most: int) -> str:
    """List at most `most` of the names, and count the others: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def observed(observation: Observation) -> str:
    """Describe an observation: `stale`, `queued: Priority`, `next attempt at 12:01:03Z`."""
    if observation.kind is Kind.PAUSED:
        return f"paused: {pause_of(observation.reason, observation.time)}"
    if observation.kind is Kind.LATER:
        return f"next attempt at {_clock(observation.time or '')}"
    if observation.kind is Kind.PARENT:
        return f"waits for {observation.reason or 'another run'}"
    words = (
        ""
        if observation.kind is Kind.OTHER
        else _WORDS.get(observation.kind, observation.kind.value)
    )
    words += f" since {_clock(observation.time)}" if observation.time else ""
    return ": ".join(filter(None, (words, observation.reason)))


def pause_of(reason: str | None, since: str | None) -> str:
    """Describe a pause by the service: `rate limit since 12:01:03Z`."""
    word = _PAUSES.get(reason or "", reason or "by the service")
    return f"{word} since {_clock(since)}" if since else word


def shown_marks(tags: Iterable[str], *, starred: bool, archived: bool = False) -> str:
    """Return a short text with the marks of a sweep or run: `* baseline, archived`."""
    words = ", ".join([*tags, *(["archived"] if archived else [])])
    return f"* {words}".rstrip() if starred else words


def _clock(time: str) -> str:
    """Return the time-of-day part of a timestamp."""
    return time.partition("T")[2] or time
