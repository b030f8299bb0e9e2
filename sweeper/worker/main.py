"""The worker: `python -m sweeper.worker.main [OPTION VALUE ...] <folder> <token>`.

It claims the attempt, so that no second copy of the job trains; prepares its folder; runs the
recipe in a process group of its own, which does not outlive it; keeps the output; beats; and
records how the recipe ended. Every run starts a worker, so it loads little: no third-party package,
and of the standard library only what it needs.

From before the claim to its end the process holds a lock by which others see that it lives. The
claim is durable before the recipe starts, the recipe's files and the log before the outcome, and
the outcome before the process exits. Where the store is elsewhere, all is written to a spool on
this machine first, and is in the store before the outcome.
"""

import math
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from sweeper.errors import AlreadyExists, StoreError, SweeperError
from sweeper.limits import crowding, when_there_is_room
from sweeper.model import job as jobs
from sweeper.model.job import Job
from sweeper.model.states import Event
from sweeper.provenance.redaction import Redactor, secret_values
from sweeper.storage.documents import SCHEMA, encode, read_as, timestamp
from sweeper.storage.layout import Layout, metrics_dir
from sweeper.storage.opening import open_store
from sweeper.storage.worker_lock import hold
from sweeper.worker import checkpoint_resume, fork_client
from sweeper.worker.child import Child, spawn
from sweeper.worker.claim import claim, with_retries
from sweeper.worker.engine import blame
from sweeper.worker.guard import Guard
from sweeper.worker.heartbeat import Heartbeat
from sweeper.worker.job import (
    Prepared,
    backend_variables,
    prepare,
    read_environment,
    usage_folder,
)
from sweeper.worker.outcome import Ending, Judged, MemoryKills, crowded_out, failure, judge
from sweeper.worker.output import Output, last_word, say, set_blocking
from sweeper.worker.rate_limits import Pauses
from sweeper.worker.requests import Requests
from sweeper.worker.requeue import reopen, restarts
from sweeper.worker.usage import UsageFiles

if TYPE_CHECKING:
    from sweeper.storage.base import Store
    from sweeper.worker.syncing import Syncing

__all__ = ["Worker", "main"]

BEAT_SECONDS = 5.0
SIGNAL_SECONDS = 1.0
KILL_SECONDS = 10.0
"""How long a worker waits for its own signal, and for its own end where the recipe was killed."""
_PAUSED_SECONDS = 1.0
"""Between two looks at a pause, whose end others wait for: a launcher may start another run."""
_COPY_SECONDS = 5.0
"""How long at least a stopped worker waits for a log that takes nothing."""
_TRIES = 4
"""How often preparing is tried again while the store answers."""


class Worker:
    """Executes one attempt of a run."""

    def __init__(
        self, store: "Store", sweep: str, run: str, attempt: int, submitted: int | None = None
    ) -> None:
        self.submitted = submitted
        self.store = store
        self.layout = Layout(sweep)
        self.run = run
        self.attempt = attempt
        self._child: Child | fork_client.ForkedChild | None = None
        self._heartbeat = Heartbeat(store, self.layout, run, attempt)
        self._requests = Requests(store, self.layout, run, attempt)
        self._syncing: Syncing | None = None  # with a store that is elsewhere
        self._redactor = Redactor(())
        # A signal's handler may put into it in the middle of another put, which locks of
        # `threading` do not allow.
        self._wake: SimpleQueue[None] = SimpleQueue()
        # Why and since when we stop it.
        self._stopped_at = 0.0
        self._stop: signal.Signals | None = None
        self._asked = False
        self._timed_out = False
        self._killed = False

    def main(self) -> int:
        """Do the whole job. The exit code is 0 when the run succeeded or was not ours to do, 75
        when it was told to stop and can be resumed, else 1."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may go; the run goes on
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        set_blocking(False)
        described = self.layout.job(self.run, self.attempt)
        job = with_retries(lambda: read_as(self.store, described, jobs.read))
        path = self.store.local_path(described)
        if path is not None:
            hold(path)
        self.layout = Layout(self.layout.sweep, metrics_dir(job.metrics_dir))
        if not claim(self.store, self.layout, self.run, self.attempt, self.submitted):
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
                "max_rss_bytes": None,
                "host": os.uname().nodename,
            }
            | {key: value for key, value in outcome.items() if key != "event"}
            | self._heartbeat.used()
        )
        self._record(event, body)
        if self._syncing is not None:
            self._syncing.forget(succeeded=event is Event.SUCCEEDED)
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        detail = f": {outcome['detail']}" if outcome["detail"] else ""
        say(f"sweeper: {event.value}{reason} after {wall_s:.1f} s{detail}")
        last_word(f"{event.value}{reason}")
        if event is Event.PREEMPTED and outcome["reason"] == "terminated":
            return os.EX_TEMPFAIL  # a backend that can may start the job again
        return 0 if event is Event.SUCCEEDED else 1

    def _execute(self, job: Job) -> Judged:
        """Run the recipe to its end. Returns the outcome."""
        self._look_for_requests()
        if self._stopped_at:
            return judge(self._ending(None))
        try:
            prepared = self._prepare(job)
            if prepared is None or self._stopped_at:
                return judge(self._ending(None))
            say(f"sweeper: {job.name}, attempt {self.attempt}, in {prepared.log_path}")
            self._heartbeat.folder = prepared.log_path
            self._heartbeat.usage = UsageFiles(
                usage_folder(prepared.place, self.layout, self.run, self.attempt)
            )
            self._redactor = Redactor(secret_values(prepared.environment, job.secrets))
            kills = MemoryKills()
            self._begin_syncing(job, prepared)
            guard = self._begin_recipe(job, prepared)
        except (OSError, ValueError, SweeperError) as error:
            if crowding(error) is not None:
                raise
            return failure("start", str(error))
        if self._stopped_at:
            self._ask_to_stop()  # it came while there was no child to hand it to
        if self._syncing is not None:
            when_there_is_room(self._syncing.start)
        output, code, memory = self._attend(job, prepared, guard)
        if not kills.count():
            self._await_signal(code)
        final = checkpoint_resume.has_final_checkpoint(
            os.path.join(prepared.log_path, self.layout.inner)
        )
        ending = self._ending(code)._replace(
            final=final,
            timeout_s=job.timeout_s if self._timed_out else None,
            memory_kills=kills.count(),
            tail=output.tail,
        )
        unsynced = self._sync(prepared)
        if unsynced is not None:  # perhaps since the run was cancelled meanwhile
            ending = ending._replace(cancelled=self._requests.cancelled, unsynced=unsynced)
        judged = blame(job, judge(ending))
        judged["max_rss_bytes"] = memory
        if output.lost:
            judged["log_lost_bytes"] = output.lost
        return judged

    def _begin_recipe(self, job: Job, prepared: Prepared) -> Guard:
        """Start the recipe, forked from what has its imports where that can be. Returns what guards
        it."""
        guard = when_there_is_room(Guard)
        program = fork_client.Program(prepared.command, prepared.cwd, prepared.environment)
        modules = prepared.modules
        if modules is not None and self._has_failed_before():
            modules = None  # it is not to fail again by what a fork may do otherwise
        try:
            forked = fork_client.fork(modules, job, guard, program, self._waits_on)
            self._child = forked or when_there_is_room(partial(spawn, *program, guard))
        except (OSError, SweeperError):
            guard.dismiss()
            raise
        return guard

    def _waits_on(self) -> bool:
        """Beat, while nothing is started yet. Returns whether nobody has asked this to stop."""
        self._beat()
        return not self._stopped_at

    def _beats_on(self) -> bool:
        """The same for what asks more often than it takes to beat."""
        if time.monotonic() >= self._heartbeat.written + BEAT_SECONDS:
            self._beat()
        return not self._stopped_at

    def _has_failed_before(self) -> bool:
        """Whether the attempt before this one failed."""
        before = self.attempt - 1
        return before > 0 and self.store.exists(self.layout.event(self.run, before, Event.FAILED))

    def _broken_off(self, error: Exception) -> Judged:
        """Kill the recipe after an error of ours or of the machine. Returns the outcome."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            with suppress(OSError):
                self._child.reap()  # the next attempt is not to find it at work
        lack = crowding(error)
        if lack is None:
            return failure("error", f"a bug of ours: {type(error).__name__}: {error}")
        return judge(self._ending(None)) if self._stopped_at else crowded_out(lack)

    def _prepare(self, job: Job) -> Prepared | None:
        """Work out what to execute. Returns None when the worker is to stop first.

        While the store does not answer, and no beat gets through to it either, this waits. The kept
        environment is read only once: nobody keeps it for a worker that has beaten.
        """
        environment = read_environment(job.env_file)
        told = {**environment, **job.env}
        self._redactor = Redactor(secret_values(told, job.secrets))  # of what fails meanwhile
        tries, pause = 0, min(1.0, BEAT_SECONDS)
        while not self._stopped_at:
            try:
                return prepare(self.store, self.layout, job, environment, self._beats_on)
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
        """Attend the recipe until it has ended. Returns its output, exit code and memory."""
        child = self._child
        assert child is not None  # noqa: S101 - it was just started
        pauses = self._heartbeat.pauses = Pauses(
            os.path.join(prepared.log_path, self.layout.inner, "metrics.jsonl"),
            begun=lambda: self._wake.put(None),
        )
        log = self.layout.log(self.run, self.attempt)
        output = Output(prepared.place, log, self._redactor, pauses)
        over, ending = os.pipe()
        copying = threading.Thread(target=output.copy, args=(child.output, over), daemon=True)
        when_there_is_room(copying.start)
        ended = threading.Event()
        waiting = threading.Thread(target=self._await, args=(child, ended), daemon=True)
        when_there_is_room(waiting.start)
        self._watch(job, ended, pauses)
        killed = self._killed
        self._signal(signal.SIGKILL)  # whatever the recipe left behind in its group
        self._killed = killed
        guard.dismiss()
        self._child = None  # from here on its group's id may become another's
        code, memory = child.reap()
        os.close(ending)
        self._await_copy(copying, job.grace_s)
        return output, code, memory

    def _await_copy(self, copying: threading.Thread, grace_s: float) -> None:
        """Wait until what the recipe has printed is copied: its last words may say why it failed.
        Who is to stop does not wait beyond the grace for a log that takes nothing."""
        least = time.monotonic() + _COPY_SECONDS
        while copying.is_alive():
            copying.join(1.0)
            if self._stopped_at and time.monotonic() > max(least, self._stopped_at + grace_s):
                return
            self._beats_on()

    def _watch(self, job: Job, ended: threading.Event, pauses: Pauses) -> None:
        """Beat until the recipe has ended, and stop it when that is asked, when the attempt is
        superseded, or when its time is over."""
        begun = time.monotonic()
        self._beat()
        next_beat, was_paused = begun + BEAT_SECONDS, False
        while True:
            if ended.is_set():
                return
            now = time.monotonic()
            if was_paused:
                self._heartbeat.used()  # which hears whether it still is
            paused = pauses.current() is not None
            if now >= next_beat or paused is not was_paused:
                was_paused = paused
                self._beat()
                now = time.monotonic()
                next_beat = now + BEAT_SECONDS
            timeout_at = math.inf
            if job.timeout_s is not None and not self._stopped_at:
                timeout_at = begun + job.timeout_s + pauses.seconds()
                if now >= timeout_at:
                    self._timed_out = True
                    self._begin_stop()
            kill_at = self._stopped_at + job.grace_s if self._stopped_at else math.inf
            if now >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at = now + 1.0  # again, for what was started meanwhile
            look_at = now + _PAUSED_SECONDS if was_paused else math.inf
            with suppress(Empty):
                self._wake.get(timeout=max(0.0, min(next_beat, timeout_at, kill_at, look_at) - now))

    def _beat(self) -> bool:
        """Write a heartbeat, and look for requests. Returns whether the store took it; a store that
        does not answer stops nothing."""
        answered = self._heartbeat.write()
        self._look_for_requests()
        return answered

    def _look_for_requests(self) -> None:
        """Stop when that is asked for."""
        if self._requests.look():
            self._begin_stop()

    def _ending(self, code: int | None) -> Ending:
        """What is known of the end, as far as this worker caused it."""
        if self._stopped_at and not self._requests.cancelled:
            with suppress(StoreError):  # the signal may be how a request was handed on
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
        """Wait for our own signal when the recipe may have had it first. A batch scheduler that
        ends a job signals each of its processes: then the recipe was stopped, and has not
        failed; or kills one after the other, for reasons that it tells better than we do."""
        everybody = os.environ.get("SWEEPER_SIGNALS") == "everybody"
        if code and not self._stopped_at and (everybody or code == -signal.SIGTERM):
            seconds = KILL_SECONDS if code == -signal.SIGKILL else SIGNAL_SECONDS
            deadline = time.monotonic() + seconds
            while not self._stopped_at and (left := deadline - time.monotonic()) > 0:
                with suppress(Empty):
                    self._wake.get(timeout=left)

    def _sync(self, prepared: Prepared) -> str | None:
        """Put on disk what the recipe left, and its log, before the outcome is recorded: only files
        right in its folder, since those of iterations are many and nothing resumes by them. Returns
        what a store elsewhere has not taken, None if it has all."""
        attempt = prepared.place.local_path(self.layout.attempt(self.run, self.attempt))
        for folder in filter(None, (prepared.log_path, attempt)):
            with suppress(OSError):
                sync_files(folder)
        if self._syncing is None:
            return None
        return self._syncing.finish(self._beat, BEAT_SECONDS, lambda: self._requests.cancelled)

    def _begin_syncing(self, job: Job, prepared: Prepared) -> None:
        """Where the store is elsewhere, mark the attempt as unsynced and make its thread that
        syncs."""
        if prepared.place is self.store:
            return
        from sweeper.storage.local import LocalStore
        from sweeper.worker.spool import Spooled, start_syncing

        place = prepared.place
        assert isinstance(place, LocalStore)  # noqa: S101 - a spool is
        spooled = Spooled(self.store, place, self.layout, self.run, self.attempt)
        self._syncing = start_syncing(spooled, job.sync_s, say)

    def _record(self, event: Event, body: dict[str, object]) -> None:
        """Record an event, and wait for as long as the store does not answer: a run whose outcome
        is not written is lost."""
        delay = 1.0
        while True:
            try:
                self.store.create(self.layout.event(self.run, self.attempt, event), encode(body))
            except AlreadyExists:
                return
            except StoreError as error:
                say(f"sweeper: {error}; trying again in {delay:g} s")
                time.sleep(delay)
                delay = min(delay * 2, 60.0)
            else:
                return

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
        """Send SIGTERM to the recipe, once: many programs stop at once at a second one, and leave
        their checkpoint unfinished."""
        if self._child is not None and not self._asked:
            self._asked = True
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the recipe's process group."""
        if self._child is not None:
            self._killed |= number is signal.SIGKILL
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)


def sync_files(folder: str) -> None:
    """Flush the files right in `folder`, and their names, to disk."""
    with os.scandir(folder) as found:
        paths = [entry.path for entry in found if entry.is_file(follow_symlinks=False)]
    for path in [*paths, folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Run a worker. The arguments are the sweep's folder and the job's token. The options before
    them say where the environment lies that it takes to reach the store, and in which variable the
    backend counts restarts, and from what number."""
    *options, folder, token = arguments
    given = dict(zip(options[::2], options[1::2], strict=True))
    root, _, sweep = folder.rpartition("/")
    run, _, submitted = token.rpartition("-a")
    first = given.get("--first")
    try:
        attempt = int(submitted)
        attempt += restarts(given.get("--restarts", ""), int(first) if first else None)
        if "--env" in given:
            # What the backend gave this job outweighs what `launch` was typed in.
            os.environ.update(read_environment(given["--env"]) | backend_variables())
        store = open_store(root)
        again = attempt > int(submitted)
        if again and not reopen(store, Layout(sweep), run, int(submitted), attempt):
            say(f"sweeper: {run} has ended, or is to be stopped: nothing to go on with")
            return 0
        return Worker(store, sweep, run, attempt, int(submitted)).main()
    except SweeperError as error:
        say(f"sweeper: {error}")
        return 1


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    set_blocking(True)
    os._exit(ended)  # nothing of ours is buffered: what Python does at its end only takes time
