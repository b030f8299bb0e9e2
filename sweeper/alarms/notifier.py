"""Records the messages of a sweep, once each, and starts the program that sends them (`sweeper
doctor notify`). Errors in this module do not stop or delay the launcher."""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sweeper.alarms.records import Alarm
from sweeper.alarms.stack_requests import shortened
from sweeper.common.sweeper_argv import self_command
from sweeper.errors import StoreError, SweeperError
from sweeper.grid.notify import notify_of
from sweeper.store.documents import timestamp
from sweeper.sweep import messages
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.notify import Message, Notify
from sweeper.sweep.plan import Budget, Plan

_MOST_ALARMS = 20
"""The largest number of messages about alarms. One last message then says that there are more
alarms."""
_SECONDS = 5.0
"""Seconds between two checks whether the sending program must be started."""


def notifier(
    folder: SweepFolder, plan: Plan, env_file: str | None, clock: Callable[[], float]
) -> "Notifier | None":
    """Return the notifier of a sweep; None if no receivers of notifications are configured. Raises
    `EnvironmentFailure` if the configuration of notifications is invalid."""
    notify = notify_of(plan)
    if notify is None:
        return None
    return Notifier(folder, notify, env_file, budget=plan.budget, clock=clock)


class Notifier:
    """The part of a launcher that sends notifications about one sweep. `start` starts a command
    as a separate process, and returns a function that says whether the command is still running."""

    def __init__(
        self,
        folder: SweepFolder,
        notify: Notify,
        env_file: str | None,
        start: "Callable[[Sequence[str], Mapping[str, str]], Callable[[], bool]] | None" = None,
        *,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._notify, self._env_file = folder, notify, env_file
        self._budget, self._clock = budget, clock
        self._start = start or _started
        self._due: list[Message] = []
        self._alarms = 0
        self._known: set[str] = set()
        self._runs: Callable[[], bool] = lambda: False
        self._wanted = False
        self._next = clock()
        self._begun = False

    def raised(self, alarm: Alarm) -> None:
        """Queue a message about a recorded alarm. Do nothing if the configuration excludes alarms,
        or if the message was queued earlier. Only `_MOST_ALARMS` alarms get messages of their own;
        one last message says that there are more alarms."""
        key = f"alarm-{alarm.run}-{alarm.attempt}-{alarm.rule}"
        muted = "alarm" not in self._notify.on or self._alarms > _MOST_ALARMS
        if muted or key in self._known:
            return
        self._alarms += 1
        if self._alarms > _MOST_ALARMS:
            text = f"there are more alarms: `sweeper alarms {self._folder.name}` lists them"
            self._add("alarm-more", "alarm", text)
            return
        advice = f" ({alarm.advice})" if alarm.advice else ""
        stacks = f"\n{shortened(alarm.stacks)}" if alarm.stacks else ""
        self._add(key, "alarm", f"{alarm.name}: {alarm.rule}: {alarm.message}{advice}{stacks}")

    def check(self, reached: str | None) -> None:
        """Record the queued messages in the store, and start the program that sends them. `reached`
        says which limit of the budget is reached (None: no limit)."""
        if reached is not None and "budget" in self._notify.on:
            limits = self._budget
            settings = "" if limits is None else json.dumps(limits.document(), sort_keys=True)
            self._add(f"budget-{_digest(settings + reached.partition('(')[0])}", "budget", reached)
        self._record()
        if self._clock() >= self._next:
            self._next = self._clock() + _SECONDS
            self._send()

    def end(self, counts: str, held: str | None, states: Mapping[str, tuple[str, int]]) -> None:
        """Record and send the message about the end of the sweep. `counts` describes the outcomes
        of the runs. `held` says why the sweep is held (None: it is not held). `states` is a dict
        from run to (state, attempt). Another call with the same `states` sends no second
        message."""
        if "end" in self._notify.on:
            why = f"; {held}" if held else ""
            key = f"end-{_digest(json.dumps(sorted(states.items())))}"
            self._add(key, "end", f"has ended: {counts or 'no runs'}{why}")
        self._record()
        self._send(again=True)

    def _add(self, key: str, kind: str, text: str) -> None:
        if key not in self._known:
            self._known.add(key)
            self._due.append(Message(key, kind, text, timestamp()))

    def _record(self) -> None:
        """Record the queued messages. If the store fails, the remaining messages stay in the
        queue."""
        if not self._begun:
            self._begun = True
            self._wanted = True  # an earlier launcher may have left messages unsent
        with suppress(StoreError):
            while self._due:
                self._wanted |= messages.put(self._folder, self._due[0])
                self._due.pop(0)

    def _send(self, *, again: bool = False) -> None:
        """Start the program that sends the recorded messages, if there are any. If the program is
        already running, start a second one only if `again` is True. The second one finds messages
        that the first may miss."""
        if not self._wanted or (self._runs() and not again):
            return
        folder = self._folder
        with suppress(SweeperError, OSError):
            if messages.keys(folder):
                command = self_command(
                    "doctor", "notify", folder.name, "--root", folder.store.root, "--quiet"
                )
                self._runs = self._start(command, read_environment(self._env_file))
            self._wanted = False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _started(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], bool]:
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=_with_ours(environment), stdin=null, stdout=null, stderr=null,
        start_new_session=True,
    )  # fmt: skip
    return lambda: process.poll() is None


def _with_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` plus the variables of this process that configure sweeper."""
    variables = {
        k: v for k, v in os.environ.items() if k.startswith(("SWEEPER_", "XDG_CONFIG_HOME"))
    }
    return {**environment, **variables}
