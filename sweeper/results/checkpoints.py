"""Determines which checkpoint of a run others start from, and whether it will expire."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from sweeper.metrics.rows import as_float, ends_final

_ENDS = ("ttl_seconds", "expires_at", "expires")
"""What a record says of a checkpoint that the service will delete."""


def last(records: Iterable[Mapping[str, object]], key: str) -> Mapping[str, object] | None:
    """Return the record with a path under `key` of the final checkpoint, which does not expire;
    else of the last one without an expiry, else of the last. None if no record has one."""
    usable = [record for record in records if isinstance(record.get(key), str) and record[key]]
    final = [record for record in usable if ends_final([dict(record)])]
    lasting = [record for record in usable if not may_expire(record)]
    return (final or lasting or usable)[-1] if usable else None


def may_expire(record: Mapping[str, object]) -> bool:
    """Return whether the service will delete a checkpoint, according to its record."""
    return any(record.get(end) for end in _ENDS)


def when_expired(record: Mapping[str, object], ended: str | None) -> datetime | None:
    """Return when a checkpoint is certainly deleted, according to its record; None if unknown.
    `ended` is when its run ended, so it was saved before."""
    for key in _ENDS[1:]:
        moment = _moment(record.get(key))
        if moment is not None:
            return moment
    seconds, saved = as_float(record.get("ttl_seconds")), _moment(ended)
    if seconds is None or saved is None:
        return None
    try:
        return saved + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def _moment(value: object) -> datetime | None:
    """Return a time of a record: as text, or in seconds since 1970."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        number = as_float(value)
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (OverflowError, OSError, ValueError):
        return None
