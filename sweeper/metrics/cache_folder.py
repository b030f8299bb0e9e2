"""The cache folder and its files. Users may delete these files at any time: sweeper makes them
again. Each file is written under a temporary name and then renamed. Uses only the standard
library."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from sweeper import paths
from sweeper.common.atomic import atomic_write
from sweeper.metrics.sources import Stamp

T = TypeVar("T")

_VERSION = "v6"


class Folder:
    """The cache files of the store at `root`. `folder` has the caches of all stores (None: the
    default folder). `clock` returns nanoseconds."""

    def __init__(
        self, root: str, folder: str | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.top = folder or paths.cache()
        self.path = os.path.join(self.top, _VERSION, hash_of(root))
        self.root = root
        self._clock = clock
        self._made = False

    def may_keep(self, stamp: Stamp) -> bool:
        """Return whether values read from a file with this stamp may be cached. Return False if the
        file changed a moment ago, because its next change may leave the stamp unchanged."""
        return not stamp.is_fleeting(self._clock())

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> bool:
        """Write or replace a file, and return whether that succeeded. If two processes write the
        same file, the last one wins."""
        try:
            self._make()
            atomic_write(f"{self.path}/{name}", [*parts], mode=0o600)
        except OSError:
            self._made = False
        return self._made

    def _make(self) -> None:
        if not self._made:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(f"{self.path}/root", "x") as file:
                file.write(self.root)
            self._made = True

    def save_json(self, name: str, document: Mapping[str, object]) -> None:
        """Save a document under a name."""
        import zlib  # import late, because that takes some time

        text = json.dumps({"name": name, "document": document}, separators=(",", ":")).encode()
        self.write(hash_of(name), [f"{zlib.crc32(text):08x}".encode(), text])

    def load_json(self, name: str) -> dict[str, object] | None:
        """Return a saved document; None if it is missing or damaged."""
        import zlib

        try:
            with open(f"{self.path}/{hash_of(name)}", "rb") as file:
                data = file.read()
            if int(data[:8], 16) != zlib.crc32(memoryview(data)[8:]):
                return None
            stored = json.loads(memoryview(data)[8:].tobytes())
            return stored["document"] if stored["name"] == name else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def hash_of(text: str) -> str:
    """Return a hash of a string, for use as a file name."""
    import hashlib  # import late, because that takes some time

    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class Index:
    """Cached facts about the runs of a sweep, or about the folders of a store. A fact, such as an
    outcome, is valid while the files that it was read from are unchanged. If `folder` is None,
    nothing is cached."""

    def __init__(self, folder: Folder | None, name: str) -> None:
        self._folder, self._name = folder, f"index of {name}"
        self._values: dict[str, dict[str, list[Any]]] | None = None  # not read yet
        self._changed = False

    def recall(
        self, run: str, what: str, files: Iterable[tuple[str, Stamp | None]], read: Callable[[], T]
    ) -> T:
        """Return the fact `what` about a run, which must be a JSON value. If the names and stamps
        in `files` are the same as when the fact was cached, return the cached fact. Otherwise call
        `read`, and cache the result unless it is None or a file changed a moment ago (see
        `Folder.may_keep`). Without a cache folder, `files` is not iterated over, so no stamps are
        computed."""
        if self._folder is None:
            return read()
        files = tuple(files)
        now = " ".join(_described(name, stamp) for name, stamp in files)
        if self._values is None:
            stored = self._folder.load_json(self._name)
            self._values = cast(dict[str, dict[str, list[Any]]], stored or {})
        remembered = self._values.get(run, {}).get(what)
        if remembered is not None and remembered[0] == now:
            return remembered[1]
        value = read()
        if value is not None and all(
            stamp is None or self._folder.may_keep(stamp) for _, stamp in files
        ):
            self._values.setdefault(run, {})[what] = [now, value]
            self._changed = True
        return value

    def save(self) -> None:
        """Save the cached facts."""
        if self._changed and self._values is not None and self._folder is not None:
            self._folder.save_json(self._name, self._values)
            self._changed = False


def _described(name: str, stamp: Stamp | None) -> str:
    """Return a file's name and stamp as one string, which takes less space than a list."""
    return f"{name}:" if stamp is None else f"{name}:{stamp[0]}.{stamp[1]}.{stamp[2]}.{stamp[3]}"
