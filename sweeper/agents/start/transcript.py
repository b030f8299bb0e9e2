"""The record of an agent in the store (`.agents-sessions/<name>/`): its start, its prompt and
its output, without secrets."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.common import codec
from sweeper.common.backoff import delays, retried
from sweeper.common.codec import SCHEMA
from sweeper.common.redaction import Redactor
from sweeper.errors import AlreadyExists, NotFound, StoreError, UsageError
from sweeper.store.base import Store
from sweeper.store.documents import encode, read_as
from sweeper.terminal import warn

_FOLDER = ".agents-sessions"
_PART = 256 * 1024
_EVERY_SECONDS = 1.0


class Session(NamedTuple):
    """The record of an agent. `state` is `running`, `finished`, `failed`, `out of time` or
    `stopped`. If sweeper is killed, the state remains `running`."""

    name: str
    agent: str
    model: str
    place: str
    begun: str
    by: str = ""
    prompt: str = ""
    budget: str = ""
    folder: str = ""
    hours: float = 0.0
    starts: int = 0
    state: str = "running"
    code: int | None = None
    ended: str | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON document of the session."""
        return {"schema": SCHEMA, **self._asdict()}


class Transcript:
    """A writer of an agent's output to the store. It writes about once a second. If this process is
    killed, about a second of output is lost."""

    def __init__(self, store: Store, name: str, secrets: Sequence[str]) -> None:
        self._store, self._folder = store, f"{_FOLDER}/{name}"
        self._redactor, self._secrets = Redactor(secrets), secrets
        self._number, self._part, self._new = 0, bytearray(), False
        self._written = time.monotonic()

    def create(self, session: Session, prompt: str) -> None:
        """Create the record of an agent. Raises `UsageError` if the agent's name is in use."""
        try:
            self._store.create(f"{self._folder}/session.json", encode(session.document()))
        except AlreadyExists:
            raise UsageError(
                f"the store already has an agent {session.name}: choose another --name"
            ) from None
        text = Redactor(self._secrets).text(prompt)
        self._store.replace(f"{self._folder}/prompt.md", text.encode("utf-8", "replace"))

    def update(self, session: Session) -> None:
        """Write the session's current state to the store."""
        path = f"{self._folder}/session.json"
        self._insist(lambda: self._store.replace(path, encode(session.document())))

    def add(self, data: bytes) -> None:
        """Add output. The last bytes may be the beginning of a secret, so they are written
        later."""
        self._append(self._redactor.feed(data))

    def end_output(self) -> None:
        """Write all remaining output after the agent has ended."""
        self._append(self._redactor.end())
        self._redactor = Redactor(self._secrets)
        self._insist(lambda: self.flush(now=True))

    def _insist(self, action: Callable[[], None]) -> None:
        """Call `action`, and retry for some time while the store fails. After the last try, warn
        and continue."""
        try:
            retried(action, delays(1.0, 8.0, 5), lambda error: isinstance(error, StoreError))
        except StoreError as error:
            warn(f"{self._folder} is incomplete: {error}")

    def _append(self, data: bytes) -> None:
        self._part += data
        self._new = self._new or bool(data)
        with suppress(StoreError):  # the next write includes what could not be written
            while len(self._part) >= _PART:
                self._write(self._part[:_PART])
                del self._part[:_PART]
                self._number += 1

    def flush(self, *, now: bool = False) -> None:
        """Write new output if the last write was at least a second ago, or if `now` is set.
        Raises `StoreError` only if `now` is set."""
        if not self._new or (not now and time.monotonic() - self._written < _EVERY_SECONDS):
            return
        self._written = time.monotonic()
        try:
            self._write(self._part)
        except StoreError:  # an agent continues while a store fails
            if now:
                raise
        else:
            self._new = False

    def _write(self, data: bytes | bytearray) -> None:
        self._store.replace(f"{self._folder}/transcript/{self._number:06}.log", bytes(data))


def read_sessions(store: Store) -> list[Session]:
    """Return the records of all agents of a root, oldest first. Raises `StoreError`."""
    paths = [path for path in store.names(_FOLDER) if path.endswith("/session.json")]
    sessions = [read_as(store, path, _session) for path in paths]
    return sorted(sessions, key=lambda session: (session.begun, session.name))


def read_session(store: Store, name: str) -> Session:
    """Return the record of an agent. Raises `NotFound`."""
    try:
        return read_as(store, f"{_FOLDER}/{name}/session.json", _session)
    except NotFound:
        raise NotFound(f"no agent {name!r}: `sweeper agent transcript` lists them") from None


def _session(document: object, place: str) -> Session:
    return codec.read(Session, document, place)


def read_output(store: Store, name: str) -> Iterator[bytes]:
    """Yield the parts of an agent's recorded output. Raises `StoreError`."""
    for path in sorted(store.names(f"{_FOLDER}/{name}/transcript")):
        yield store.read(path)


def read_prompt(store: Store, name: str) -> str:
    """Return the recorded prompt of an agent. Raises `NotFound`."""
    return store.read(f"{_FOLDER}/{name}/prompt.md").decode(errors="replace")
