"""Which checkpoint of a run others go on from."""

from collections.abc import Iterable, Mapping
from typing import Any

from sweeper.metrics import ends_final

__all__ = ["last_path"]

_ENDS = ("ttl_seconds", "expires_at", "expires")
"""What a record says of a checkpoint that the service will delete."""


def last_path(records: Iterable[Mapping[str, Any]], key: str) -> str | None:
    """The path under `key` of the final checkpoint, which is kept for good; else of the last that
    no record says will expire, else of the last. None where none has one."""
    usable = [one for one in records if isinstance(one.get(key), str) and one[key]]
    final = [record for record in usable if ends_final([dict(record)])]
    kept = [record for record in usable if not any(record.get(end) for end in _ENDS)]
    return str((final or kept or usable)[-1][key]) if usable else None
