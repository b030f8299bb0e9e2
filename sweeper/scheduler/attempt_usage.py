"""What each attempt of a sweep's runs has used until now.

An attempt that has ended counts as its outcome says. One that is at work counts as its recipe has
counted until a moment ago, where the store is on this machine, else as its last heartbeat says.
Nothing is kept but what was read: a launcher that is started again finds the same sum.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.model.heartbeat import Heartbeat
from sweeper.model.states import OUTCOMES, Event
from sweeper.model.usage import NO_USAGE, Usage
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.storage.heartbeats import Heartbeats, read_heartbeat
from sweeper.storage.sweeps import read_event
from sweeper.worker.usage import FOLDER, UsageFiles

__all__ = ["AttemptUsage", "Used"]

Attempt = tuple[str, int]


class Used(NamedTuple):
    """Of one attempt: what it used, and for how long it was at work, pauses left out."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


class AttemptUsage:
    """What all attempts of a sweep have used. What was once seen of an attempt counts, also when it
    cannot be read for a moment."""

    def __init__(self, context: Context, run_table: RunTable, heartbeats: Heartbeats) -> None:
        self._context = context
        self._run_table, self._heartbeats = run_table, heartbeats
        self._seen: dict[Attempt, Used] = {}
        self._final: set[Attempt] = set()
        self._files: dict[Attempt, UsageFiles] = {}

    def look(self, most: int | None = None) -> Mapping[Attempt, Used]:
        """What each attempt has used by now. Looks at no more than `most` of which nothing is known
        yet: those are not there."""
        for run, view in self._run_table.views.items():
            for attempt in range(1, view.state.opened + 1):
                key = run, attempt
                if key in self._final or (most == 0 and key not in self._seen):
                    continue
                most = most if most is None or key in self._seen else most - 1
                self._look_at(run, attempt)
        return self._seen

    def _look_at(self, run: str, attempt: int) -> None:
        """Take note of what is known of an attempt now, unless more was known of it before."""
        key = run, attempt
        happened = self._run_table.events(run)
        event = next((event for event in OUTCOMES if (attempt, event) in happened), None)
        found = self._ended(key, event) if event is not None else self._at_work(key)
        before = self._seen.get(key, Used())
        usage = max(before.usage, found.usage, key=lambda usage: usage.counts.tokens)
        self._seen[key] = Used(usage, max(before.seconds, found.seconds))

    def _at_work(self, key: Attempt) -> Used:
        """Of an attempt without an outcome: its heartbeat, and what was counted since."""
        beat = self._heartbeats.known.get(key)
        if beat is not None:
            return self._counted(key, _of(beat.body))
        if key in self._seen:  # of a lost one there is nothing new
            return Used()
        return self._counted(key, self._said(key))

    def _ended(self, key: Attempt, event: Event) -> Used:
        """Of an attempt that has ended: its outcome, whoever has told it."""
        try:
            outcome = read_event(self._context.store, self._context.sweep, *key, event)
        except (NotFound, StoreError):
            return Used()  # it is read again in the next round
        self._final.add(key)
        seconds = max(0.0, (outcome.wall_s or 0.0) - (outcome.paused_s or 0.0))
        used = Used(outcome.usage, seconds)
        if outcome.usage == NO_USAGE and self._recipe_counts():
            used = self._counted(key, self._said(key)._replace(seconds=seconds))
        self._files.pop(key, None)
        return used

    def _recipe_counts(self) -> bool:
        return any(part.recipe.kind != "command" for part in self._context.plan.parts)

    def _said(self, key: Attempt) -> Used:
        """What the worker said last."""
        return _of(read_heartbeat(self._context.store, self._context.layout.heartbeat(*key)))

    def _counted(self, key: Attempt, said: Used) -> Used:
        """What the recipe has counted, where its files can be read here: a heartbeat is some
        seconds old."""
        files = self._files.get(key)
        if files is None:
            folder = self._context.store.local_path(self._context.layout.attempt(*key))
            if folder is None:
                return said
            files = self._files[key] = UsageFiles(os.path.join(folder, FOLDER))
        counted = files.read()
        return said if counted == NO_USAGE else said._replace(usage=counted)


def _of(body: Heartbeat) -> Used:
    return Used(body.usage, max(0.0, (body.up_s or 0.0) - body.paused_s))
