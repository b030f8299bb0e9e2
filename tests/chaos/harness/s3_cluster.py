"""A small cluster for `s3_world`: a process that has imported everything forks the typed commands
and the workers, as a cluster's controller would. So Python starts only once.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus

TIMEOUT = 1.0
"""Seconds after which a request to the S3 fails."""

_LOADED = (
    *("pandas", "s3fs", "sweeper.backends.local", "sweeper.cli", "sweeper.launcher.control"),
    *("sweeper.launcher.launching", "sweeper.planner.plan", "sweeper.results.registry"),
    *("sweeper.sweep.lease", "sweeper.store.remote", "sweeper.metrics.tables.frames"),
    "sweeper.worker.main",
)


def load() -> None:
    """Import everything before there are threads, for the forks."""
    for name in _LOADED:
        import_module(name)
    gc.freeze()


def _shorten() -> None:
    """Shorten waits in this process and its forks."""
    from harness.entry import set_everywhere
    from sweeper.planner import arguments as planner_arguments
    from sweeper.scheduler import failures
    from sweeper.store import remote
    from sweeper.worker import claim

    for name, value in (
        ("REMOTE_POLL_SECONDS", 0.4),
        ("SETTLE_SECONDS", 2.0),
        ("BEAT_SECONDS", 0.7),
        ("LEASE_SECONDS", 5.0),
        ("_LOOK_SECONDS", 0.1),
        ("_POLL_SECONDS", 0.4),
        ("_WINDOW_SECONDS", 1.0),
        ("open_backend", _open_cluster),
    ):
        set_everywhere(name, value)
    true_backoff = failures.backoff
    true_plan = planner_arguments.planned_by
    set_everywhere("planned_by", lambda arguments: _leased(true_plan(arguments)))
    set_everywhere("backoff", lambda *about: 0.1 * true_backoff(*about))
    claim.RETRY_PAUSES = (0.1, 0.2, 0.4, 0.8)
    options: Any = remote.S3.options
    options["config_kwargs"]["read_timeout"] = TIMEOUT


def _leased(planned: Any) -> Any:
    """Use a lease that no grid may have."""
    return planned._replace(launch=planned.launch._replace(lease_s=3.0))


class Cluster:
    """The controller: it forks typed commands, and workers by their tokens."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.path)
        listening.listen(64)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                _shorten()
                _Controller(listening, self.path).serve()
                code = 0
            except BaseException:  # noqa: BLE001 - it is told where somebody looks
                traceback.print_exc()
            finally:
                os._exit(code)
        listening.close()

    def ask(self, **request: Any) -> Any:
        return _ask(self.path, request)

    def close(self) -> None:
        """End the controller and its processes."""
        with suppress(OSError):
            self.ask(op="end")
        os.waitpid(self.pid, 0)


def _ask(path: str, request: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        asking.sendall(json.dumps(request).encode() + b"\n")
        with asking.makefile("rb") as reply:
            return json.loads(reply.readline())


class _Controller:
    """The controller's process, which has one thread."""

    def __init__(self, listening: socket.socket, path: str) -> None:
        self._listening = listening
        self._path = path
        self._parent = os.getppid()
        self._codes: dict[int, int | None] = {}
        self._jobs: dict[str, int] = {}

    def serve(self) -> None:
        self._listening.settimeout(0.05)
        while True:
            self._reap()
            with suppress(TimeoutError):
                asking, _ = self._listening.accept()
                with asking, asking.makefile("rwb") as stream:
                    request = json.loads(stream.readline())
                    self._reap()
                    reply = getattr(self, f"_{request.pop('op')}")(**request)
                    stream.write(json.dumps(reply).encode() + b"\n")
                if reply == "over":
                    return
            if os.getppid() != self._parent:  # the client was killed
                self._end()
                return

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])

    def _fork(self, main: Any, out: str, environment: dict[str, str]) -> int:
        pid = os.fork()
        if pid:
            self._codes[pid] = None
            return pid
        code = 1
        try:
            os.setsid()
            self._listening.close()
            os.environ.update(environment | {"SWEEPER_TEST_CLUSTER": self._path})
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptor, 1)
            os.dup2(os.open(f"{out}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
            with os.fdopen(1, "w") as sys.stdout, os.fdopen(2, "w", buffering=1) as sys.stderr:
                code = main()
                sys.stdout.flush()
        finally:
            os._exit(code)

    def _type(self, words: list[str], out: str, environment: dict[str, str]) -> int:
        def main() -> int:
            from sweeper.cli import main

            os.chdir(environment["PWD"])
            sys.argv = ["sweeper", *words]
            try:
                return main(words)
            except SystemExit as ended:
                return int(str(ended.code))

        return self._fork(main, out, environment)

    def _submit(self, arguments: list[str], out: str, environment: dict[str, str]) -> int:
        def main() -> int:
            import sweeper.worker.main

            return sweeper.worker.main.main(arguments)

        pid = self._fork(main, out, environment)
        self._jobs[arguments[-1]] = pid
        return pid

    def _poll(self, tokens: list[str]) -> dict[str, Any]:
        def state(token: str) -> Any:
            pid = self._jobs.get(token)
            return "absent" if pid is None else self._codes[pid]

        return {token: state(token) for token in tokens}

    def _cancel(self, tokens: list[str]) -> bool:
        for token in tokens:
            pid = self._jobs.get(token)
            if pid is not None and self._codes[pid] is None:
                os.kill(pid, signal.SIGTERM)
        return True

    def _code(self, pid: int) -> int | None:
        return self._codes[pid]

    def _kill(self, pid: int) -> bool:
        if self._codes[pid] is None:
            os.kill(pid, signal.SIGKILL)
        return True

    def _at_work(self) -> int:
        return sum(self._codes[pid] is None for pid in self._jobs.values())

    def _end(self) -> str:
        for pid, code in self._codes.items():
            if code is None:
                os.killpg(pid, signal.SIGKILL)
        return "over"


class _Backend(Backend):
    """See `sweeper.backends.base.Backend`."""

    name = "local"

    def __init__(self, folder: str) -> None:
        self._path = os.environ["SWEEPER_TEST_CLUSTER"]
        self._out = os.path.join(os.path.dirname(self._path), "jobs")
        self._folder = folder

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        for job in jobs:
            arguments = job.argv[job.argv.index("sweeper.worker.main") + 1 :]
            out, environment = f"{self._out}.{job.token}", dict(os.environ)
            request = {"arguments": arguments, "out": out, "environment": environment}
            _ask(self._path, {"op": "submit", **request})

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        codes = _ask(self._path, {"op": "poll", "tokens": list(tokens)})
        return {token: token for token, code in codes.items() if code is None}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        codes = _ask(self._path, {"op": "poll", "tokens": list(tokens)})
        states: dict[str, JobStatus] = {}
        for token, code in codes.items():
            kind = JobState.ABSENT if code == "absent" else JobState.ENDED
            state = JobState.RUNNING if code is None else kind
            states[token] = JobStatus(state, code if isinstance(code, int) else None)
        return states

    def cancel(self, tokens: Sequence[str]) -> None:
        _ask(self._path, {"op": "cancel", "tokens": list(tokens)})

    def logs(self, token: str) -> Iterator[str]:
        del token
        return iter(())


def _open_cluster(name: str, sweep: str, folder: str, options: object = None) -> _Backend:
    del name, sweep, options
    return _Backend(folder)
