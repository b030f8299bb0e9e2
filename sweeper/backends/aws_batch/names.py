"""Names jobs at AWS Batch, `sweeper-<mark of the folder>-<identity of the sweep>-<token>`, so that
one listing finds all jobs, including those whose submission got no reply."""

import hashlib
import json
import re
from collections.abc import Sequence

from sweeper.backends.identity import Identity
from sweeper.common.codec import SCHEMA
from sweeper.errors import NotFound
from sweeper.store.documents import encode, read_as
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.job import read_tokens

_OF_A_SWEEP = re.compile(r"([0-9a-f]{16})-(.+-a[0-9]+|array-[0-9a-f]{24})")
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9 +\-=._:/@]")


def as_tag(text: str) -> str:
    """Convert a text to a valid tag value."""
    return _NOT_IN_A_TAG.sub("_", text)[:256]


def _digest(tokens: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:24]


class Names:
    """The names of the jobs of the sweep in `folder`."""

    def __init__(self, folder: SweepFolder) -> None:
        self.identity = Identity(folder.address)
        self.prefix = f"sweeper-{self.identity.mark}-"
        self._store, self._folder = folder.store, folder
        self._tables: dict[str, list[str]] = {}

    def single(self, token: str) -> str:
        """Return the name of a single job."""
        return self._own() + token

    def array(self, tokens: Sequence[str]) -> tuple[str, str]:
        """Return the name of an array job for `tokens`, and the path of their table."""
        digest = _digest(tokens)
        return f"{self._own()}array-{digest}", self._path(digest)

    def keep(self, tokens: Sequence[str]) -> None:
        """Write the table of `tokens` to the store. Raises `StoreError`."""
        digest = _digest(tokens)
        document = {"schema": SCHEMA, "tokens": list(tokens)}
        self._store.replace(self._path(digest), encode(document))
        self._tables[digest] = list(tokens)

    def tokens(self, name: str) -> list[str]:
        """Return the tokens of the job called `name`; those of an array by their index. Empty if
        the name is not ours or the table is gone. Raises `StoreError`."""
        whose, rest = self._parts(name)
        if whose is None or whose not in ("", self.identity.current()):
            return []
        kind, _, digest = rest.partition("-")
        if kind != "array":
            return [rest]
        if digest not in self._tables:
            try:
                self._tables[digest] = read_as(self._store, self._path(digest), read_tokens)
            except NotFound:
                return []
        return self._tables[digest]

    def is_array(self, name: str) -> bool:
        """Return whether a job of this name is an array."""
        return self._parts(name)[1].startswith("array-")

    def anothers(self, name: str) -> str | None:
        """Return the token of a job of an earlier sweep in the same folder; empty for an array,
        whose table has gone with that sweep. None for any other job. Raises `StoreError`."""
        whose, rest = self._parts(name)
        if not whose or whose == self.identity.current():
            return None
        return "" if rest.startswith("array-") else rest

    def _own(self) -> str:
        """Return the prefix of the sweep's job names, with its identity if it has one."""
        known = self.identity.current()
        return f"{self.prefix}{known}-" if known else self.prefix

    def _parts(self, name: str) -> tuple[str | None, str]:
        """Split a job's name into its sweep's identity and the rest. The identity is empty in
        names of an older version, and None for a name that is not ours."""
        if not name.startswith(self.prefix):
            return None, ""
        rest = name.removeprefix(self.prefix)
        match = _OF_A_SWEEP.fullmatch(rest)
        return (match[1], match[2]) if match else ("", rest)

    def _path(self, digest: str) -> str:
        return f"{self._folder.name}/arrays/{digest}.json"
