"""Which checkpoint of a run others go on from."""

from collections.abc import Iterable, Mapping
from typing import Any

from sweeper.metrics import ends_final

__all__ = ["last_path"]


def last_path(records: Iterable[Mapping[str, Any]], key: str) -> str | None:
    """The path under `key` of the final checkpoint, else of the last that has one; None without."""
    usable = [one for one in records if isinstance(one.get(key), str) and one[key]]
    final = [record for record in usable if ends_final([dict(record)])]
    return str((final or usable)[-1][key]) if usable else None
