"""Carries out the actions of `on_alarm`, once per alarm. Each alarm's actions are recorded in a
file that is created exclusively, so that the next launcher can continue after a kill."""

import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from sweeper.alarms.records import Alarm, read_action
from sweeper.common.codec import SCHEMA
from sweeper.common.last_line import last_line
from sweeper.common.redaction import Redactor, secret_values
from sweeper.errors import AlreadyExists, SweeperError
from sweeper.recipe.command_template import render_command
from sweeper.store.documents import encode, timestamp
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import OnAlarm, Plan
from sweeper.sweep.requests import request_cancel
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import OPEN
from sweeper.sweep.sweep_requests import ask_cancel

_AT_ONCE = 4
_COMMAND_SECONDS = 60.0
_STOPS_AT_ONCE = 50
_ALARMS_AT_ONCE = 20
_LAST_SECONDS = 65.0
_TAIL_BYTES = 16_384


class _Command(NamedTuple):
    alarm: Alarm
    argv: list[str]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun: float


class Watched(NamedTuple):
    """The sweep that a launcher watches for alarms. `clock` returns monotonic seconds."""

    folder: SweepFolder
    plan: Plan
    run_table: RunTable
    clock: Callable[[], float] = time.monotonic


class AlarmActions:
    """The executor of the actions in a plan's `on_alarm`. `tell` is called with a line about each
    failure."""

    def __init__(
        self, watched: Watched, *, tell: Callable[[str], None], env_file: str | None = None
    ) -> None:
        folder, plan, run_table, clock = watched
        self._env_file = env_file
        self._own = uuid.uuid4().hex
        self._folder = folder
        self._run_table = run_table
        self._clock = clock
        self._tell = tell
        actions = plan.on_alarm or OnAlarm()
        self._command = None if actions.run is None else list(actions.run)
        self._stop = actions.stop
        self._rules = actions.rules
        self._staged = bool(plan.stages)
        self._secrets = plan.secrets
        self._cwd = plan.recipe.cwd
        self._due: deque[Alarm] = deque()
        self._stopping: deque[str] | None = None
        self._commands: list[_Command] = []

    def wanted(self, rule: str) -> tuple[str, ...]:
        """Return the actions that an alarm of this rule triggers; empty if there are none."""
        if self._rules is not None and rule not in self._rules:
            return ()
        actions = [] if self._stop is None else [f"stop {self._stop}"]
        return (*actions, *(["run"] if self._command else []))

    def add(self, alarm: Alarm) -> None:
        """Queue the actions of an alarm. They begin at the next `check`."""
        if alarm.actions:
            self._due.append(alarm)

    def recover(self, alarms: Sequence[Alarm]) -> None:
        """Queue the actions of earlier alarms. Skip alarms whose actions are already recorded."""
        # Make the list first: if the store fails, nothing is queued, and the caller tries again.
        self._due.extend(
            [
                alarm
                for alarm in alarms
                if alarm.actions
                and not self._folder.store.exists(
                    self._folder.action(alarm.run, alarm.attempt, alarm.rule)
                )
            ]
        )

    def check(self) -> None:
        """Carry out the next actions in the queue, for a few alarms at a time. Raises
        `StoreError`."""
        self._see_to_commands()
        for _ in range(_ALARMS_AT_ONCE):
            if (
                not self._due
                or len(self._commands) >= _AT_ONCE
                or not self._stop_runs(self._due[0])
            ):
                return
            self._record(self._due[0])
            self._due.popleft()

    def finish(self) -> None:
        """Carry out the remaining actions and wait for their commands, for at most
        `_LAST_SECONDS`. Raises `StoreError`."""
        deadline = self._clock() + _LAST_SECONDS
        self.check()
        while (self._commands or self._due) and self._clock() < deadline:
            for command in self._commands:
                with suppress(subprocess.TimeoutExpired):
                    command.process.wait(0.2)
            self.check()

    def _stop_runs(self, alarm: Alarm) -> bool:
        """If the alarm stops runs, request the stop of the next `_STOPS_AT_ONCE` runs. Return False
        if runs may be left to stop."""
        if "stop run" not in alarm.actions and "stop sweep" not in alarm.actions:
            return True
        if self._stopping is None:
            whole = "stop sweep" in alarm.actions
            if whole and self._staged:
                ask_cancel(self._folder, _who(alarm))
            self._stopping = deque(list(self._run_table.runs) if whole else [alarm.run])
        for _ in range(_STOPS_AT_ONCE):
            if not self._stopping:
                self._stopping = None
                return True
            self._cancel(self._stopping[0], alarm)
            self._stopping.popleft()
        return False

    def _cancel(self, run: str, alarm: Alarm) -> None:
        """Request the stop of a run, as `sweeper cancel` does. Do nothing if the alarm is about an
        earlier attempt of this run."""
        view = self._run_table.views.get(run)
        if view is None or (run in self._run_table.retired and view.state.state not in OPEN):
            return
        if run == alarm.run and view.state.opened > alarm.attempt:
            return  # the run was restarted, and the alarm is not about the new attempt
        happened = set(self._run_table.events(run))
        request_cancel(self._folder, run, happened, self._run_table.retries(run), _who(alarm))

    def _record(self, alarm: Alarm) -> None:
        """Record the actions of an alarm, and start the command if one of the actions is a command.
        Do nothing if another launcher has already recorded these actions."""
        argv = self._argv(alarm) if "run" in alarm.actions else None
        is_lost = "run" in alarm.actions and argv is None
        document = self._document(
            alarm, argv, "not run: the grid no longer has this command" if is_lost else None
        )
        path = self._folder.action(alarm.run, alarm.attempt, alarm.rule)
        try:
            self._folder.store.create(path, encode(document))
        except AlreadyExists:
            if read_action(self._folder, alarm).by != self._own:
                return  # Otherwise this launcher made the file, and the reply was lost.
        if argv is not None:
            self._start(alarm, argv)

    def _argv(self, alarm: Alarm) -> list[str] | None:
        if self._command is None:
            return None
        values = {
            "run": alarm.run,
            "name": alarm.name,
            "rule": alarm.rule,
            "sweep": self._folder.name,
            "attempt": alarm.attempt,
            "message": alarm.message,
        }
        try:
            return render_command(self._command, values)
        except SweeperError as error:
            self._tell(f"on_alarm: {error}")
            return None

    def _start(self, alarm: Alarm, argv: list[str]) -> None:
        more = {
            "SWEEPER_ROOT": self._folder.store.root,
            "SWEEPER_SWEEP": self._folder.name,
            "SWEEPER_RUN": alarm.run,
            "SWEEPER_ATTEMPT": str(alarm.attempt),
            "SWEEPER_RULE": alarm.rule,
            "SWEEPER_ALARM": json.dumps(alarm.document()),
        }
        output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the command ends
        try:
            process = subprocess.Popen(
                argv,
                cwd=self._cwd,
                env=self._environment() | more,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            output.close()
            self._ended(alarm, argv, f"did not start: {error}")
            return
        self._commands.append(_Command(alarm, argv, process, output, self._clock()))

    def _environment(self) -> dict[str, str]:
        """Return the environment in which the sweep was launched. If that environment cannot be
        read, return this process's environment, which may come from a tmux server."""
        try:
            return read_environment(self._env_file)
        except SweeperError:
            return dict(os.environ)

    def _last_words(self, output: IO[bytes]) -> str:
        """Return the last line that a command printed. Secrets are masked, because the line is
        recorded."""
        redactor = Redactor(secret_values(self._environment(), self._secrets))
        return last_line(redactor.feed(_tail(output)) + redactor.end())

    def _see_to_commands(self) -> None:
        for command in list(self._commands):
            code = command.process.poll()
            late = self._clock() - command.begun > _COMMAND_SECONDS
            if code is None and not late:
                continue
            if code is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(command.process.pid, signal.SIGKILL)
                command.process.wait()
            self._commands.remove(command)
            line = self._last_words(command.output)
            command.output.close()
            ended = f"took more than {_COMMAND_SECONDS:g} s" if late and code is None else None
            ended = ended or ("" if code == 0 else f"ended with {code}")
            self._ended(
                command.alarm, command.argv, ended + (f": {line}" if ended and line else "")
            )

    def _ended(self, alarm: Alarm, argv: list[str], problem: str) -> None:
        """Record how a command ended; `problem` is "" if it succeeded."""
        if problem:
            self._tell(f"on_alarm: {argv[0]} for {alarm.name} ({alarm.rule}) {problem}")
        document = self._document(alarm, argv, problem or "done")
        path = self._folder.action(alarm.run, alarm.attempt, alarm.rule)
        with suppress(SweeperError):  # the command has run, and its start is recorded
            self._folder.store.replace(path, encode(document), durable=False)

    def _document(
        self, alarm: Alarm, argv: list[str] | None, outcome: str | None
    ) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "time": timestamp(),
            "by": self._own,
            "actions": list(alarm.actions),
            "command": argv,
            "outcome": outcome,
        }


def _who(alarm: Alarm) -> str:
    return f"the launcher, because of the alarm {alarm.rule}"


def _tail(output: IO[bytes]) -> bytes:
    """Return the last lines of a file. Leave out an incomplete first line, because an incomplete
    secret in it would not be masked."""
    start = max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES)
    output.seek(start)
    data = output.read()
    return data.partition(b"\n")[2] if start else data
