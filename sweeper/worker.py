"""Inside the job: `python -m sweeper.worker <sweep folder> <token>`.

Claims the attempt, so that no second copy of the job trains; prepares its folder; runs the recipe
in a process group of its own, which does not outlive it; keeps its output; beats; and records how
it ended. Every run starts one of these, so it loads little: no third-party package, and of the
standard library what it needs.

Durable when: the claim before the recipe starts, the outcome before this process exits. The log is
written as it comes, and is on disk when the system has got round to it.
"""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from sweeper import seeding
from sweeper.documents import SCHEMA, encode, read_json, timestamp
from sweeper.errors import AlreadyExists, NotFound, StoreError, SweeperError
from sweeper.guard import Guard
from sweeper.layout import Layout
from sweeper.states import Event
from sweeper.store import Store, open_store

__all__ = ["main"]

BEAT_SECONDS = 5.0
_CLAIM_TRIES = 3
_CHUNK = 1 << 16


class Worker:
    """One execution of an attempt."""

    def __init__(self, store: Store, sweep: str, run: str, attempt: int) -> None:
        self.store = store
        self.layout = Layout(sweep)
        self.run = run
        self.attempt = attempt
        self._stop: signal.Signals | None = None
        self._stopped_at = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._superseded = False
        self._returned = False
        self._beats = 0
        self._wake = threading.Event()

    def main(self) -> int:
        """Do the whole job; the exit code is 0 when the run succeeded, or was not ours to do."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may go; the run goes on
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        job = read_json(self.store, self.layout.job(self.run, self.attempt))
        if not self._claim():
            say(f"sweeper: attempt {self.attempt} of {job['name']} belongs to another worker")
            return 0
        say(f"sweeper: {job['name']}, attempt {self.attempt}, in {self._log_path()}")
        started, begun = timestamp(), time.monotonic()
        try:
            outcome = self._execute(job)
        except Exception as error:  # noqa: BLE001 - a claim without an outcome would be a lost run
            self._signal(signal.SIGKILL)
            outcome = failure("error", f"a bug of ours: {type(error).__name__}: {error}")
        outcome |= {
            "schema": SCHEMA,
            "time": timestamp(),
            "started": started,
            "ended": timestamp(),
            "wall_s": round(time.monotonic() - begun, 3),
            "max_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "host": os.uname().nodename,
        }
        event: Event = outcome.pop("event")
        self._record(event, outcome)
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        say(f"sweeper: {event.value}{reason} after {outcome['wall_s']:.1f} s")
        return 0 if event is Event.SUCCEEDED else 1

    def _claim(self) -> bool:
        """Whether the attempt is ours. The nonce tells our own claim, when the reply to the
        create was lost and it is tried again, from another worker's."""
        nonce = os.urandom(8).hex()
        path = self.layout.event(self.run, self.attempt, Event.CLAIMED)
        body = {
            "schema": SCHEMA,
            "time": timestamp(),
            "started": timestamp(),
            "nonce": nonce,
            "host": os.uname().nodename,
            "pid": os.getpid(),
        }
        if self._newer_attempt():
            return False
        for left in range(_CLAIM_TRIES - 1, -1, -1):
            try:
                self.store.create(path, encode(body))
            except AlreadyExists:
                return read_json(self.store, path).get("nonce") == nonce
            except StoreError:
                if left == 0:
                    raise
                time.sleep(1.0)
            else:
                break
        return True

    def _newer_attempt(self) -> bool:
        return self.store.exists(self.layout.event(self.run, self.attempt + 1, Event.INTENT))

    def _log_path(self) -> str:
        path = self.store.local_path(self.layout.log_path(self.run, self.attempt))
        if path is None:
            raise StoreError(f"{self.store.root}: a worker needs a local folder for its run")
        return path

    def _execute(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run the recipe to its end, and say how it ended."""
        try:
            command, environment = self._prepare(job)
            if self._stop is not None:
                return self._outcome(None)
            guard = Guard()
            self._child = subprocess.Popen(
                command,
                cwd=job["cwd"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError, SweeperError) as error:
            return failure("start", f"cannot start the recipe: {error}")
        child = self._child
        guard.watch(child.pid)
        if self._stopped_at:
            self._signal(signal.SIGTERM)  # it came while there was no child to hand it to
        log = threading.Thread(target=self._keep_output, args=(child,), daemon=True)
        log.start()
        ended = threading.Event()
        threading.Thread(target=self._await, args=(child, ended), daemon=True).start()
        timed_out = self._watch(job, ended)
        self._signal(signal.SIGKILL)  # whatever the recipe left behind in its group
        guard.dismiss()
        code = child.wait()
        log.join(timeout=5.0)
        if timed_out:
            return failure("timeout", f"longer than launch.timeout ({job['timeout_s']:g} s)")
        return self._outcome(code)

    def _prepare(self, job: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Make the recipe's folder, and the argv and environment that it starts with."""
        log_path = self._log_path()
        os.makedirs(log_path, exist_ok=True)
        if job["resume"] != "never":
            seeding.seed(self.store, self.layout, self.run, self.attempt, job["resume"])
        environment = read_environment(job.get("env_file"))
        environment |= job["env"]
        environment |= {
            "SWEEPER_ROOT": self.store.root,
            "SWEEPER_SWEEP": self.layout.sweep,
            "SWEEPER_RUN": self.run,
            "SWEEPER_RUN_DIR": log_path,
            "SWEEPER_ATTEMPT": str(self.attempt),
            "SWEEPER_SEED": "" if job["seed"] is None else str(job["seed"]),
            "TINKER_TAGS": f"sweeper,sweep:{self.layout.sweep},run:{self.run}.{self.attempt}",
            "PYTHONUNBUFFERED": "1",
        }
        missing = [name for name in job["secrets"] if name not in environment]
        if missing:
            raise StoreError(f"the secret {missing[0]} is not in the launcher's environment")
        recipe = job["recipe"]
        if recipe["kind"] == "command":
            from sweeper.recipe import render_command

            values = job["config"] | {"log_path": log_path, "run": self.run}
            values["attempt"] = self.attempt
            if job["seed"] is not None:
                values["seed"] = job["seed"]
            return render_command(recipe["command"], values), environment
        config = job["config"] | {recipe["log_path_field"]: log_path}
        if recipe["behavior_field"]:
            config["behavior_if_log_dir_exists"] = "resume"
        child = f"{self.layout.attempt(self.run, self.attempt)}/child.json"
        self.store.replace(child, encode({"schema": SCHEMA, "recipe": recipe, "config": config}))
        bootstrap = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap.py")
        return [
            recipe["python"],
            bootstrap,
            "run",
            str(self.store.local_path(child)),
        ], environment

    def _watch(self, job: dict[str, Any], ended: threading.Event) -> bool:
        """Beat until the recipe has ended; stop it when asked, superseded, or (then True) out of
        time."""
        timed_out = False
        begun = time.monotonic()
        timeout_at = begun + job["timeout_s"] if job["timeout_s"] is not None else math.inf
        self._beat()
        next_beat = begun + BEAT_SECONDS
        while True:
            self._wake.clear()
            if ended.is_set():  # after clearing: what wakes us from here on is not lost
                return timed_out
            now = time.monotonic()
            if now >= next_beat:
                self._beat()
                next_beat = now + BEAT_SECONDS
            if now >= timeout_at:
                timed_out, timeout_at = True, math.inf
                self._begin_stop()
            kill_at = self._stopped_at + job["grace_s"] if self._stopped_at else math.inf
            if now >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at = now + 1.0  # again, for what was started meanwhile
            self._wake.wait(max(0.0, min(next_beat, timeout_at, kill_at) - now))

    def _beat(self) -> None:
        """Say that we live, and look whether the launcher still thinks so. A store that does not
        answer stops neither."""
        self._beats += 1
        body = {"schema": SCHEMA, "counter": self._beats, "time": timestamp(), "pid": os.getpid()}
        lost = self.layout.event(self.run, self.attempt, Event.LOST)
        try:
            path = self.layout.heartbeat(self.run, self.attempt)
            self.store.replace(path, encode(body), durable=False)
            if self._newer_attempt():
                self._superseded = True
                self._begin_stop()
            elif not self._returned and self.store.exists(lost):
                returned = self.layout.event(self.run, self.attempt, Event.RETURNED)
                with suppress(AlreadyExists):
                    self.store.create(returned, encode({"schema": SCHEMA, "time": timestamp()}))
                self._returned = True
        except StoreError as error:
            say(f"sweeper: {error}")

    def _await(self, child: subprocess.Popen[bytes], ended: threading.Event) -> None:
        """Tell when the child has ended, and leave it unreaped where that can be: until then its
        process group's id is nobody else's, and what is left of the group can be signalled."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        else:
            child.wait()
        ended.set()
        self._wake.set()

    def _keep_output(self, child: subprocess.Popen[bytes]) -> None:
        """Copy what the recipe prints to the log, and to our terminal as long as there is one."""
        if child.stdout is None:
            return
        # A terminal that nobody reads must not stop the recipe: what does not fit is left out.
        os.set_blocking(sys.stdout.fileno(), False)
        path = self.layout.log(self.run, self.attempt)
        while chunk := os.read(child.stdout.fileno(), _CHUNK):
            try:
                self.store.append(path, chunk)
            except StoreError as error:
                say(f"sweeper: {error}")
            try:
                os.write(sys.stdout.fileno(), chunk)
            except OSError:
                continue

    def _outcome(self, code: int | None) -> dict[str, Any]:
        """What the recipe's exit code means."""
        final = seeding.has_final_checkpoint(self._log_path())
        if code == 0 and final is not False:
            return {"event": Event.SUCCEEDED, "code": 0, "signal": None, "reason": None}
        name = signal.Signals(-code).name if code is not None and code < 0 else None
        outcome = {"code": code if name is None else None, "signal": name, "detail": None}
        if self._superseded:
            return outcome | {"event": Event.PREEMPTED, "reason": "superseded"}
        if self._stop is signal.SIGINT:
            return outcome | {"event": Event.CANCELLED, "reason": "interrupted"}
        if self._stop is not None:
            return outcome | {"event": Event.PREEMPTED, "reason": "terminated"}
        if code == 0:
            outcome["detail"] = "exit 0, but the last record in checkpoints.jsonl is not final"
            return outcome | {"event": Event.FAILED, "reason": "incomplete"}
        return outcome | {"event": Event.FAILED, "reason": "killed" if name else "error"}

    def _record(self, event: Event, body: dict[str, Any]) -> None:
        """Write an event; waits out a store that does not answer, since an outcome that is not
        written is a run that is lost."""
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
        self._stop = signal.Signals(number)
        self._begin_stop()
        self._wake.set()

    def _begin_stop(self) -> None:
        self._stopped_at = self._stopped_at or time.monotonic()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the recipe's process group."""
        if self._child is not None:
            try:
                os.killpg(self._child.pid, number)
            except (ProcessLookupError, PermissionError):
                return


def failure(reason: str, detail: str) -> dict[str, Any]:
    """The outcome of an attempt that sweeper itself had to end, or could not start."""
    return {
        "event": Event.FAILED,
        "code": None,
        "signal": None,
        "reason": reason,
        "detail": detail,
    }


def read_environment(path: str | None) -> dict[str, str]:
    """The environment that `sweeper launch` ran in, kept in a private file: a backend hands on
    its own at best, and secrets must not travel on a command line."""
    if path is None:
        return dict(os.environ)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        # Never ours instead: it may hold another service's address and key.
        raise StoreError(f"the environment kept for this run cannot be read: {error}") from error


def say(line: str) -> None:
    """A line for whoever watches the window; the terminal may be gone."""
    try:
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
    except OSError:
        return


def main(arguments: list[str]) -> int:
    """Entry point: the sweep's folder and the job's token."""
    folder, token = arguments
    root, _, sweep = folder.rpartition("/")
    run, _, attempt = token.rpartition("-a")
    try:
        return Worker(open_store(root), sweep, run, int(attempt)).main()
    except (SweeperError, NotFound) as error:
        say(f"sweeper: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
