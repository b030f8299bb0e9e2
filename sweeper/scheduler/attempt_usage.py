"""What each attempt of a sweep's runs has used until now, and what the sweep has yet to use.

An attempt that has ended counts as its outcome says. One that is at work counts as its recipe has
counted until a moment ago, where the store is on this machine, else as its last heartbeat says. One
whose program has no meter counts as its metrics say, as in `sweeper costs`.
Nothing is kept but what was read: a launcher that is started again finds the same sum.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.metrics.recorded_usage import AttemptRecords
from sweeper.results.forecast import Going, forecast, not_known_yet, settings_of
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.store.documents import timestamp
from sweeper.sweep.heartbeat import Heartbeat
from sweeper.sweep.heartbeats import Heartbeats, read_heartbeat
from sweeper.sweep.plan import Plan
from sweeper.sweep.states import OUTCOMES, Event, State
from sweeper.sweep.usage import NO_USAGE, SweepUsage, Usage, total
from sweeper.worker.usage import FOLDER, UsageFiles

_SUM_SECONDS = 10.0
"""The interval between two sums of a sweep's usage."""
_REMOTE_LOOKS = 10
"""The most outcomes that are read for one sum, where each read is slow."""

Attempt = tuple[str, int]


class Used(NamedTuple):
    """The usage of one attempt, and how long it worked, without pauses."""

    usage: Usage = NO_USAGE
    seconds: float = 0.0


class AttemptUsage:
    """The usage of all attempts of a sweep. Usage that was once read counts even if it cannot be
    read for a moment."""

    def __init__(self, context: Context, run_table: RunTable, heartbeats: Heartbeats) -> None:
        self._context = context
        self._run_table, self._heartbeats = run_table, heartbeats
        self._seen: dict[Attempt, Used] = {}
        self._final: set[Attempt] = set()
        self._files: dict[Attempt, UsageFiles] = {}
        self._records: dict[Attempt, tuple[float, AttemptRecords]] = {}

    def look(self, most: int | None = None) -> Mapping[Attempt, Used]:
        """The current usage of each attempt. Reads at most `most` unknown attempts; the others
        are missing from the result."""
        for run, view in self._run_table.views.items():
            for attempt in range(1, view.state.opened + 1):
                key = run, attempt
                if key in self._final or (most == 0 and key not in self._seen):
                    continue
                most = most if most is None or key in self._seen else most - 1
                self._look_at(run, attempt)
        return self._seen

    def _look_at(self, run: str, attempt: int) -> None:
        """Records the current usage of an attempt, unless a larger usage is known."""
        key = run, attempt
        happened = self._run_table.events(run)
        event = next((event for event in OUTCOMES if (attempt, event) in happened), None)
        found = self._ended(key, event) if event is not None else self._at_work(key)
        if found.usage == NO_USAGE:
            found = found._replace(usage=self._recorded(key, ended=key in self._final))
        before = self._seen.get(key, Used())
        usage = max(before.usage, found.usage, key=lambda usage: usage.counts.tokens)
        self._seen[key] = Used(usage, max(before.seconds, found.seconds))

    def _at_work(self, key: Attempt) -> Used:
        """The usage of an attempt without an outcome: its heartbeat, and the counts since."""
        beat = self._heartbeats.known.get(key)
        if beat is not None:
            return self._counted(key, _of(beat.body))
        if key in self._seen:  # of a lost one there is nothing new
            return Used()
        return self._counted(key, self._said(key))

    def _ended(self, key: Attempt, event: Event) -> Used:
        """The usage of an ended attempt, from its outcome."""
        try:
            outcome = self._context.folder.read_event(*key, event)
        except (NotFound, StoreError):
            return Used()  # it is read again in the next round
        self._final.add(key)
        seconds = max(0.0, (outcome.wall_s or 0.0) - (outcome.paused_s or 0.0))
        used = Used(outcome.usage, seconds)
        if outcome.usage == NO_USAGE and self._recipe_counts():
            used = self._counted(key, self._said(key)._replace(seconds=seconds))
        self._files.pop(key, None)
        return used

    def _recorded(self, key: Attempt, *, ended: bool) -> Usage:
        """What an attempt without a meter has recorded. On a remote store it is read every few
        seconds, and once more when the attempt has ended."""
        now, store = self._context.clock(), self._context.store
        records = AttemptRecords(self._context.folder, *key)
        at, records = self._records.get(key, (now - _SUM_SECONDS, records))
        if store.is_remote and not ended and now - at < _SUM_SECONDS:
            return NO_USAGE  # what was read before counts
        try:
            usage = records.read(self._run_table.runs[key[0]].config)
        except StoreError:
            self._final.discard(key)  # it is read again in the next round
            return NO_USAGE
        self._records[key] = now, records
        if ended:
            del self._records[key]
        return usage

    def _recipe_counts(self) -> bool:
        return any(part.recipe.kind != "command" for part in self._context.plan.parts)

    def _said(self, key: Attempt) -> Used:
        """The usage that the worker last reported."""
        return _of(read_heartbeat(self._context.store, self._context.folder.heartbeat(*key)))

    def _counted(self, key: Attempt, said: Used) -> Used:
        """What the recipe has counted, where its files can be read here: a heartbeat is some
        seconds old."""
        files = self._files.get(key)
        if files is None:
            folder = self._context.store.local_path(self._context.folder.attempt(*key))
            if folder is None:
                return said
            files = self._files[key] = UsageFiles(os.path.join(folder, FOLDER))
        counted = files.read()
        return said if counted == NO_USAGE else said._replace(usage=counted)


def _of(body: Heartbeat) -> Used:
    return Used(body.usage, max(0.0, (body.up_s or 0.0) - body.paused_s))


class SweepUsageWatch:
    """Adds up the usage of a sweep's attempts every few seconds and publishes it, so that readers
    need not query each run."""

    def __init__(self, context: Context, run_table: RunTable, attempts: AttemptUsage) -> None:
        self._context, self._run_table, self._attempts = context, run_table, attempts
        self._at: float | None = None
        self._events = 0
        self._known: SweepUsage | None = None

    def look(self, plan: Plan) -> SweepUsage | None:
        """The sum; as it was a moment ago where runs are at work, or nothing has happened since.
        None while nothing was counted, or not all is known."""
        now, views = self._context.clock(), self._run_table.views.values()
        events = sum(view.size for view in views)
        happened = events != self._events or self._known is None
        busy = any(view.state.at_work for view in views)
        if self._at is None or now - self._at >= _SUM_SECONDS or (happened and not busy):
            self._at, self._events = now, events
            found = self._sum(plan)
            before = self._known and self._known._replace(time=None)
            if found != before:
                self._known = None if found is None else found._replace(time=timestamp())
        return self._known

    def _sum(self, plan: Plan) -> SweepUsage | None:
        known = self._attempts.look(_REMOTE_LOOKS if self._context.store.is_remote else None)
        runs = [Going(settings) for settings in not_known_yet(plan)]
        for run, view in self._run_table.views.items():
            planned, state = self._run_table.runs[run], view.state
            attempts = [(run, attempt) for attempt in range(1, state.opened + 1)]
            if any(key not in known for key in attempts):
                return None
            wants = view.wants and run not in self._run_table.retired
            runs.append(
                Going(
                    settings_of(planned.config, plan.recipe_of(planned.stage)),
                    total(known[key].usage for key in attempts),
                    finished=not (wants or state.at_work),
                    example=state.state is State.SUCCEEDED and state.opened == 1,
                )
            )
        return forecast(runs)
