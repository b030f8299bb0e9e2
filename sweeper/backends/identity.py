"""Which sweep it is that lies in a folder. A platform remembers jobs for long after a sweep was
removed, and by their folder they look like those of the next that is launched there."""

import hashlib
import os

from sweeper.storage.opening import open_store
from sweeper.storage.sweeps import ensure_identity, identity

__all__ = ["NOT_YET", "Identity"]

NOT_YET = "made-at-launch"
"""What a manifest shows for what only a submission makes."""


class Identity:
    """Of the sweep in `folder`; it is on record before the first job is submitted. `mark` stands
    for the folder in the names of jobs. The methods raise `StoreError`."""

    def __init__(self, folder: str) -> None:
        self.mark = hashlib.sha256(folder.encode()).hexdigest()[:12]
        root, self._sweep = os.path.split(folder)
        self._store = open_store(root)
        self._known = ""

    def current(self) -> str:
        """The identity; empty for a sweep of which nothing was submitted yet."""
        self._known = self._known or identity(self._store, self._sweep) or ""
        return self._known

    def preview(self) -> None:
        """From now on a sweep of which nothing was submitted yet has `NOT_YET` for its identity: to
        show what would be."""
        self._known = self.current() or NOT_YET

    def ensure(self) -> str:
        """The same, made where there is none."""
        self._known = self._known or ensure_identity(self._store, self._sweep)
        return self._known
