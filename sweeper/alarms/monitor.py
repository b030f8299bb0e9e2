"""Checks running attempts periodically in the launcher, and records each alarm once. Errors in
this module never stop the launcher, and the cost of a check is bounded."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from sweeper.alarms.actions import AlarmActions, Watched
from sweeper.alarms.history import Failed
from sweeper.alarms.records import Alarm, names, put, read
from sweeper.alarms.stack_requests import StackRequests
from sweeper.alarms.watcher import STALLED, Criteria, Detection, Seen, Watcher
from sweeper.common.alarm_thresholds import RULES, resolve
from sweeper.common.codec import SCHEMA
from sweeper.common.sanitize import sanitize
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.sources import ListedOnce
from sweeper.store.documents import encode, read_as, timestamp
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import read_judged
from sweeper.sweep.plan import Plan
from sweeper.sweep.states import OPEN, Event, State

LOOK_SECONDS = 2.0
REMOTE_LOOK_SECONDS = 20.0
_JUDGED_SECONDS = 10.0
_MOST_ENDED = 100
_UPDATES = ("substeps", "num_substeps")
"""The fields with the number of updates per step: in sweeper's recipes, and in
tinker-cookbook's."""
_MOST_LINES = 200
_LONGEST = 500
_LAST_LOOKS = 30
_LAST_SECONDS = 20.0
_OF_A_MACHINE = ("disk", "memory")
"""Rules about a machine. One alarm covers all runs on the machine."""

_Machine = tuple[str, str | None]
"""A rule about machines, and the name of the host that has the problem."""


class _MachineAlarm(NamedTuple):
    """An alarm about a machine. `attempt` is the (run, attempt) that raised the alarm. `spared` has
    a (run, attempt, rule) for each later detection of the problem, which raised no alarm."""

    attempt: tuple[str, int]
    spared: set[tuple[str, int, str]]


class AlarmMonitor:
    """The part of a launcher that raises the alarms of one sweep. `lines` are messages for the
    user, such as new alarms and failed actions. `failed` returns why a run has failed, or None if
    the cause is unknown. `raised` is called with each new alarm and, at the first check, with each
    alarm of earlier launchers."""

    def __init__(
        self,
        watched: Watched,
        heartbeats: Heartbeats,
        *,
        failed: Callable[[str], Failed | None],
        env_file: str | None = None,
        raised: Callable[[Alarm], None] | None = None,
        listed: ListedOnce | None = None,
    ) -> None:
        self._raised = raised or _nobody
        folder, plan, run_table, clock = watched
        self._folder = folder.with_metrics_in(plan.launch.metrics_dir)
        self._run_table = run_table
        self._heartbeats = heartbeats
        self._failed = failed
        self._clock = clock
        remote = folder.store.is_remote
        sync_s = plan.launch.sync_s if remote else 0.0
        self._every = max(REMOTE_LOOK_SECONDS, sync_s) if remote else LOOK_SECONDS
        self.lines: tuple[str, ...] = ()
        self._reported: set[tuple[str, int, str]] = set()
        self._machines: dict[_Machine, _MachineAlarm] = {}
        # The attempt whose alarm triggered actions.
        self._acted: dict[_Machine, tuple[str, int]] = {}
        self._pending: deque[tuple[Detection, str | None]] = deque()
        self._stack_requests = StackRequests(self._folder, clock)
        self._before: set[tuple[str, int]] = set()  # attempts at the previous check
        self._judged: set[tuple[str, int]] = set()
        self._metrics: dict[str | None, str] = {
            stage.name: stage.metric.name for stage in plan.stages if stage.metric is not None
        }
        criteria = Criteria(
            resolve(plan.alarms),
            plan.launch.lease_s,
            is_command=all(part.recipe.kind == "command" for part in plan.parts),
            sync_s=sync_s,
            metric=plan.metric.name if plan.metric and not plan.stages else None,
            lacks_folder=all(map(_lacks_folder, plan.parts)),
        )
        self._watcher = Watcher(
            self._folder, criteria, self._reported, clock=clock, tell=self._tell, listed=listed
        )
        self._alarm_actions = AlarmActions(watched, tell=self._tell, env_file=env_file)
        self._begun = False
        self._next = -1.0
        self._saved: tuple[int, float] = (0, clock())

    def check(self) -> tuple[str, ...]:
        """Check the sweep's runs, if a check is due. Return `lines`."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._look()
        return self.lines

    def is_stalled(self, run: str, attempt: int) -> bool:
        """Return whether an attempt made no progress, according to the last check."""
        return (run, attempt) in self._watcher.stalled

    def finish(self) -> tuple[str, ...]:
        """After all runs have ended, check their last values and finish the actions. Return
        `lines`."""
        deadline = self._clock() + _LAST_SECONDS
        for _ in range(_LAST_LOOKS):
            if self._look() or self._clock() > deadline:
                break
        try:
            self._keep(last=True)
            self._alarm_actions.finish()
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
            self._tell_error(error)
        self._next = self._clock() + self._every  # the next step need not check again
        return self.lines

    def _look(self) -> bool:
        """Check the runs. Return whether the metrics of all ended attempts were read to the end."""
        try:
            self._begin()
            attempts = self._attempts()
            self._forget()
            alarms, over = self._watcher.check(attempts)
            self._pending += [(noticed, None) for noticed in alarms]
            self._pending += self._stack_requests.answered(self._is_running)
            self._record_pending()
            self._judged |= over
            self._keep()
            self._alarm_actions.check()
            return all(seen.running or (seen.run, seen.attempt) in over for seen in attempts)
        except StoreError:
            return False  # the scheduler reports this error; pending alarms are recorded later
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
            self._tell_error(error)
            return True

    def _begin(self) -> None:
        if self._begun:
            return
        for name in names(self._folder):
            self._reported.add((name.run, name.attempt, name.rule))
        recorded = read(self._folder) if self._reported else []
        for alarm in recorded:
            self._recall(alarm)
            self._raised(alarm)
        try:
            self._judged |= read_as(self._folder.store, self._folder.judged, read_judged)
        except (NotFound, StoreError):
            # These attempts are judged again. A recorded alarm is still raised only once.
            self._judged = set()
        self._alarm_actions.recover(recorded)
        self._begun = True

    def _recall(self, alarm: Alarm) -> None:
        """Remember an earlier launcher's alarm about a machine, so that this launcher repeats
        neither the alarm nor the alarm's actions for the machine."""
        attempt = (alarm.run, alarm.attempt)
        stands = self._stands(*attempt)
        acted = bool(alarm.actions) and not self._is_taken_back(*attempt)
        if alarm.rule not in _OF_A_MACHINE or not (stands or acted):
            return
        claimed = (*attempt, Event.CLAIMED)
        with suppress(NotFound, StoreError):  # in that case the machine may get a second alarm
            machine = (alarm.rule, self._folder.read_event(*claimed).host)
            if stands:
                self._machines[machine] = _MachineAlarm(attempt, set())
            if acted:
                self._acted[machine] = attempt

    def _is_running(self, run: str, attempt: int) -> bool:
        view = self._run_table.views.get(run)  # None if no plan contains the run any more
        if view is None or view.state.unacknowledged:
            return False
        return view.state.state is State.RUNNING and view.state.attempt == attempt

    def _stands(self, run: str, attempt: int) -> bool:
        """Return whether the attempt is running or was asked to stop. While this is so, other runs
        on the machine do not repeat the attempt's alarm."""
        if self._is_running(run, attempt):
            return True
        view = self._run_table.views.get(run)
        return view is not None and view.cancel and view.state.opened == attempt

    def _is_taken_back(self, run: str, attempt: int) -> bool:
        """Return whether the attempt was stopped, and a retry was requested afterwards."""
        events = self._run_table.events(run)
        cancelled, retried = (
            max((n for n, event in events if event is kind), default=0)
            for kind in (Event.CANCEL, Event.RETRY)
        )
        return attempt <= cancelled <= retried

    def _forget(self) -> None:
        """Forget an alarm about a machine if the attempt that raised the alarm has ended without a
        request to stop. Another attempt on the machine can then raise a new alarm."""
        for machine, spoken in list(self._machines.items()):
            if not self._stands(*spoken.attempt):
                self._reported.difference_update(spoken.spared)
                del self._machines[machine]

    def _attempts(self) -> list[Seen]:
        """Return the running attempts, and up to `_MOST_ENDED` ended attempts that are not judged
        yet."""
        running: list[Seen] = []
        ended: list[Seen] = []
        for run, view in self._run_table.views.items():
            state = view.state
            if self._is_running(run, state.attempt):
                quiet, body = self._heartbeats.of(run, state.attempt)
                seen = Seen(run, state.attempt, True, quiet, body, view.cancel)
                running.append(self._with_config(seen))
                continue
            over = state.attempt and state.state not in OPEN
            if over and (run, state.attempt) not in self._judged and len(ended) < _MOST_ENDED:
                failed = self._failed(run) if state.state is State.FAILED else None
                done = state.state is State.SUCCEEDED
                seen = Seen(run, state.attempt, False, failed=failed, succeeded=done)
                ended.append(self._with_config(seen)._replace(metric=self._metric(run)))
        # The next attempt may begin before the last rows of this one were read.
        now = {(seen.run, seen.attempt) for seen in (*running, *ended)}
        ended += [Seen(run, attempt, False) for run, attempt in self._before - now]
        ended = [seen for seen in ended if (seen.run, seen.attempt) not in self._judged]
        chosen = running + ended[:_MOST_ENDED]
        self._before = {(seen.run, seen.attempt) for seen in chosen}
        return chosen

    def _metric(self, run: str) -> str | None:
        """Return the name of the metric of a run's stage; None if the stage has no metric."""
        planned = self._run_table.runs.get(run)
        return None if planned is None else self._metrics.get(planned.stage)

    def _with_config(self, seen: Seen) -> Seen:
        """Return the attempt with `model` and `drifts` from the configuration of its run."""
        planned = self._run_table.runs.get(seen.run)
        config = {} if planned is None else planned.config
        name, counts = config.get("model_name"), [config.get(key) for key in _UPDATES]
        return seen._replace(
            model=name if isinstance(name, str) else None,
            drifts=any(isinstance(count, int) and count > 1 for count in counts),
        )

    def _record_pending(self) -> None:
        """Record the new alarms. If the store fails, raise `StoreError`; the next check records the
        remaining alarms. After any other error, report the error and skip the alarm."""
        while self._pending:
            try:
                noticed, text = self._pending[0]
                waits = text is None and noticed.rule == STALLED
                if not waits or not self._is_running(noticed.run, noticed.attempt):
                    self._record(noticed, text or None)
                elif not self._stack_requests.ask(noticed):
                    self._record(noticed)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - an alarm must not stop the launcher
                self._tell_error(error)
            self._pending.popleft()

    def _record(self, noticed: Detection, stacks: str | None = None) -> None:
        """Record an alarm, report the alarm, and queue its actions. Do nothing if the alarm is
        about a machine that already has an alarm of this rule."""
        machine = None
        if noticed.rule in _OF_A_MACHINE and noticed.host is not None:
            machine = (noticed.rule, noticed.host)
            if machine in self._machines:
                self._machines[machine].spared.add((noticed.run, noticed.attempt, noticed.rule))
                return  # another run on the machine already has the alarm
        actions = self._alarm_actions.wanted(noticed.rule)
        if machine in self._acted and not self._is_taken_back(*self._acted[machine]):
            actions = ()  # the action was done for the machine, and is not repeated for each run
        evidence, planned = noticed.evidence, self._run_table.runs[noticed.run]
        alarm = Alarm(
            run=noticed.run,
            name=planned.name,
            attempt=noticed.attempt,
            rule=noticed.rule,
            time=timestamp(),
            key=None if evidence.key is None else _plain(evidence.key),
            step=evidence.step,
            value=evidence.value,
            bound=evidence.bound,
            message=_plain(evidence.message),
            advice=RULES[noticed.rule].advice,
            actions=actions,
            stacks=stacks,
        )
        put(self._folder, alarm)
        self._raised(alarm)
        if machine is not None:
            self._machines[machine] = _MachineAlarm((noticed.run, noticed.attempt), set())
            if actions:
                self._acted[machine] = (noticed.run, noticed.attempt)
        # Equal lines are printed only once. The attempt's number makes lines of later attempts
        # differ.
        again = f" (attempt {alarm.attempt})" if alarm.attempt > 1 else ""
        self._tell(f"alarm: {alarm.name}{again}: {alarm.rule}: {alarm.message}")
        self._alarm_actions.add(alarm)

    def _keep(self, *, last: bool = False) -> None:
        """Record for the next launcher which attempts were judged. Do this at most every
        `_JUDGED_SECONDS` seconds, or at once if `last` is set."""
        size, at = self._saved
        now = self._clock()
        if len(self._judged) > size and (last or now - at >= _JUDGED_SECONDS):
            self._saved = (len(self._judged), now)
            document = {"schema": SCHEMA, "attempts": sorted(self._judged)}
            self._folder.store.replace(self._folder.judged, encode(document), durable=False)

    def _tell_error(self, error: Exception) -> None:
        self._tell(f"alarms: {type(error).__name__}: {error}")

    def _tell(self, text: str) -> None:
        if text not in self.lines:
            self.lines = (*self.lines, text)[-_MOST_LINES:]


def _lacks_folder(plan: Plan) -> bool:
    """Return whether the recipe is a command that does not get the folder of its run."""
    command, env = plan.recipe.command, plan.launch.env
    words = None if command is None else [*command, *env.values()]
    return words is not None and not any("{log_path}" in word for word in words)


def _nobody(alarm: Alarm) -> None:
    """Ignore an alarm, because no receivers are configured."""


def _plain(text: str) -> str:
    """Sanitize and cut a text, because it may contain names of metrics, which recipes choose."""
    return sanitize(text[:_LONGEST])
