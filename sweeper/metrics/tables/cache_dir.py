"""The folder of the cache, and its files as bytes. Standard library only: `ls` needs no more.

Anyone may delete anything here at any time, also while it is in use: it is derived. A file is
written whole under another name and renamed, so that processes that share it see the old or the
new one. A cache that cannot be written costs time, never an answer.
"""

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping

from sweeper import paths
from sweeper.common.atomic import atomic_write

_VERSION = "v4"
MOMENT = 2_000_000_000
"""Nanoseconds after its last change for which a file's time says little: the kernel's clock for
them is coarse, and a second change within one of its ticks would not show."""


def is_fleeting(changed: int, now: int | None = None) -> bool:
    """Whether a local file changed so lately (nanoseconds) that its time cannot be relied on."""
    return (time.time_ns() if now is None else now) - changed < MOMENT


class Folder:
    """The cache files of one root; each is known by a name of the caller's choice."""

    def __init__(self, root: str, folder: str | None = None) -> None:
        self.top = folder or paths.cache()
        self.path = os.path.join(self.top, _VERSION, _hash(root))
        self._root = root
        self._made = False

    def file(self, name: str) -> str:
        """The file for `name`."""
        return f"{self.path}/{_hash(name)}"

    def save(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Keep bytes, instead of what was kept before. Of two writers the last one stays."""
        try:
            self._make()
            atomic_write(self.file(name), [*parts], mode=0o600)
        except OSError:
            self._made = False

    def _make(self) -> None:
        if not self._made:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(f"{self.path}/root", "x") as file:
                file.write(self._root)
            self._made = True

    def save_json(self, name: str, document: Mapping[str, object]) -> None:
        """Keep a document."""
        text = json.dumps({"name": name, "document": document}, separators=(",", ":")).encode()
        self.save(name, [f"{zlib.crc32(text):08x}".encode(), text])

    def load_json(self, name: str) -> dict[str, object] | None:
        """The document that was kept; None when there is none, or a damaged one."""
        try:
            with open(self.file(name), "rb") as file:
                data = file.read()
            if int(data[:8], 16) != zlib.crc32(memoryview(data)[8:]):
                return None
            kept = json.loads(memoryview(data)[8:].tobytes())
            return kept["document"] if kept["name"] == name else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def number_of(text: str) -> int:
    """A number that tells texts apart, below 2**63."""
    return int(_hash(text)[:16], 16) >> 1


def _hash(text: str) -> str:
    import hashlib  # it takes a while: not for who has no cache

    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
