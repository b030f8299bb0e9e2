"""Finds the checkpoint of a run from which other runs start, and when a checkpoint expires."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from sweeper.metrics.rows import as_float, ends_final

_ENDS = ("ttl_seconds", "expires_at", "expires")
"""Keys of a record whose presence means that the service will delete the checkpoint."""


def last(records: Iterable[Mapping[str, object]], key: str) -> Mapping[str, object] | None:
    """Return the record of the checkpoint to continue from: the final checkpoint, else the last one
    that does not expire, else the last one. Records without a path under `key` are ignored. Return
    None if no record is left."""
    usable = [record for record in records if isinstance(record.get(key), str) and record[key]]
    final = [record for record in usable if ends_final([dict(record)])]
    lasting = [record for record in usable if not may_expire(record)]
    return (final or lasting or usable)[-1] if usable else None


def may_expire(record: Mapping[str, object]) -> bool:
    """Return whether the service will delete a checkpoint, according to the checkpoint's record."""
    return any(record.get(end) for end in _ENDS)


def when_expired(record: Mapping[str, object], ended: str | None) -> datetime | None:
    """Return the time by which the service deletes a checkpoint; None if unknown. A lifetime in
    seconds is counted from `ended`, the end of the run, since records do not say when a checkpoint
    was saved."""
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
    """Parse a time in a record: an ISO 8601 string or seconds since 1970. Return None if
    invalid."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        number = as_float(value)
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (OverflowError, OSError, ValueError):
        return None
