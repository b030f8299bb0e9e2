"""A temporary folder in place of an environment: nothing is apart from this machine. For machines
that can do no better, and tasks that one trusts.

Paths of the environment (`/app/x`) lie below that folder, which commands find in
`SWEEPER_TASK_ROOT`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress

from sweeper.environments.base import Died, Made
from sweeper.environments.shell import InShell, Shell, supervisor

__all__ = ["Process"]

ROOT = "SWEEPER_TASK_ROOT"
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_FOLDERS = ("app", "logs/agent", "logs/verifier", "solution", "tests", "tmp")
# What has left the session is known by its environment.
_CLEAN_UP = r"""
clean_up() {
  kill -KILL -- -$p $p
  for e in $(grep -lzFxs -- "SWEEPER_TASK_ROOT=$SWEEPER_TASK_ROOT" /proc/[0-9]*/environ); do
    e=${e%/environ}
    [ "${e#/proc/}" = $$ ] || kill -KILL "${e#/proc/}"
  done
  cd /
  rm -rf -- "$SWEEPER_TASK_ROOT"
  exit
} 2>/dev/null
trap clean_up TERM
"""


class Process(InShell):
    """See `Environment`."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._process: subprocess.Popen[bytes] | None = None
        self.root = ""

    def start(self) -> None:
        self.root = tempfile.mkdtemp(prefix="sweeper-task-")
        workdir = self.root + self._made.workdir
        for folder in (*_FOLDERS, self._made.workdir.lstrip("/")):
            os.makedirs(os.path.join(self.root, folder), exist_ok=True)
        env = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        env |= {"HOME": workdir, "TERM": "dumb", **self._made.env, ROOT: self.root}
        script = supervisor("kill -KILL -- -$p $p", _CLEAN_UP, end_now="clean_up", session=True)
        try:
            self._process = subprocess.Popen(
                [*_told_of_our_end(), "bash", "-c", script, "shell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                cwd=workdir,
                start_new_session=True,
            )
        except OSError as error:
            raise Died(f"bash does not start: {error}") from None
        self._shell = Shell(self._process, self._end_all, root=self.root)
        self._shell.greet()

    def _end_all(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()  # it ends its shell, then itself
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            for pid in _begun_in(self.root):  # and those that have left its session
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if self.root:
            shutil.rmtree(self.root, ignore_errors=True)


def _told_of_our_end() -> list[str]:
    """Linux tells the supervisor when we end, however we do."""
    return ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []


def _begun_in(folder: str) -> list[int]:
    """The processes that have the folder in their environment."""
    mark = f"{ROOT}={folder}".encode()
    found: list[int] = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit():
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if mark in file.read().split(b"\0"):
                            found.append(int(name))
    return found
