"""A copy of the small files of a finished sweep in one file, so that a reader of a remote store
needs one request. A copied file is used only if a new listing shows the same size and stamp."""

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.store.base import Entry, Store

NAME = "packed.jsonl"
LARGEST = 4096
"""Maximum size of a packed file, in bytes."""
_FEWEST = 32
"""Minimum number of files to pack. Packing fewer would save few requests."""
_MOST_BYTES = 32 << 20


class Packed(NamedTuple):
    """A file's content in `packed.jsonl`, and the size and stamp that the file had when packed."""

    size: int
    stamp: int
    data: bytes


def read_packed(store: Store, top: str) -> dict[str, Packed]:
    """Return the packed files of the sweep `top` by path; empty if there are none or they cannot be
    read."""
    files: dict[str, Packed] = {}
    try:
        for line in store.read(f"{top}/{NAME}").splitlines():
            path, size, stamp, text = json.loads(line)
            files[f"{top}/{path}"] = Packed(size, stamp, str(text).encode())
    except (NotFound, StoreError, ValueError, TypeError, RecursionError):
        return {}
    return files


def pack(store: Store, top: str, entries: Iterable[Entry], read: Callable[[str], bytes]) -> None:
    """Copy the small files of the sweep `top` (those in `entries` of at most `LARGEST` bytes) into
    one file. Do nothing if there are fewer than `_FEWEST` small files, or if they have more than
    `_MOST_BYTES` in total. `read` must read the files after `entries` were listed. Raises
    `StoreError`."""
    chosen = [entry for entry in entries if entry.size <= LARGEST]
    if len(chosen) < _FEWEST or sum(entry.size for entry in chosen) > _MOST_BYTES:
        return
    lines: list[str] = []
    for path, size, stamp in chosen:
        try:
            data = read(path)
            if len(data) == size:
                line = [path.removeprefix(f"{top}/"), size, stamp, data.decode()]
                lines.append(json.dumps(line, separators=(",", ":")))
        except (NotFound, UnicodeDecodeError):
            continue  # The file was removed, or is not text.
    store.replace(f"{top}/{NAME}", "".join(f"{line}\n" for line in lines).encode())
