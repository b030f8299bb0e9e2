"""Runs whose recipe a fork server starts: `Warm`, and a recipe that records its process."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from support.worker_bench import Bench

from sweeper.common.sweeper_argv import BOOTSTRAP
from sweeper.store.documents import read_as
from sweeper.sweep import job as jobs
from sweeper.worker import fork_client
from sweeper.worker.child import Guard

RECORD_ALL = """
import gc, json, os, random, resource, signal, sys, threading
arguments = dict(item.split("=", 1) for item in sys.argv[1:])
umask = os.umask(0)
os.umask(umask)
said = {
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "umask": umask,
    "argv": sys.argv,
    "path": sys.path,
    "main": __name__,
    "flags": str(sys.flags),
    "signals": {str(s): str(signal.getsignal(s)).partition(" at ")[0]
                for s in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": sorted(d for d in os.listdir("/proc/self/fd") if int(d) < 3 or
                          os.path.exists(f"/proc/self/fd/{d}")),
    "stdin": os.readlink("/proc/self/fd/0"),
    "threads": [t.name for t in threading.enumerate()],
    "tasks": len(os.listdir("/proc/self/task")),
    "leads": (os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "buffered": sys.stdout.write_through,
    "gc": gc.isenabled(),
    "seekable": sys.stdout.seekable(),
    "streams": [(f.encoding, f.errors, f.line_buffering, f.name) for f in (sys.stdout, sys.stderr)],
    "started by": sys.orig_argv[:3],
    "set by an import": os.environ.get("SET_BY_AN_IMPORT"),
}
with open("/proc/self/cmdline") as file:
    forked = "serve" in file.read()
left = open(arguments["log_path"] + "/left", "w")
left.write("last words")
sys.stdout.left = left
said["of its own"] = [random.random(), os.getpid(), forked]
json.dump(said, open(arguments["log_path"] + "/said", "w"))
print("to stdout"); print("to stderr", file=sys.stderr)
import atexit
atexit.register(print, "at exit")
raise SystemExit(int(arguments["code"]))
"""


class Warm:
    """A run whose recipe is a Python file, and the list of the modules that it imports."""

    def __init__(self, bench: Bench, tmp_path: Path, home: Path) -> None:
        self.bench, self.home = bench, home
        self.guards: list[Guard] = []
        self.folder = tmp_path / "code"
        self.folder.mkdir()
        self.file = self.folder / "program.py"
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "SWEEPER_HOME": str(home),
            "MY_KEY": "canary-4711",
            "SOME_API_KEY": "canary-4712",
        }
        self._private = tmp_path / "env.json"
        self.change({})

    def change(self, more: dict[str, str]) -> None:
        """Add these variables to the environment of the runs."""
        self.environment |= more
        self._private.write_text(json.dumps(self.environment))

    def recipe(self, python: str = sys.executable) -> dict[str, str]:
        file, folder = str(self.file), str(self.folder)
        return {
            **{"kind": "file", "file": file, "cwd": folder, "python": python},
            "log_path_field": "log_path",
        }

    def prepare(self, program: str, attempt: int = 1, **changes: Any) -> None:
        self.file.write_text(program)
        job = {
            "recipe": self.recipe(),
            "warm": True,
            "cwd": str(self.folder),
            "env_file": str(self._private),
            "secrets": ["MY_KEY"],
        }
        self.bench.prepare("", attempt, **(job | {"config": {"code": 0}} | changes))

    @property
    def modules(self) -> Path:
        bench = self.bench
        path = bench.folder.job(bench.id, 1)
        listed = fork_client.module_list(read_as(bench.store, path, jobs.read), self.environment)
        assert listed is not None
        return Path(listed)

    def learn(self, *modules: str) -> None:
        """Write the list of imported modules that a run leaves behind."""
        self.modules.write_text(json.dumps({"schema": 1, "modules": modules}))

    def serve(self) -> int:
        """Start a server by forking once. Return its pid."""
        child = self.fork("pass")
        assert child is not None and child.reap()[0] == 0
        (server,) = self.servers
        return server

    def run(self, program: str, attempt: int = 1, **changes: Any) -> dict[str, Any]:
        self.prepare(program, attempt, **changes)
        self.bench.finish(self.bench.start(attempt))
        return self.bench.outcome()

    def recorded(self, attempt: int) -> dict[str, Any]:
        return json.loads((self.bench.path(attempt) / "said").read_text())

    def fork(self, program: str, **more: Any) -> fork_client.ForkedChild | None:
        """Fork a program without a worker; None if that is not possible. Each program has its own
        file, because the file is read after this returns."""
        file = self.folder / f"program{len(self.guards)}.py"
        file.write_text(program)
        recipe = {"kind": "file", "file": str(file), "module": None, "cwd": "/"}
        described = self.folder.parent / f"child{len(self.guards)}.json"
        described.write_text(json.dumps({"recipe": recipe, "config": {}}))
        job = read_as(self.bench.store, self.bench.folder.job(self.bench.id, 1), jobs.read)
        command = [sys.executable, BOOTSTRAP, "run", str(described)]
        guard = Guard()
        self.guards.append(guard)
        wanted = fork_client.Program(command, more.get("cwd", "/"), self.environment)
        meanwhile = more.get("meanwhile", lambda: True)
        wait_s = more.get("wait_s", 90.0)
        return fork_client.fork(str(self.modules), job, guard, wanted, meanwhile, wait_s)

    @property
    def servers(self) -> list[int]:
        folder = self.home / "warm"
        return [json.loads(path.read_text())["pid"] for path in folder.glob("*.json")]

    def close(self) -> None:
        for guard in self.guards:
            guard.dismiss()
        for pid in self.servers:
            os.kill(pid, signal.SIGKILL)
