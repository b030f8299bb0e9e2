"""Identifies the sweep in a folder. A platform remembers jobs long after their sweep was removed,
and the folder alone does not distinguish them from jobs of the next sweep launched there."""

import hashlib

from sweeper.sweep.folder import SweepFolder

NOT_YET = "made-at-launch"
"""Stands in a manifest for values that are made at submission."""


class Identity:
    """The identity of the sweep in `folder`. It is recorded before the first job is submitted.
    `mark` stands for the folder in job names. The methods raise `StoreError`."""

    def __init__(self, folder: str) -> None:
        self.mark = hashlib.sha256(folder.encode()).hexdigest()[:12]
        self._folder = SweepFolder.at_address(folder)
        self._known = ""

    def current(self) -> str:
        """Return the identity; empty if nothing of the sweep was submitted yet."""
        self._known = self._known or self._folder.read_identity() or ""
        return self._known

    def preview(self) -> None:
        """Use `NOT_YET` as the identity from now on if nothing was submitted yet, to show what a
        submission would send."""
        self._known = self.current() or NOT_YET

    def ensure(self) -> str:
        """Return the identity; create it if there is none."""
        self._known = self._known or self._folder.ensure_identity()
        return self._known
