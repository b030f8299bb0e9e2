"""Identifies the sweep in a folder. The folder's address is not enough: a platform remembers jobs
long after their sweep was removed, and another sweep may use the folder by then."""

import hashlib

from sweeper.sweep.folder import SweepFolder

NOT_YET = "made-at-launch"
"""The placeholder in a manifest for a value that is created at submission."""


class Identity:
    """The identity of the sweep in `folder`: a random id, recorded before the sweep's first job is
    submitted. `folder_hash` is a hash of the folder's address, for job names. The methods raise
    `StoreError` if the store fails."""

    def __init__(self, folder: str) -> None:
        self.folder_hash = hashlib.sha256(folder.encode()).hexdigest()[:12]
        self._folder = SweepFolder.at_address(folder)
        self._identity = ""

    def current(self) -> str:
        """Return the identity; empty before the first submission."""
        self._identity = self._identity or self._folder.read_identity() or ""
        return self._identity

    def preview(self) -> None:
        """Use `NOT_YET` as the identity if the sweep has none, to preview a submission."""
        self._identity = self.current() or NOT_YET

    def ensure(self) -> str:
        """Return the identity. If no identity is recorded yet, create and record one."""
        self._identity = self._identity or self._folder.ensure_identity()
        return self._identity
