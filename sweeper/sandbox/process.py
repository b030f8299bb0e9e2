"""Environments without isolation, for trusted tasks. Each is a temporary folder, to which its paths
(`/app/x`) are relative. Commands find the folder's path in `SWEEPER_TASK_ROOT`."""

import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from sweeper.sandbox.base import Died, Made
from sweeper.sandbox.shell import InShell, Shell, close_pipes, on_cpus, supervisor

ROOT = "SWEEPER_TASK_ROOT"
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_FOLDERS = ("app", "logs/agent", "logs/verifier", "solution", "tests", "tmp")
# The cleaner waits for the end of its input. The input ends when the process that started the
# cleaner closes it, or ends for any reason. The cleaner recognizes processes of the environment by
# their variable. It repeats the search, since a killed process may have started another one.
_CLEANER = r"""
trap '' HUP INT QUIT TERM
IFS= read -r _
cd /
while :; do
  found=
  for e in $(grep -lzFxs -- "SWEEPER_TASK_ROOT=$1" /proc/[0-9]*/environ); do
    e=${e%/environ}
    kill -KILL "${e#/proc/}" && found=1
  done
  [ "$found" ] || break
done 2>/dev/null
folder=$1
shift
[ $# = 0 ] || "$@" >/dev/null
rm -rf -- "$folder"
"""


class Process(InShell):
    """A temporary folder as an environment. See `Environment`."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._process: subprocess.Popen[bytes] | None = None
        self._cleaner: subprocess.Popen[bytes] | None = None
        self.root = ""

    def start(self) -> None:
        self.root = os.path.join(tempfile.gettempdir(), f"sweeper-task-{secrets.token_hex(8)}")
        workdir = self.root + self._made.workdir
        env = _passed_on()
        try:
            self._cleaner = start_cleaner(self.root)
            os.mkdir(self.root, 0o700)
            for folder in (*_FOLDERS, self._made.workdir.lstrip("/")):
                os.makedirs(os.path.join(self.root, folder), exist_ok=True)
            script = supervisor("-- -$p $p", session=True)
            env |= {"HOME": workdir, "TERM": "dumb", **self._made.env, ROOT: self.root}
            command = [*on_cpus(self._made.limits.cpus), "bash", "-c", script, "shell"]
            self._process = _begin(command, env, workdir)
        except OSError as error:
            raise Died(f"the environment did not start: {error}") from None
        self._shell = Shell(self._process, self._end_all, root=self.root)
        self._shell.await_ready()

    def _end_all(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        cleaner, self._cleaner = self._cleaner, None
        process, self._process = self._process, None
        for child in (cleaner, process):  # The cleaner kills the other process.
            if child is None:
                continue
            close_pipes(child)
            try:
                child.wait(10.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _passed_on() -> dict[str, str]:
    return {key: os.environ[key] for key in _PASSED_ON if key in os.environ}


def start_cleaner(folder: str, also: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """Start a cleaner: a process that cleans up when this process closes the cleaner's standard
    input, or ends. The cleaner kills all processes with `SWEEPER_TASK_ROOT=folder` in their
    environment, runs the command `also` if given, and removes `folder`. Raises OSError."""
    env = dict(os.environ) if also else _passed_on()
    return _begin(["sh", "-c", _CLEANER, "cleaner", folder, *also], env, None)


def _begin(command: list[str], env: dict[str, str], cwd: str | None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
