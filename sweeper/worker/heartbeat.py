"""Writes a worker's heartbeat: that it lives, and the state of its recipe and machine."""

import math
import os
import time
from typing import TYPE_CHECKING

from sweeper.common.document_reader import SCHEMA
from sweeper.errors import StoreError
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.usage import NO_USAGE
from sweeper.worker import machine
from sweeper.worker.output import say

if TYPE_CHECKING:
    from sweeper.sweep.folder import SweepFolder
    from sweeper.worker.rate_limits import Pauses
    from sweeper.worker.usage import UsageFiles

BEAT_SECONDS = 5.0
"""The interval between two heartbeats."""


class Heartbeat:
    """The heartbeat of one attempt. `folder`, `usage` and `pauses` are set once the recipe has
    them: its folder, its usage of the service, and its rate-limit pauses. `written` is the
    monotonic time of the last heartbeat."""

    def __init__(self, folder: "SweepFolder", run: str, attempt: int) -> None:
        self._store = folder.store
        self._path = folder.heartbeat(run, attempt)
        self._counter = 0
        self._begun = time.monotonic()
        self.written = -math.inf
        self.folder = ""
        self.usage: UsageFiles | None = None
        self.pauses: Pauses | None = None

    def begin(self) -> None:
        """Start the attempt's clock. Called after the claim."""
        self._begun = time.monotonic()

    def write(self) -> bool:
        """Write a heartbeat. Returns whether the store took it. An unreachable store stops
        nothing."""
        self._counter, self.written = self._counter + 1, time.monotonic()
        used = self.used()
        pause = self.pauses.current() if self.pauses else None
        body = {
            "schema": SCHEMA,
            "counter": self._counter,
            "time": timestamp(),
            "up_s": self.up_seconds(),
            "pid": os.getpid(),
            "paused": None if pause is None else pause._asdict(),
            "paused_s": self.paused_seconds(),
            "host": os.uname().nodename,
            "machine": machine.facts(self.folder),
        } | used
        try:
            self._store.replace(self._path, encode(body), durable=False)
        except StoreError as error:  # such as a full disk; requests can still be read
            say(f"sweeper: {error}")
            return False
        return True

    def up_seconds(self) -> float:
        """Return the seconds since the claim, by the monotonic clock."""
        return round(time.monotonic() - self._begun, 3)

    def paused_seconds(self) -> float:
        """Return the seconds for which the service has held the recipe back."""
        return round(self.pauses.seconds(), 3) if self.pauses else 0.0

    def used(self) -> dict[str, object]:
        """Return the recipe's usage of its service so far; an empty dict if there is none."""
        usage = NO_USAGE if self.usage is None else self.usage.read()
        if self.usage is not None and self.pauses is not None:
            self.pauses.hear(self.usage.paused)
        return {} if usage == NO_USAGE else {"usage": usage.document()}
