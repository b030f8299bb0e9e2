"""Alarms in the launcher's loop: a look now and then at what runs, and each alarm put on record
once.

Nothing in here stops the loop: a store that does not answer is asked again the next time, and what
else goes wrong is told, once. What a look may cost is bounded (see `sweeper.monitor.watcher`).
"""

from collections import deque
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import NotFound, StoreError
from sweeper.model.launcher import read_judged
from sweeper.model.states import OPEN, Event, State
from sweeper.monitor.records import Alarm, names, put, read
from sweeper.monitor.rules import ADVICE
from sweeper.monitor.watcher import Criteria, Found, Seen, Watcher
from sweeper.sanitize import sanitize
from sweeper.scheduler.alarm_actions import AlarmActions
from sweeper.scheduler.context import Context
from sweeper.scheduler.outcomes import Outcomes
from sweeper.scheduler.run_table import RunTable
from sweeper.storage.documents import SCHEMA, encode, read_as, timestamp
from sweeper.storage.heartbeats import Heartbeats
from sweeper.storage.layout import Layout, metrics_dir
from sweeper.storage.sweeps import read_event
from sweeper.thresholds import resolve

__all__ = ["AlarmMonitor"]

LOOK_SECONDS = 2.0
REMOTE_LOOK_SECONDS = 20.0
_JUDGED_SECONDS = 10.0
_MOST_ENDED = 100
_MOST_LINES = 200
_LONGEST = 500
_LAST_LOOKS = 30
_LAST_SECONDS = 20.0
_OF_A_MACHINE = ("disk", "memory")


_Machine = tuple[str, str | None]
"""What is wrong and where: rule and host."""


class _Spoken(NamedTuple):
    """The attempt, as (run, attempt), that something was said of for all on its machine; and what
    was not said of others for that, as (run, attempt, rule)."""

    attempt: tuple[str, int]
    spared: set[tuple[str, int, str]]


class AlarmMonitor:
    """The alarms of one sweep. `lines` has what is to be told, a line each: alarms, and what went
    wrong with `on_alarm`; the newest only, where they are many."""

    def __init__(
        self,
        context: Context,
        board: RunTable,
        beats: Heartbeats,
        ends: Outcomes,
        *,
        env_file: str | None = None,
    ) -> None:
        store, plan, clock = context.store, context.plan, context.clock
        self._store = store
        self._layout = Layout(context.sweep, metrics_dir(plan.launch.metrics_dir))
        self._board = board
        self._beats = beats
        self._ends = ends
        self._clock = clock
        remote = store.is_remote
        sync_s = plan.launch.sync_s if remote else 0.0
        self._every = max(REMOTE_LOOK_SECONDS, sync_s) if remote else LOOK_SECONDS
        self.lines: tuple[str, ...] = ()
        self._said: set[tuple[str, int, str]] = set()
        self._machines: dict[_Machine, _Spoken] = {}
        self._acted: dict[_Machine, tuple[str, int]] = {}  # the attempt whose alarm had actions
        self._pending: deque[Found] = deque()
        self._before: set[tuple[str, int]] = set()  # attempts at the look before
        self._judged: set[tuple[str, int]] = set()
        criteria = Criteria(
            resolve(plan.alarms),
            plan.launch.lease_s,
            is_command=plan.recipe.kind == "command",
            sync_s=sync_s,
            metric=plan.metric.name if plan.metric else None,
        )
        self._watcher = Watcher(
            store, self._layout, criteria, self._said, clock=clock, tell=self._tell
        )
        self._reactions = AlarmActions(context, board, tell=self._tell, env_file=env_file)
        self._begun = False
        self._next = -1.0
        self._kept: tuple[int, float] = (0, clock())

    def look(self) -> tuple[str, ...]:
        """Look, if it is time; gives `lines`."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._look()
        return self.lines

    def is_stalled(self, run: str, attempt: int) -> bool:
        """Whether it stood still at the last look, by the thresholds of the grid."""
        return (run, attempt) in self._watcher.stalled

    def finish(self) -> tuple[str, ...]:
        """The last look, when nothing runs any more: at what was written since the one before."""
        deadline = self._clock() + _LAST_SECONDS
        for _ in range(_LAST_LOOKS):
            if self._look() or self._clock() > deadline:
                break
        try:
            self._keep(last=True)
            self._reactions.finish()
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
            self._tell(f"alarms: {type(error).__name__}: {error}")
        self._next = self._clock() + self._every  # the step after this one is to be short
        return self.lines

    def _look(self) -> bool:
        """Whether all that has ended is read to its end."""
        try:
            self._begin()
            attempts = self._attempts()
            self._forget()
            found, over = self._watcher.look(attempts)
            self._pending += found
            self._say_pending()
            self._judged |= over
            self._keep()
            self._reactions.look()
            return all(seen.running or (seen.run, seen.attempt) in over for seen in attempts)
        except StoreError:
            return False  # the loop says so itself; what is pending is put on record later
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
            self._tell(f"alarms: {type(error).__name__}: {error}")
            return True

    def _begin(self) -> None:
        """Once: what earlier launchers have said, judged, and not finished doing about it."""
        if self._begun:
            return
        for name in names(self._store, self._layout):
            self._said.add((name.run, name.attempt, name.rule))
        recorded = read(self._store, self._layout) if self._said else []
        for alarm in recorded:
            self._recall(alarm)
        try:
            self._judged |= read_as(self._store, self._layout.judged, read_judged)
        except (NotFound, StoreError):
            self._judged = set()  # then they are judged again, and said all the same but once
        self._reactions.recover(recorded)
        self._begun = True

    def _recall(self, alarm: Alarm) -> None:
        """What an earlier launcher has said of a machine, as far as it still counts."""
        attempt = (alarm.run, alarm.attempt)
        stands = self._stands(*attempt)
        acted = bool(alarm.actions) and not self._is_taken_back(*attempt)
        if alarm.rule not in _OF_A_MACHINE or not (stands or acted):
            return
        claimed = self._layout.sweep, *attempt, Event.CLAIMED
        with suppress(NotFound, StoreError):  # then it is said twice
            machine = (alarm.rule, read_event(self._store, *claimed).host)
            if stands:
                self._machines[machine] = _Spoken(attempt, set())
            if acted:
                self._acted[machine] = attempt

    def _is_running(self, run: str, attempt: int) -> bool:
        view = self._board.views.get(run)  # none: of a run that no plan has any more
        if view is None or view.state.unacknowledged:
            return False
        return view.state.state is State.RUNNING and view.state.attempt == attempt

    def _stands(self, run: str, attempt: int) -> bool:
        """Whether what was said of this attempt counts for all on its machine: while it is at
        work, and after it was stopped. Else a full disk would stop one run there after another."""
        if self._is_running(run, attempt):
            return True
        view = self._board.views.get(run)
        return view is not None and view.cancel and view.state.opened == attempt

    def _is_taken_back(self, run: str, attempt: int) -> bool:
        """Whether it was stopped, and a retry was asked for since."""
        events = self._board.events(run)
        cancelled, retried = (
            max((n for n, event in events if event is kind), default=0)
            for kind in (Event.CANCEL, Event.RETRY)
        )
        return attempt <= cancelled <= retried

    def _forget(self) -> None:
        """Machines of which something was said of an attempt that has ended by itself: alarms are
        shown of what is at work, and if it is still so it is news of another attempt there."""
        for machine, spoken in list(self._machines.items()):
            if not self._stands(*spoken.attempt):
                self._said.difference_update(spoken.spared)
                del self._machines[machine]

    def _attempts(self) -> list[Seen]:
        """What is at work, and what has ended and was not read to its end."""
        running: list[Seen] = []
        ended: list[Seen] = []
        for run, view in self._board.views.items():
            state = view.state
            if self._is_running(run, state.attempt):
                quiet, body = self._beats.of(run, state.attempt)
                running.append(Seen(run, state.attempt, True, quiet, body, view.cancel))
                continue
            over = state.attempt and state.state not in OPEN
            if over and (run, state.attempt) not in self._judged and len(ended) < _MOST_ENDED:
                failed = self._last_words(run) if state.state is State.FAILED else None
                done = state.state is State.SUCCEEDED
                ended.append(Seen(run, state.attempt, False, failed=failed, succeeded=done))
        # An attempt may be followed by the next before its last rows were read.
        now = {(seen.run, seen.attempt) for seen in (*running, *ended)}
        ended += [Seen(run, attempt, False) for run, attempt in self._before - now]
        ended = [seen for seen in ended if (seen.run, seen.attempt) not in self._judged]
        chosen = running + ended[:_MOST_ENDED]
        self._before = {(seen.run, seen.attempt) for seen in chosen}
        return chosen

    def _last_words(self, run: str) -> str | None:
        """The last line that a run printed which has failed."""
        return None if self._ends.end(run) is None else self._ends.failure(run).line

    def _say_pending(self) -> None:
        """One that cannot be said is told of and passed over: it must not hold up the others.
        Raises `StoreError`: what is left is put on record later."""
        while self._pending:
            try:
                self._say(self._pending[0])
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
                self._tell(f"alarms: {type(error).__name__}: {error}")
            self._pending.popleft()

    def _say(self, found: Found) -> None:
        """Put an alarm on record, tell it, and set about what it sets off. Where it is on record
        already it is ours, whose reply was lost: we hold the sweep, and know what was there."""
        machine = None
        if found.rule in _OF_A_MACHINE and found.host is not None:
            machine = (found.rule, found.host)
            if machine in self._machines:
                key = (found.run, found.attempt, found.rule)
                self._machines[machine].spared.add(key)
                return  # it was said of another run there
        actions = self._reactions.wanted(found.rule)
        if machine in self._acted and not self._is_taken_back(*self._acted[machine]):
            actions = ()  # that was done about the machine, and would be done to run after run
        evidence, planned = found.evidence, self._board.runs[found.run]
        alarm = Alarm(
            run=found.run,
            name=planned.name,
            attempt=found.attempt,
            rule=found.rule,
            time=timestamp(),
            key=None if evidence.key is None else _plain(evidence.key),
            step=evidence.step,
            value=evidence.value,
            bound=evidence.bound,
            message=_plain(evidence.message),
            advice=ADVICE[found.rule],
            actions=actions,
        )
        put(self._store, self._layout, alarm)
        if machine is not None:
            self._machines[machine] = _Spoken((found.run, found.attempt), set())
            if actions:
                self._acted[machine] = (found.run, found.attempt)
        # A line is told once: without its number, the same of a later attempt would not be.
        again = f" (attempt {alarm.attempt})" if alarm.attempt > 1 else ""
        self._tell(f"alarm: {alarm.name}{again}: {alarm.rule}: {alarm.message}")
        self._reactions.add(alarm)

    def _keep(self, *, last: bool = False) -> None:
        """Now and then: what need not be read again by the launcher after us."""
        size, at = self._kept
        now = self._clock()
        if len(self._judged) > size and (last or now - at >= _JUDGED_SECONDS):
            self._kept = (len(self._judged), now)
            document = {"schema": SCHEMA, "attempts": sorted(self._judged)}
            self._store.replace(self._layout.judged, encode(document), durable=False)

    def _tell(self, text: str) -> None:
        if text not in self.lines:
            self.lines = (*self.lines, text)[-_MOST_LINES:]


def _plain(text: str) -> str:
    """As a terminal can show it: a recipe may call its metrics anything."""
    return sanitize(text[:_LONGEST])
