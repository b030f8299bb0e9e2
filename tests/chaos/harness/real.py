"""A sweep of toys on a real backend, whose launchers are processes that can be killed.

The defaults shorten waits: a lease of 2 s instead of 60, heartbeats every 0.2 s instead of 5, a
hundredth of the waits between attempts.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness import entry
from harness.ledger import Row, Verdict, judge, read_ledger
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import State, fold

HERE = Path(__file__).resolve().parent
NAME = "toys"


class Launching:
    """A launcher's process: a new interpreter, or forked from this one, which saves the imports
    (half of its time)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = 240) -> int:
        """Wait for its end. Returns its exit code, or minus the signal that ended it."""
        until(lambda: self.poll() is not None, seconds, "the launcher does not end")
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


class Sweep:
    """`runs` toys of `steps` steps in `seconds` seconds, in `mode` (see `toy.py`).

    `spec` holds further settings of its processes, and `launch` the grid's section."""

    def __init__(
        self,
        folder: Path,
        *,
        backend: str = "local",
        runs: int = 3,
        steps: int = 3,
        seconds: float = 0.15,
        mode: str = "plain",
        lease: float = 2.0,
        launch: Mapping[str, Any] | None = None,
        spec: entry.Spec | None = None,
        command: list[str] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.steps = steps
        self.ledger = folder / "ledger"
        self.diary = folder / "diary"
        self.root = folder / "sweeps"
        self.log = folder / "launchers.log"
        toy = [sys.executable, "-I", "-S", str(HERE / "toy.py"), "{ledger}", str(steps)]
        section = {"backend": backend, "max_parallel": 2, "retries": 0, "cwd": str(folder)}
        grid = {
            "name": NAME,
            "service": "none",
            "command": command or [*toy, str(seconds), "{mode}", "{log_path}"],
            "base": {"ledger": str(self.ledger), "mode": mode, **(base or {})},
            "grid": {"x": list(range(runs))},
            "launch": section | dict(launch or {}),
        }
        times: entry.Spec = {"lease": lease, "poll": 0.03, "settle": 0.6, "backoff": 0.01}
        times["window"] = 1.0
        times["worker"] = {"beat": 0.2}
        self.spec: entry.Spec = {"folder": str(folder), "grid": grid, **times, **(spec or {})}
        self.environment = {**os.environ, "SWEEPER_HOME": str(folder / "home")}
        self.launched: list[Launching] = []
        self.kills = 0

    @property
    def store(self) -> LocalStore:
        return LocalStore(str(self.root))

    @property
    def sweep_folder(self) -> SweepFolder:
        return SweepFolder(self.store, NAME)

    def start(
        self,
        verb: str = "launch",
        *,
        fork: bool = True,
        through: Sequence[str] = (),
        **changes: Any,
    ) -> Launching:
        """Start a launcher; `changes` are to its spec. `through`: the program, with its first
        arguments, that executes the launcher if it is not forked."""
        spec = {**self.spec, **changes}
        launching = Launching(self._fork(verb, spec) if fork else self._exec(verb, spec, through))
        self.launched.append(launching)
        return launching

    def _fork(self, verb: str, spec: Mapping[str, Any]) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.environ.update(self.environment)
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            # Not pytest's handlers, which the fork inherits.
            with os.fdopen(1, "w") as sys.stdout, os.fdopen(2, "w") as sys.stderr:
                try:
                    code = entry.main([verb, json.dumps(spec)])
                except Exception:  # noqa: BLE001 - the log is where somebody looks for it
                    traceback.print_exc()
        finally:
            os._exit(code)

    def _exec(self, verb: str, spec: Mapping[str, Any], through: Sequence[str]) -> int:
        path = self.folder / f"spec-{len(self.launched)}.json"
        path.write_text(json.dumps(spec))
        command = [*through, sys.executable, "-P", str(HERE / "entry.py"), verb, str(path)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        process.returncode = 0  # waited for by its pid
        return process.pid

    def finish(self, verb: str = "launch", most: int = 5, **changes: Any) -> int:
        """Launch until all runs have ended, at most `most` times; returns the last exit code."""
        code = -1
        for _ in range(most):
            code = self.start(verb, **changes).wait()
            if code not in (4, 6) and self.settled():
                break
        self.rest()
        return code

    def finish_well(self, *, once: bool = False, resumes: bool = False, **changes: Any) -> None:
        """Finish, and check the runs by the ledger."""
        assert self.finish(**changes) == 0, self.log.read_text()
        self.check(once=once, resumes=resumes)

    def end_well(self, launching: Launching, **options: Any) -> None:
        """Wait for the end of a launcher, and check the runs by the ledger."""
        assert launching.wait() == 0, self.log.read_text()
        self.rest()
        self.check(**options)

    def check(self, **options: Any) -> None:
        """Check that nothing is lost, doubled or wrong (see `judge`)."""
        verdict = self.verdict(**options)
        assert verdict.good, (self.folder, verdict)

    def states(self) -> dict[str, State]:
        """Return run id -> state, of every run of the plan."""
        events = SweepFolder(self.store, NAME).read_events()
        runs = [run.id for run in SweepFolder(self.store, NAME).read_plan().runs]
        return {run: fold(events.get(run, ())).state for run in runs}

    def settled(self) -> bool:
        """Return whether every run has ended."""
        final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
        return all(state in final for state in self.states().values())

    def rows(self) -> list[Row]:
        return read_ledger(self.ledger)

    def strikes(self) -> Counter[str]:
        """Return the records of the assassins."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return Counter(line.split(" ")[1] for line in lines)

    def verdict(self, **options: Any) -> Verdict:
        return judge(self.store, NAME, self.rows(), self.steps, **options)

    def workers(self) -> list[psutil.Process]:
        """Return the processes of this sweep's jobs: workers, their guards, their recipes."""
        jobs: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline() or ["tmux"]
                # tmux itself, and windows with `status` or `watch`, are not jobs.
                if words[0] != "tmux" and not {"status", "watch"} & {*words}:
                    jobs += [process] * any(str(self.folder) in word for word in words)
        ours = {os.getpid(), *(launching.pid for launching in self.launched)}
        return [process for process in jobs if process.pid not in ours]

    def rest(self) -> None:
        """Wait until no job of the sweep is running."""
        until(lambda: not self.workers(), 60, f"workers of {self.folder} go on")

    def clean(self) -> None:
        """End everything that this sweep started."""
        for launching in self.launched:
            launching.kill()
        for process in self.workers():
            with suppress(psutil.Error):
                process.kill()


Sweeps = Callable[..., Sweep]
"""Makes a sweep in a folder of its own (the fixture `make_sweep`)."""


def until(condition: Callable[[], object], seconds: float = 120, why: str = "") -> None:
    """Wait for a condition, with a time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {why}")
        time.sleep(0.01)
