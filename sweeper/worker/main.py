"""The worker: `python -m sweeper.worker.main [OPTION VALUE ...] <folder> <token>`. Claims the
attempt, runs the recipe, sends heartbeats, and records the outcome. It imports little."""

# The worker holds a lock from before the claim until its end. The claim is durable before the
# recipe starts, the recipe's files and the log before the outcome, and the outcome before the
# process exits. If the store is remote, everything is written to a local spool first and is in the
# store before the outcome.

import math
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from sweeper.common.backoff import delays, retried
from sweeper.common.codec import SCHEMA
from sweeper.common.full_machine import crowding, when_there_is_room
from sweeper.common.logs import log_in_a_job
from sweeper.common.redaction import Redactor, secret_values
from sweeper.errors import AlreadyExists, StoreError, SweeperError
from sweeper.store.documents import encode, read_as, timestamp
from sweeper.sweep import job as jobs
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.job import Job
from sweeper.sweep.states import Event
from sweeper.sweep.worker_lock import hold
from sweeper.worker import checkpoint_resume, fork_client
from sweeper.worker.child import Child, Guard
from sweeper.worker.claim import claim, reopen, restarts, with_retries
from sweeper.worker.heartbeat import BEAT_SECONDS, Heartbeat, Requests
from sweeper.worker.job import (
    Prepared,
    backend_variables,
    origin_of,
    prepare,
    usage_folder,
    with_gpus,
)
from sweeper.worker.outcome import Ending, Judged, MemoryKills, blame, crowded_out, failure, judge
from sweeper.worker.output import Output, last_word, say, set_blocking, sync_files
from sweeper.worker.rate_limits import Pauses
from sweeper.worker.usage import UsageFiles

if TYPE_CHECKING:
    from sweeper.common.gpus import Taken
    from sweeper.worker.syncing import Syncing
    from sweeper.worker.terminal import Terminal

SIGNAL_SECONDS = 1.0
KILL_SECONDS = 10.0
"""Seconds that a worker waits for a signal of its own after its recipe was killed."""
_PAUSED_SECONDS = 1.0
"""Seconds between checks of a pause. The interval is short, since a launcher may start another run
when a pause ends."""
_LOOK_SECONDS = 0.5
"""Seconds for which a check for requests stays valid."""
_COPY_SECONDS = 5.0
"""The shortest time, in seconds, that a stopped worker waits for a blocked log."""
_TRIES = 4
"""How many times a failed preparation is retried if the store accepts heartbeats."""


class Worker:
    """The execution of one attempt of a run."""

    def __init__(
        self, folder: SweepFolder, run: str, attempt: int, submitted: int | None = None
    ) -> None:
        self.submitted = submitted
        self.store = folder.store
        self.folder = folder
        self.run = run
        self.attempt = attempt
        self._gpus: Taken | None = None
        self._terminal: Terminal | None = None
        self._child: Child | fork_client.ForkedChild | None = None
        self._heartbeat = Heartbeat(folder, run, attempt)
        self._requests = Requests(folder, run, attempt)
        self._looked_at = -math.inf
        self._syncing: Syncing | None = None  # only with a remote store
        self._redactor = Redactor(())
        # A SimpleQueue, because a signal handler may put into it during another put, which the
        # locks of `threading` do not allow.
        self._wake: SimpleQueue[None] = SimpleQueue()
        # When and why the recipe was asked to stop.
        self._stopped_at = 0.0
        self._stop: signal.Signals | None = None
        self._stop_sent = False
        self._timed_out = False
        self._killed = False

    def main(self) -> int:
        """Execute the attempt. Return 0 if the run succeeded or the attempt belongs to another
        worker, 75 if the worker was asked to stop and the run can resume, else 1."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # The run outlives the terminal.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        set_blocking(False)
        described = self.folder.job(self.run, self.attempt)
        job = with_retries(lambda: read_as(self.store, described, jobs.read))
        path = self.store.local_path(described)
        if path is not None:
            hold(path)
        self.folder = self.folder.with_metrics_in(job.settings.metrics_dir)
        origin = origin_of(job, self.store)
        if not claim(self.folder, self.run, self.attempt, self.submitted, origin):
            say(f"sweeper: attempt {self.attempt} of {job.name} belongs to another worker")
            return 0
        started = timestamp()
        self._heartbeat.begin()
        try:
            outcome = self._execute(job)
        except Exception as error:  # noqa: BLE001 - a claim without an outcome would be a lost run
            outcome = self._broken_off(error)
        if outcome["detail"]:
            outcome["detail"] = self._redactor.text(outcome["detail"])
        event, wall_s = outcome["event"], self._heartbeat.up_seconds()
        body = (
            {
                "schema": SCHEMA,
                "time": timestamp(),
                "started": started,
                "ended": timestamp(),
                "wall_s": wall_s,
                "paused_s": self._heartbeat.paused_seconds(),
                "pauses": self._heartbeat.listed_pauses(),
                "max_rss_bytes": None,
                "host": os.uname().nodename,
            }
            | origin
            | {key: value for key, value in outcome.items() if key != "event"}
            | self._heartbeat.used()
            | {"gpus": self._heartbeat.gpus and self._heartbeat.gpus.text}
        )
        self._record(event, body)
        if self._syncing is not None:
            self._syncing.forget(succeeded=event is Event.SUCCEEDED)
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        detail = f": {outcome['detail']}" if outcome["detail"] else ""
        say(f"sweeper: {event.value}{reason} after {wall_s:.1f} s{detail}")
        last_word(f"{event.value}{reason}")
        if event is Event.PREEMPTED and outcome["reason"] == "terminated":
            return os.EX_TEMPFAIL  # Some backends then start the job again.
        return 0 if event is Event.SUCCEEDED else 1

    def _execute(self, job: Job) -> Judged:
        self._look_for_requests()
        if self._stopped_at:
            return judge(self._ending(None))
        try:
            prepared = self._prepare(job)
            if prepared is None or self._stopped_at:
                return judge(self._ending(None))
            say(f"sweeper: {job.name}, attempt {self.attempt}, in {prepared.log_path}")
            self._heartbeat.folder = prepared.log_path
            self._heartbeat.usage = UsageFiles(usage_folder(prepared.place, self.run, self.attempt))
            self._redactor = Redactor(secret_values(prepared.environment, job.secrets))
            if job.settings.gpus:
                self._gpus = with_gpus(job, prepared, self._heartbeat, self._rest)
                if self._gpus is None:
                    return judge(self._ending(None))
            kills = MemoryKills()
            self._begin_syncing(job, prepared)
            guard = self._begin_recipe(job, prepared)
        except (OSError, ValueError, SweeperError) as error:
            if crowding(error) is not None:
                raise
            return failure("start", str(error))
        if self._stopped_at:
            self._ask_to_stop()  # The request came before the recipe's process existed.
        if self._syncing is not None:
            when_there_is_room(self._syncing.start)
        output, code, memory = self._attend(job, prepared, guard)
        if not kills.count():
            self._await_signal(code)
        final = checkpoint_resume.has_final_checkpoint(
            os.path.join(prepared.log_path, self.folder.inner)
        )
        ending = self._ending(code)._replace(
            final=final,
            timeout_s=job.settings.timeout_s if self._timed_out else None,
            memory_kills=kills.count(),
            tail=output.tail,
        )
        unsynced = self._sync(prepared)
        if unsynced is not None:  # The run may have been cancelled meanwhile.
            ending = ending._replace(cancelled=self._requests.cancelled, unsynced=unsynced)
        judged = blame(job, judge(ending))
        judged["max_rss_bytes"] = memory
        if output.lost:
            judged["log_lost_bytes"] = output.lost
        return judged

    def _begin_recipe(self, job: Job, prepared: Prepared) -> Guard:
        """Start the recipe, from a fork server if possible. Return the `Guard` of the recipe's
        process."""
        guard = when_there_is_room(Guard)
        program = fork_client.Program(prepared.command, prepared.cwd, prepared.environment)
        modules = prepared.modules
        if modules is not None and self._has_failed_before():
            # The fork may have caused the failure, so the next attempt does not fork.
            modules = None
        try:
            if job.settings.debug:
                from sweeper.worker.terminal import Terminal

                self._terminal = Terminal()
                self._child = self._terminal.spawn(program, guard)
            else:
                self._child = fork_client.start(modules, job, guard, program, self._beats_on)
        except (OSError, SweeperError):
            guard.dismiss()
            raise
        return guard

    def _rest(self, seconds: float) -> bool:
        """Wait at most `seconds` seconds. Return False if the worker has to stop."""
        with suppress(Empty):
            self._wake.get(timeout=seconds)
        return self._beats_on()

    def _beats_on(self) -> bool:
        """Write a heartbeat if one is due. Return False if the worker has to stop."""
        if time.monotonic() >= self._heartbeat.written + BEAT_SECONDS:
            self._beat()
        return not self._stopped_at

    def _has_failed_before(self) -> bool:
        before = self.attempt - 1
        return before > 0 and self.store.exists(self.folder.event(self.run, before, Event.FAILED))

    def _broken_off(self, error: Exception) -> Judged:
        """Kill the recipe after an error of sweeper or the machine. Return the outcome."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            with suppress(OSError):
                self._child.reap()  # The recipe must not overlap with the next attempt.
        lack = crowding(error)
        if lack is None:
            return failure("error", f"a bug in sweeper: {type(error).__name__}: {error}")
        return judge(self._ending(None)) if self._stopped_at else crowded_out(lack)

    def _prepare(self, job: Job) -> Prepared | None:
        """Determine what to execute. Return None if the worker has to stop first. Retry after an
        error of the store. Give up after more than `_TRIES` errors in a row, if the store accepted
        a heartbeat after each of them. Read the file with the environment only once, because the
        file may be deleted after the worker's first heartbeat."""
        environment = read_environment(job.env_file)
        variables = {**environment, **job.settings.env}
        # Errors during the preparation may contain secrets too.
        self._redactor = Redactor(secret_values(variables, job.secrets))
        log_in_a_job(self._redactor.text)
        tries, pause = 0, min(1.0, BEAT_SECONDS)
        while not self._stopped_at:
            try:
                return prepare(self.folder, job, environment, self._beats_on)
            except StoreError as error:
                tries = tries + 1 if self._beat() else 0
                if tries > _TRIES:
                    raise
                say(f"sweeper: {error}; trying again in {pause:g} s")
            with suppress(Empty):
                self._wake.get(timeout=pause)
            pause = min(pause * 2, BEAT_SECONDS)
        return None

    def _attend(self, job: Job, prepared: Prepared, guard: Guard) -> tuple[Output, int, int | None]:
        """Watch the recipe until it has ended. Return its output, exit code and peak memory."""
        child = self._child
        assert child is not None  # noqa: S101 - it was just started
        pauses = self._heartbeat.pauses = Pauses(
            os.path.join(prepared.log_path, self.folder.inner), begun=lambda: self._wake.put(None)
        )
        log = self.folder.log(self.run, self.attempt)
        output = Output(prepared.place.store, log, self._redactor, pauses)
        over, ending = os.pipe()
        copying = threading.Thread(target=output.copy, args=(child.output, over), daemon=True)
        when_there_is_room(copying.start)
        ended = threading.Event()
        waiting = threading.Thread(target=self._await, args=(child, ended), daemon=True)
        when_there_is_room(waiting.start)
        self._watch(job, ended, pauses)
        killed = self._killed
        self._signal(signal.SIGKILL)  # Kill the remaining processes of the recipe's group.
        self._killed = killed
        guard.dismiss()
        self._child = None  # From now on, another process group may get the id.
        if self._gpus is not None:
            self._gpus.release()
        code, memory = child.reap()
        os.close(ending)
        self._await_copy(copying, job.settings.grace_s)
        if self._terminal is not None:
            self._terminal.restore()
        return output, code, memory

    def _await_copy(self, copying: threading.Thread, grace_s: float) -> None:
        """Wait until the recipe's output is copied, because its last lines may explain a failure.
        If the worker has to stop, wait no longer than the grace period or, if longer, 5 seconds."""
        deadline = time.monotonic() + _COPY_SECONDS
        while copying.is_alive():
            copying.join(1.0)
            if self._stopped_at and time.monotonic() > max(deadline, self._stopped_at + grace_s):
                return
            self._beats_on()

    def _watch(self, job: Job, ended: threading.Event, pauses: Pauses) -> None:
        """Write heartbeats until the recipe has ended. Stop the recipe on request, and when the
        attempt is superseded or out of time."""
        begun = time.monotonic()
        self._beat()
        next_beat, was_paused = begun + BEAT_SECONDS, False
        while True:
            if ended.is_set():
                return
            now = time.monotonic()
            if was_paused:
                self._heartbeat.used()  # The call also updates the pause.
            paused = pauses.current() is not None
            if now >= next_beat or paused is not was_paused:
                was_paused = paused
                self._beat()
                now = time.monotonic()
                next_beat = now + BEAT_SECONDS
            timeout_at = math.inf
            if job.settings.timeout_s is not None and not self._stopped_at:
                timeout_at = begun + job.settings.timeout_s + pauses.seconds()
                if now >= timeout_at:
                    self._timed_out = True
                    self._begin_stop()
            kill_at = self._stopped_at + job.settings.grace_s if self._stopped_at else math.inf
            if now >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at = now + 1.0  # Signal again, for processes that were started meanwhile.
            look_at = now + _PAUSED_SECONDS if was_paused else math.inf
            with suppress(Empty):
                self._wake.get(timeout=max(0.0, min(next_beat, timeout_at, kill_at, look_at) - now))

    def _beat(self) -> bool:
        """Check for requests if the last check is too old, and write a heartbeat. Return whether
        the store accepted the heartbeat. For a removed sweep, write nothing and return False."""
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._look_for_requests()
        elif not self.store.is_remote:  # A heartbeat would create the removed folder again.
            with suppress(StoreError):
                self._requests.look_for_sweep()
        return not self._requests.removed and self._heartbeat.write()

    def _look_for_requests(self) -> None:
        self._looked_at = time.monotonic()
        if self._requests.check():
            self._begin_stop()
        if self._requests.removed and self._syncing is not None:
            self._syncing.abandon()
        elif self._requests.stacks and self._child is not None:
            self._heartbeat.tell_stacks(self._child.pid)

    def _ending(self, code: int | None) -> Ending:
        """Return an `Ending` with the exit code and the reasons why the recipe was stopped."""
        if self._stopped_at and not self._requests.cancelled:
            with suppress(StoreError):  # The signal may stand for a cancel request.
                self._requests.look_for_cancel()
        return Ending(
            code,
            None,
            superseded=self._requests.superseded,
            cancelled=self._requests.cancelled,
            stopped=self._stop,
            killed_by_us=self._killed,
        )

    def _await(self, child: Child | fork_client.ForkedChild, ended: threading.Event) -> None:
        child.await_end()
        ended.set()
        self._wake.put(None)

    def _await_signal(self, code: int) -> None:
        """Wait some seconds for a signal to this worker. A backend may stop a job with signals to
        all its processes, and the recipe may get its signal first. Such a recipe has not failed. If
        the backend kills the worker meanwhile, the outcome has the backend's reason."""
        everybody = os.environ.get("SWEEPER_SIGNALS") == "everybody"
        if code and not self._stopped_at and (everybody or code == -signal.SIGTERM):
            seconds = KILL_SECONDS if code == -signal.SIGKILL else SIGNAL_SECONDS
            deadline = time.monotonic() + seconds
            while not self._stopped_at and (left := deadline - time.monotonic()) > 0:
                with suppress(Empty):
                    self._wake.get(timeout=left)

    def _sync(self, prepared: Prepared) -> str | None:
        """Flush the recipe's files and log to disk before the outcome is recorded. Files in
        subfolders are not flushed, because no run resumes from these files. If the store is remote,
        also finish the upload. Return what is missing in the remote store, or None."""
        attempt = prepared.place.store.local_path(self.folder.attempt(self.run, self.attempt))
        for folder in filter(None, (prepared.log_path, attempt)):
            with suppress(OSError):
                sync_files(folder)
        if self._syncing is None or self._requests.removed:
            return None
        return self._syncing.finish(self._beat, BEAT_SECONDS, lambda: self._requests.cancelled)

    def _begin_syncing(self, job: Job, prepared: Prepared) -> None:
        """If the store is remote, record that the attempt is unsynced, and create its sync
        thread."""
        if prepared.place.store is self.store:
            return
        from sweeper.worker.spool import Spooled, start_syncing

        spooled = Spooled(self.store, prepared.place, self.run, self.attempt)
        self._syncing = start_syncing(spooled, job.settings.sync_s, say)

    def _record(self, event: Event, body: dict[str, object]) -> None:
        """Record an event. Retry as long as the store does not answer, because a run without an
        outcome counts as lost. Record nothing if the sweep was removed."""

        def create() -> None:
            if self._requests.look_for_sweep():
                say(f"sweeper: the sweep {self.folder.name} was removed, so nothing is recorded")
                return
            with suppress(AlreadyExists):
                self.store.create(self.folder.event(self.run, self.attempt, event), encode(body))

        def note(error: Exception, wait: float) -> None:
            say(f"sweeper: {error}; trying again in {wait:g} s")

        waits = delays(1.0, most=60.0)
        retried(create, waits, lambda error: isinstance(error, StoreError), note=note)

    def _on_stop(self, number: int, frame: object) -> None:
        del frame
        if self._stop is None:
            self._stop = signal.Signals(number)
        self._begin_stop()
        self._wake.put(None)

    def _begin_stop(self) -> None:
        self._stopped_at = self._stopped_at or time.monotonic()
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Send SIGTERM to the recipe only once, because many programs exit immediately at a second
        SIGTERM."""
        if self._child is not None and not self._stop_sent:
            self._stop_sent = True
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the recipe's process group."""
        if self._child is not None:
            self._killed |= number is signal.SIGKILL
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)


def main(arguments: list[str]) -> int:
    """Run a worker. The arguments are options, the sweep's folder and the job's token. The options
    are the file with the environment for reaching the store (`--env`), the name of the variable in
    which the backend counts restarts (`--restarts`), the variable's value at the first start
    (`--first`), and how to reach the store (`--store shared`)."""
    *options, folder, token = arguments
    named = dict(zip(options[::2], options[1::2], strict=True))
    run, _, submitted = token.rpartition("-a")
    first = named.get("--first")
    try:
        attempt = int(submitted)
        attempt += restarts(named.get("--restarts", ""), int(first) if first else None)
        if "--env" in named:
            # The backend's variables take precedence over those of the launch.
            os.environ.update(read_environment(named["--env"]) | backend_variables())
        again = attempt > int(submitted)
        root, _, name = folder.rpartition("/")
        if named.get("--store") == "shared":
            from sweeper.store.shared import open_shared

            sweep_folder = SweepFolder(open_shared(root), name)
        else:
            sweep_folder = SweepFolder.open(root, name)
        if again and not reopen(sweep_folder, run, int(submitted), attempt):
            say(f"sweeper: {run} has ended or is being stopped, so there is nothing to continue")
            return 0
        return Worker(sweep_folder, run, attempt, int(submitted)).main()
    except SweeperError as error:
        say(f"sweeper: {error}")
        return 1


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    set_blocking(True)
    os._exit(ended)  # Nothing is buffered, so Python's slow shutdown is skipped.
