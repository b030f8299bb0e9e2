"""Names jobs at AWS Batch, `sweeper-<hash of the folder>-<identity of the sweep>-<token>`, so that
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
    return _NOT_IN_A_TAG.sub("_", text)[:256]


def _digest(tokens: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:24]


class Names:
    """The names of the jobs of the sweep in `folder`."""

    def __init__(self, folder: SweepFolder) -> None:
        self.identity = Identity(folder.address)
        self.prefix = f"sweeper-{self.identity.folder_hash}-"
        self._store, self._folder = folder.store, folder
        self._tables: dict[str, list[str]] = {}

    def single(self, token: str) -> str:
        """Return the name of a single job."""
        return self._sweep_prefix() + token

    def array(self, tokens: Sequence[str]) -> tuple[str, str]:
        """Return the name of the array job for `tokens`, and the path of the file that lists these
        tokens."""
        digest = _digest(tokens)
        return f"{self._sweep_prefix()}array-{digest}", self._path(digest)

    def keep(self, tokens: Sequence[str]) -> None:
        """Write the file that lists the tokens of an array job. Raises `StoreError`."""
        digest = _digest(tokens)
        document = {"schema": SCHEMA, "tokens": list(tokens)}
        self._store.replace(self._path(digest), encode(document))
        self._tables[digest] = list(tokens)

    def tokens(self, name: str) -> list[str]:
        """Return the tokens of the job called `name`. An array job has a token for each child, in
        order. A single job has one token. Return an empty list if the job belongs to another sweep,
        or if the file that lists the array's tokens is missing. Raises `StoreError`."""
        identity, rest = self._parts(name)
        if identity is None or identity not in ("", self.identity.current()):
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
        return self._parts(name)[1].startswith("array-")

    def anothers(self, name: str) -> str | None:
        """Return the token of the job called `name` if the job belongs to an earlier sweep in the
        same folder. Return "" for an array job of such a sweep, whose list of tokens was removed
        with the sweep. Return None for all other jobs."""
        identity, rest = self._parts(name)
        if not identity or identity == self.identity.current():
            return None
        return "" if rest.startswith("array-") else rest

    def _sweep_prefix(self) -> str:
        identity = self.identity.current()
        return f"{self.prefix}{identity}-" if identity else self.prefix

    def _parts(self, name: str) -> tuple[str | None, str]:
        """Split a job's name into the identity of its sweep and the rest of the name. The identity
        is empty if an older version of sweeper named the job, and None if the job is not from this
        folder."""
        if not name.startswith(self.prefix):
            return None, ""
        rest = name.removeprefix(self.prefix)
        match = _OF_A_SWEEP.fullmatch(rest)
        return (match[1], match[2]) if match else ("", rest)

    def _path(self, digest: str) -> str:
        return f"{self._folder.name}/arrays/{digest}.json"
