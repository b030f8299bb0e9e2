"""Checkpoints on disk: an .npz file with the arrays, and a .json file with the name of the .npz
file. The .json file is written last and atomically, so a checkpoint is complete or does not
exist."""

# <root>/<run>/weights/<name>.json              by `save_state`: with the optimizer
# <root>/<run>/sampler_weights/<name>.json      by `save_weights_for_sampler`
# <root>/<run>/external_weights/<name>.json     by `save_weights_external`

import contextlib
import json
import logging
import os
import re
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from sweeper.common import codec
from sweeper.common.atomic import atomic_write
from sweeper.common.codec import SCHEMA, Check, Default
from sweeper.common.json_values import decode
from sweeper.engine.array_types import Arrays
from sweeper.engine.errors import RequestError, Unknown
from sweeper.engine.lora import LoraConfig
from sweeper.engine.optimizer import Moments
from sweeper.errors import StoreError

log = logging.getLogger("sweeper.engine")

KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,199}")
_LEFT_SECONDS = 3600.0  # a writer takes less time between the arrays and the document
_ADAPTER, _FIRST, _SECOND = "adapter/", "first/", "second/"


class Place(NamedTuple):
    """The parts of a path `tinker://<run>/<kind>/<name>`."""

    run: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.run}/{self.kind}/{self.name}"


class Checkpoint(NamedTuple):
    """The contents of a checkpoint. `moments` is the optimizer's state; None if only weights were
    saved. A client may attach metadata to the checkpoint (`user_metadata`) and to the training run
    (`run_metadata`)."""

    base: str
    config: LoraConfig
    adapter: Arrays
    moments: Moments | None = None
    user_metadata: dict[str, object] | None = None
    run_metadata: dict[str, object] | None = None


def _is_file_name(name: str) -> bool:
    return "/" not in name and name not in ("", ".", "..")


class Document(NamedTuple):
    """The `.json` document of a checkpoint. `data` is the name of the file with the arrays, and
    `size` is the size of that file in bytes. `created` and `expires` are in Unix seconds.
    `steps` is the number of optimizer steps; None if the checkpoint has no optimizer."""

    data: Annotated[str, Check(_is_file_name, "the name of a file in the same folder")]
    base: str
    lora: LoraConfig
    size: Annotated[int, Default(0)]
    created: Annotated[float, Default(0.0)]
    expires: float | None = None
    steps: int | None = None
    user_metadata: dict[str, object] | None = None
    run_metadata: dict[str, object] | None = None
    public: bool = False


class Entry(NamedTuple):
    """A checkpoint in a listing: its path, and its .json document."""

    place: Place
    document: Document


def parse(path: str) -> Place:
    """Parse a tinker:// path. Raises RequestError if the path is invalid."""
    parts = path.removeprefix("tinker://").split("/")
    valid = path.startswith("tinker://") and len(parts) == 3
    if not valid or parts[1] not in KINDS or not all(_PART.fullmatch(part) for part in parts):
        raise RequestError(
            f"{path!r} is not a checkpoint's path: use tinker://<run>/<kind>/<name>, where <kind> "
            f"is {' or '.join(KINDS)}"
        )
    return Place(*parts)


def _prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {prefix + name: array for name, array in arrays.items()}


def _unprefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


class Vault:
    """All checkpoints below one directory. `now` is the clock (in Unix seconds) that decides
    whether a checkpoint has expired."""

    def __init__(self, root: str, now: Callable[[], float] | None = None) -> None:
        self._root = root
        self._now = now or SureClock()
        self._lock = threading.Lock()

    def _folder(self, run: str, kind: str) -> str:
        # The ids of runs have colons, which some file systems do not allow.
        return os.path.join(self._root, run.replace(":", "@"), kind)

    def _document_path(self, place: Place) -> str:
        return os.path.join(self._folder(place.run, place.kind), f"{place.name}.json")

    def _document(self, place: Place) -> Document:
        document = self._read(place)
        if (expires := document.expires) is not None and expires < self._now():
            raise Unknown(f"checkpoint {place} has expired")
        return document

    def _read(self, place: Place) -> Document:
        """Read a checkpoint's .json document, even if the checkpoint has expired. Raises Unknown if
        the document does not exist, and RequestError if it is damaged or unreadable."""
        path = self._document_path(place)
        try:
            with open(path, "rb") as file:
                return codec.read(Document, decode(file.read()), path)
        except FileNotFoundError:
            raise Unknown(f"there is no checkpoint {place}") from None
        except (OSError, ValueError, StoreError) as error:
            raise RequestError(f"checkpoint {place} cannot be read: {error}") from error

    def _exists(self, place: Place) -> bool:
        try:
            self._document(place)
        except Unknown:
            return False
        return True

    def save(
        self,
        place: Place,
        checkpoint: Checkpoint,
        *,
        overwrite: bool = False,
        ttl_seconds: int | None = None,
    ) -> None:
        """Write a checkpoint. Raises RequestError if `place` is invalid, or if the checkpoint
        exists and `overwrite` is False."""
        parse(str(place))
        target, folder = self._document_path(place), self._folder(place.run, place.kind)
        os.makedirs(folder, exist_ok=True)
        if not overwrite and self._exists(place):
            raise RequestError(f"checkpoint {place} exists: choose another name, or overwrite it")
        arrays = _prefixed(_ADAPTER, checkpoint.adapter)
        if checkpoint.moments is not None:
            arrays |= _prefixed(_FIRST, checkpoint.moments.first)
            arrays |= _prefixed(_SECOND, checkpoint.moments.second)
        data = f"{place.name}.{uuid.uuid4().hex[:8]}.npz"
        with open(os.path.join(folder, data), "xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        now = time.time()
        document = Document(
            data=data,
            base=checkpoint.base,
            lora=checkpoint.config,
            size=os.path.getsize(os.path.join(folder, data)),
            created=now,
            expires=None if ttl_seconds is None else now + ttl_seconds,
            steps=None if checkpoint.moments is None else checkpoint.moments.steps,
            user_metadata=checkpoint.user_metadata,
            run_metadata=checkpoint.run_metadata,
        )
        with self._lock:
            self._replace(target, document)

    def _replace(self, target: str, document: Document) -> None:
        previous = None
        with contextlib.suppress(OSError, ValueError, StoreError), open(target, "rb") as file:
            previous = codec.read(Document, decode(file.read()), target).data
        written = {"schema": SCHEMA, **codec.written(document)}
        atomic_write(target, json.dumps(written).encode(), durable=True)
        if previous is not None and previous != document.data:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(os.path.dirname(target), previous))

    def load(self, place: Place) -> Checkpoint:
        """Read a checkpoint. Raises Unknown if it does not exist or has expired, and RequestError
        if it is damaged."""
        document = self._document(place)
        path = os.path.join(self._folder(place.run, place.kind), document.data)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays: Arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise Unknown(f"checkpoint {place} has just been replaced or deleted") from None
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise RequestError(f"checkpoint {place} cannot be read: {error}") from error
        moments = None
        if document.steps is not None:
            first, second = _unprefixed(_FIRST, arrays), _unprefixed(_SECOND, arrays)
            moments = Moments(first, second, document.steps)
        adapter, metadata = (
            _unprefixed(_ADAPTER, arrays),
            (document.user_metadata, document.run_metadata),
        )
        return Checkpoint(document.base, document.lora, adapter, moments, *metadata)

    def entry(self, place: Place) -> Entry:
        """Return a checkpoint's path and document, without reading its arrays. Raises Unknown if
        the checkpoint does not exist or has expired, and RequestError if it is damaged."""
        return Entry(place, self._document(place))

    def expire(self, place: Place, ttl_seconds: int | None) -> None:
        """Set when a checkpoint expires: in `ttl_seconds` seconds, or never if None. Raises Unknown
        if the checkpoint does not exist or has expired."""
        with self._lock:
            document = self._document(place)
            expires = None if ttl_seconds is None else time.time() + ttl_seconds
            self._replace(self._document_path(place), document._replace(expires=expires))

    def publish(self, place: Place, *, public: bool) -> None:
        """Make a checkpoint public or private. Raises Unknown if the checkpoint does not exist or
        has expired, and RequestError if it is in that state already."""
        with self._lock:
            document = self._document(place)
            if document.public == public:
                raise RequestError(
                    f"checkpoint {place} is already {'public' if public else 'private'}"
                )
            self._replace(self._document_path(place), document._replace(public=public))

    def delete(self, place: Place) -> None:
        """Delete a checkpoint. Raises Unknown if the checkpoint does not exist or has expired."""
        with self._lock:
            self._remove(place, self._document(place).data)

    def _remove(self, place: Place, data: str) -> None:
        # Remove the document first: without it, the checkpoint no longer exists.
        for path in (
            self._document_path(place),
            os.path.join(self._folder(place.run, place.kind), data),
        ):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def purge(self) -> list[Place]:
        """Delete expired checkpoints, and files left by interrupted writers. Return the paths of
        the deleted checkpoints."""
        now, gone = self._now(), list[Place]()
        for run in self.runs():
            for kind in KINDS:
                with contextlib.suppress(FileNotFoundError):
                    gone += self._purged(run, kind, now)
        return gone

    def _purged(self, run: str, kind: str, now: float) -> list[Place]:
        folder, gone, named = self._folder(run, kind), list[Place](), set[str]()
        files = os.listdir(folder)
        unread = False
        for name in files:
            if not name.endswith(".json"):
                continue
            place = Place(run, kind, name.removesuffix(".json"))
            with self._lock:
                try:
                    document = self._read(place)
                except Unknown:
                    continue
                except RequestError as error:
                    log.warning("%s", error)
                    unread = True
                    continue
                named.add(document.data)
                if (document.expires or now) < now:
                    self._remove(place, document.data)
                    gone.append(place)
        # An unreadable document may refer to any of the arrays, so keep them all.
        for name in () if unread else files:
            path = os.path.join(folder, name)
            if not name.endswith(".json") and name not in named:
                with contextlib.suppress(OSError):
                    if now - os.path.getmtime(path) > _LEFT_SECONDS:
                        os.remove(path)
        return gone

    def runs(self) -> list[str]:
        """Return the ids of the training runs that have, or have had, checkpoints."""
        try:
            return sorted(name.replace("@", ":") for name in os.listdir(self._root))
        except FileNotFoundError:
            return []

    def entries(self, run: str) -> list[Entry]:
        """Return the entries of a training run's checkpoints, oldest first. Leave out expired and
        unreadable checkpoints."""
        out = list[Entry]()
        if not _PART.fullmatch(run):
            return out
        for kind in KINDS:
            try:
                names = os.listdir(self._folder(run, kind))
            except FileNotFoundError:
                continue
            for name in names:
                if name.endswith(".json"):
                    try:
                        out.append(self.entry(Place(run, kind, name.removesuffix(".json"))))
                    except Unknown:
                        continue
                    except RequestError as error:  # list the others anyway
                        log.warning("%s", error)
        return sorted(out, key=lambda entry: entry.document.created)


def _running() -> float:
    """Return the seconds since the machine was started, including the time that it was asleep."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SureClock:
    """A clock in Unix seconds. If the system clock is set forward, this clock ignores the change,
    so nothing expires early. If the system clock is set back, this clock follows, so checkpoints
    expire late."""

    def __init__(
        self, wall: Callable[[], float] = time.time, running: Callable[[], float] = _running
    ) -> None:
        self._wall, self._running = wall, running
        self._began = wall() - running()

    def __call__(self) -> float:
        return min(self._wall(), self._began + self._running())
