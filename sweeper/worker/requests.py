"""Reads from the store whether a worker must stop, or was wrongly declared lost."""

from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.common.codec import SCHEMA
from sweeper.errors import AlreadyExists, StoreError
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.states import Event
from sweeper.worker.claim import newer_attempt
from sweeper.worker.output import say

if TYPE_CHECKING:
    from sweeper.sweep.folder import SweepFolder


class Requests:
    """The requests to the worker of one attempt, as of the last check. `superseded` means that a
    newer attempt was opened, `cancelled` that a user has cancelled this one, or has `removed`
    its sweep."""

    def __init__(self, folder: "SweepFolder", run: str, attempt: int) -> None:
        self._store, self._folder = folder.store, folder
        self._run, self._attempt = run, attempt
        self._returned = False
        self.superseded = False
        self.cancelled = False
        self.removed = False

    def look(self) -> bool:
        """Return whether the worker is to stop. If the launcher declared it lost, record that it
        is alive. An unreachable store makes no requests."""
        lost = self._folder.event(self._run, self._attempt, Event.LOST)
        try:
            if self.look_for_sweep():
                return True
            if newer_attempt(self._folder, self._run, self._attempt):
                self.superseded = True
                return True
            if self._cancel_asked():
                self.cancelled = True
                return True
            if not self._returned and self._store.exists(lost):
                returned = self._folder.event(self._run, self._attempt, Event.RETURNED)
                with suppress(AlreadyExists):
                    self._store.create(returned, encode({"schema": SCHEMA, "time": timestamp()}))
                self._returned = True
        except StoreError as error:
            say(f"sweeper: {error}")
        return False

    def look_for_sweep(self) -> bool:
        """Return whether the sweep was removed, including our job's description: then nothing more
        is recorded. A link to an unmounted disk is no removal. Raises `StoreError`."""
        described = self._folder.job(self._run, self._attempt)
        if not self.removed and not self._store.exists(described):
            self.removed = self._folder.name not in self._store.folders_with("sweep.json")
            self.cancelled |= self.removed
        return self.removed

    def look_for_cancel(self) -> None:
        """Check whether a user has cancelled the attempt. Raises `StoreError`."""
        self.cancelled = self._cancel_asked()

    def _cancel_asked(self) -> bool:
        """Return whether there is a cancel request that no retry of the same attempt has undone."""
        cancel, retry = (
            self._folder.event(self._run, self._attempt, event)
            for event in (Event.CANCEL, Event.RETRY)
        )
        return self._store.exists(cancel) and not self._store.exists(retry)
