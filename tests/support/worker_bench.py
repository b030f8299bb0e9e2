"""One run of a sweep and its real workers, for the tests of the worker."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sweeper.common.sweeper_argv import worker_command
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.states import fold

RUN = "0123456789ab"
WAIT = """
import signal, sys, time
stop = {stop}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(stop) if stop is not None else None)
open(sys.argv[1] + "/ready", "w").close()
while True: time.sleep(0.05)
"""


class Bench:
    """A sweep with one run, whose attempts are Python programs given as text."""

    id = RUN

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(str(root))
        self.folder = SweepFolder(self.store, "s")
        self.workers: list[subprocess.Popen[bytes]] = []

    def prepare(self, program: str, attempt: int = 1, **changes: Any) -> None:
        """Write the job of an attempt. `changes` are settings of `launch`, and keys of the job."""
        program = program.replace("{", "{{").replace("}", "}}")  # braces hold placeholders
        job: dict[str, Any] = {
            "schema": 1,
            "run": RUN,
            "attempt": attempt,
            "name": "x=1",
            "seed": 7,
            "config": {"x": 1, "note": "$(touch pwned)"},
            "recipe": {
                "kind": "command",
                "cwd": "/",
                "command": [sys.executable, "-c", program, "{log_path}", "{x}", "{note}"],
            },
            "cwd": self.store.root,
            "env_file": None,
            "secrets": [],
            "settings": {
                "env": {"GRID_SAYS": "hello"},
                "timeout_s": None,
                "grace_s": 60,  # a recipe on a busy machine is not killed before it has stopped
                "resume": "auto",
            },
        }
        for key, value in changes.items():
            is_setting = key not in job and key in Launch._fields
            (job["settings"] if is_setting else job)[key] = value
        self.store.replace(self.folder.job(RUN, attempt), encode(job))

    def start(self, attempt: int = 1, **options: Any) -> subprocess.Popen[bytes]:
        command = worker_command(self.folder.address, token(RUN, attempt))
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
        self.workers.append(worker)
        return worker

    def finish(self, worker: subprocess.Popen[bytes]) -> tuple[int, str]:
        output, _ = worker.communicate(timeout=150)
        return worker.returncode, output.decode()

    def run(self, program: str, attempt: int = 1, **changes: Any) -> dict[str, Any]:
        """Run an attempt to its end; returns the body of its last event, with the
        event's state."""
        self.prepare(program, attempt, **changes)
        self.finish(self.start(attempt))
        return self.outcome()

    def outcome(self) -> dict[str, Any]:
        state = fold(SweepFolder(self.store, "s").read_events()[RUN])
        assert state.event is not None
        path = self.folder.event(RUN, state.attempt, state.event)
        return read_json(self.store, path) | {"state": state.state}

    @staticmethod
    def waits(stop: int | None) -> str:
        """Return a program that waits for a request to stop, and then ends with this code, or
        (None) does not end. It makes a file `ready`."""
        return WAIT.format(stop=stop)

    def start_waiting(self, stop: int | None, **changes: Any) -> subprocess.Popen[bytes]:
        """Start a worker with the program of `waits`, and wait until it is ready."""
        self.prepare(self.waits(stop), **changes)
        worker = self.start()
        self.wait_for(self.path() / "ready")
        return worker

    def path(self, attempt: int = 1) -> Path:
        return Path(self.store.root, self.folder.log_path(RUN, attempt))

    def log(self, attempt: int = 1) -> str:
        return self.store.read(self.folder.log(RUN, attempt)).decode()

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + 90
        while not path.exists():
            assert time.monotonic() < deadline, f"waited 90 s for {path}"
            time.sleep(0.02)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
