"""The sandboxes of agents: a podman container, a Modal sandbox, or this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.sandbox import containers
from sweeper.sandbox.process import ROOT, start_cleaner

PLACES = ("podman", "modal", "local")
_PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ", "TERM", "HOME", "USER", "TMPDIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CLAUDE_CONFIG_DIR", "CODEX_HOME"),
)
_END_SECONDS = 30.0
_MOST_HOURS = 24
_LONGEST_PATH = 90
"""The largest length of the path of a socket's folder, in bytes. The path of the socket itself
may have 107 bytes."""
_FILES = 65_536


class Sandbox(NamedTuple):
    """The settings of a sandbox for an agent. `kind` is one of `PLACES`. `image` is a container
    image; for podman, it may also be a folder with a Linux file system. `network` is the value of
    podman's option `--network`, and `memory` is a limit in MiB. At Modal, `hours` is the time limit
    of the sandbox, and `token` is part of the name of sweeper's folder in the sandbox."""

    kind: str
    image: str | None = None
    network: str | None = None
    memory: int | None = None
    hours: float = 1.0
    token: str = ""

    @property
    def isolated(self) -> bool:
        """Whether the agent is in a sandbox, and can access no folders of this machine except its
        own folder and the private folder."""
        return self.kind != "local"

    @property
    def python(self) -> str:
        """The Python interpreter that runs bridge.py."""
        return "python3" if self.isolated else sys.executable

    def work(self, folder: str) -> str:
        """Return the path that the agent's folder `folder` has in the sandbox."""
        places = {"podman": "/work", "modal": f"{self._base}/work"}
        return places.get(self.kind, folder)

    def private(self, folder: str) -> str:
        """Return the path that the private folder `folder` has in the sandbox."""
        places = {"podman": "/sweeper", "modal": f"{self._base}/private"}
        return places.get(self.kind, folder)

    @property
    def _base(self) -> str:
        return f"/tmp/sweeper-agent-{self.token}"  # noqa: S108 - in the sandbox, which is only the agent's

    def require(self) -> None:
        """Raise `UsageError` for options that this kind of sandbox does not support, and
        `EnvironmentFailure` if this machine lacks required software."""
        options = [
            name for name in ("image", "network", "memory") if getattr(self, name) is not None
        ]
        if not self.isolated:
            if options:
                raise UsageError(f"--{options[0]} requires --in podman or --in modal")
            return
        if self.kind == "modal" and self.network is not None:
            raise UsageError("--network requires --in podman")
        if self.kind == "modal" and self.hours > _MOST_HOURS:
            raise UsageError(
                f"--hours is too large: Modal ends a sandbox after {_MOST_HOURS} hours"
            )
        if self.image is None:
            raise UsageError(
                f"--in {self.kind} needs --image: an image that contains the agent's program and "
                "python3"
            )
        if self.kind == "modal":
            from sweeper.backends.modal.client import official

            official()
        elif (lacks := containers.missing(self.kind)) is not None:
            raise EnvironmentFailure(lacks)


def _mount(source: str, target: str) -> str:
    """Return the value of podman's option `--mount`, in CSV."""
    return 'type=bind,"src={}",dst={}'.format(source.replace('"', '""'), target)


class Room:
    """A sandbox for one command, with a private folder for files that the command needs. When
    this process ends, for any reason, all processes in the sandbox are killed, and the private
    folder is removed."""

    def __init__(self, sandbox: Sandbox, work: str) -> None:
        self._sandbox, self._work = sandbox, work
        self._process: subprocess.Popen[bytes] | None = None
        self._container = f"sweeper-agent-{uuid.uuid4().hex[:16]}"
        self._private = os.path.join(tempfile.gettempdir(), self._container)
        # The user in a container may be different and sees only this folder. The private folder
        # around it keeps other users out.
        self.folder = os.path.join(self._private, "shared")
        if len(os.fsencode(self.folder)) > _LONGEST_PATH:
            raise EnvironmentFailure(
                f"the path of a socket in {tempfile.gettempdir()} would be too long: set "
                "TMPDIR=/tmp"
            )
        try:
            self.cleaner = start_cleaner(self._private, self._removal())
            os.mkdir(self._private, 0o700)
            os.mkdir(self.folder, 0o700)
        except OSError as error:
            raise EnvironmentFailure(f"{self._private}: {error.strerror}") from error

    @property
    def seen(self) -> str:
        """The path that the private folder has in the sandbox."""
        return self._sandbox.private(self.folder)

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], secrets: Mapping[str, str], stdin: int
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the sandbox, and return its process. The process's `stdout` also
        has the standard error of the command. Raises `EnvironmentFailure`."""
        if self._sandbox.kind == "modal":
            command = self._modal(argv, env, list(secrets))
            environment = {**os.environ, **secrets, ROOT: self._private}
        elif self._sandbox.isolated:
            command = [*self._podman(env, list(secrets)), *argv]
            # Do not set ROOT: processes that have this variable are killed at the end, but podman's
            # own processes must live on to remove the container.
            environment = {**os.environ, **secrets}
        else:
            command = list(argv)
            passed = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
            environment = {**passed, **env, **secrets, ROOT: self._private}
            environment.pop("IS_SANDBOX", None)  # this machine is no sandbox
        try:
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailure(f"{command[0]} did not start: {error.strerror}") from error
        return self._process

    def _podman(self, env: Mapping[str, str], secrets: Sequence[str]) -> list[str]:
        sandbox, image = self._sandbox, self._sandbox.image or ""
        argv = ["podman", "run", "--rm", "-i", "--name", self._container, "--entrypoint", ""]
        argv += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
        argv += [*containers.system_limits(_FILES), "--workdir", sandbox.work(self._work)]
        argv += ["--mount", _mount(self._work, sandbox.work(self._work))]
        argv += ["--mount", f"{_mount(self.folder, self.seen)},ro"]
        for name, value in (
            ("network", sandbox.network),
            ("memory", None if sandbox.memory is None else f"{sandbox.memory}m"),
        ):
            argv += [] if value is None else [f"--{name}", value]
        for key, value in {**env, ROOT: self._private}.items():
            argv += ["--env", f"{key}={value}"]
        for key in secrets:  # podman takes the value from its environment
            argv += ["--env", key]
        if os.path.isdir(image):
            return [*argv, "--rootfs", f"{os.path.abspath(image)}:O"]
        return [*argv, image]

    def _modal(
        self, argv: Sequence[str], env: Mapping[str, str], secrets: Sequence[str]
    ) -> list[str]:
        sandbox = self._sandbox
        start = {
            "argv": list(argv),
            "env": dict(env),
            "secrets": list(secrets),
            "image": sandbox.image,
            "memory": sandbox.memory,
            "hours": sandbox.hours,
            "base": os.path.dirname(self.seen),
            "work": self._work,
            "python": sandbox.python,
        }
        with open(os.path.join(self.folder, "start.json"), "w", encoding="utf-8") as file:
            json.dump(start, file)
        return [sys.executable, "-P", "-m", "sweeper.agents.start.modal_client", self.folder]

    def close(self) -> None:
        """End all processes of the command, and remove the private folder."""
        process, self._process = self._process, None
        if process is not None:
            if self._sandbox.kind == "modal":
                process.send_signal(signal.SIGINT)  # the process then ends the sandbox
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
            elif self._sandbox.isolated:
                self._ask("kill", self._container)
                self._ask("rm", "-f", self._container)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for pipe in (self.cleaner.stdin, self.cleaner.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.cleaner.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.cleaner.kill()
            self.cleaner.wait()
        shutil.rmtree(self._private, ignore_errors=True)

    def _removal(self) -> list[str]:
        """Return the command that removes podman's container, whose processes this user may not be
        permitted to kill. Return [] for other kinds of sandboxes."""
        if self._sandbox.kind != "podman":
            return []
        return ["podman", "rm", "-f", "-i", "-t", "0", self._container]

    def _ask(self, *words: str) -> None:
        with suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                [self._sandbox.kind, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_END_SECONDS,
                check=False,
            )
