"""Sends requests to hosts with the system's OpenSSH. One connection to each host stays open for
a while, so that a request takes milliseconds."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

from sweeper.common.backoff import Backoff
from sweeper.common.json_values import is_table
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.paths import current_folder

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host.py")
_ANSWER_SECONDS = 60.0
_NOT_FOUND = (126, 127)
_AGAIN_SECONDS = 1.0, 15.0
_MARKER = "sweeper:"
_SOCKETS = f"/tmp/sweeper-ssh-{os.getuid()}"  # noqa: S108 - a socket's path has at most 104 bytes


class Connection:
    """The connection to `host`. `config` is a configuration file for ssh, `python` an interpreter
    on the host, and `folder` the folder where the host records its jobs."""

    def __init__(self, host: str, python: str, config: str | None, folder: str, sweep: str) -> None:
        self.host = host
        self._python, self._config = python, config
        # Hosts may share a home, so the folder contains the host's name.
        self._about = {"folder": f"{folder.rstrip('/')}/{_file(host)}", "sweep": sweep}
        self._backoff = Backoff(*_AGAIN_SECONDS, time.monotonic)

    def ask(self, do: str, **about: object) -> dict[str, object]:
        """Send the request `do` with its arguments, and return the host's answer. Raises
        `Unreachable` if the host does not answer, and `EnvironmentFailure` if the host refuses."""
        self._backoff.check()
        with open(_PROGRAM, encoding="utf-8") as file:
            program = file.read()
        request = json.dumps({"do": do, **self._about, **about})
        # The request is sent on standard input, where no other user sees it: it may contain
        # secrets.
        text = f"{program}\nmain({request!r})\n"
        try:
            done = subprocess.run(
                self._command(),
                input=text.encode(),
                capture_output=True,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise EnvironmentFailure("ssh is not installed: install OpenSSH's client") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._unreachable(str(error)) from error
        return self._answer(done)

    def _answer(self, done: "subprocess.CompletedProcess[bytes]") -> dict[str, object]:
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        answers = [line for line in lines if line.startswith(_MARKER)]
        document: object = None
        with suppress(ValueError, IndexError):
            document = json.loads(answers[-1].removeprefix(_MARKER))
        if is_table(document):
            self._backoff.succeeded()
            if is_table(answer := document.get("answer")):
                return dict(answer)
            raise EnvironmentFailure(f"ssh {self.host}: {document.get('refused')}")
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = errors[-1][:300] if errors else f"exit code {done.returncode} and no answer"
        if done.returncode in _NOT_FOUND:
            raise EnvironmentFailure(
                f"ssh {self.host}: {why}: set launch.ssh.python to a Python on that host"
            )
        raise self._unreachable(why)

    def _unreachable(self, why: str) -> Unreachable:
        """Start the backoff for a host that has not answered. Return the error to raise."""
        error = Unreachable(f"ssh {self.host}: {why}")
        self._backoff.failed(error)
        return error

    def _command(self) -> list[str]:
        with suppress(FileExistsError):
            os.mkdir(_SOCKETS, 0o700)
        status = os.lstat(_SOCKETS)
        private = status.st_uid == os.getuid() and not status.st_mode & 0o077
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "ControlMaster": "auto" if private else "no",
            "ControlPersist": "60",
        }
        if private:
            options["ControlPath"] = f"{_SOCKETS}/%C"
        flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        config = [] if self._config is None else ["-F", _path(self._config)]
        return ["ssh", *config, *flags, "--", self.host, f"{shlex.quote(self._python)} -"]


def _path(name: str) -> str:
    return os.path.join(current_folder(), os.path.expanduser(name))


def _file(host: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in host)


def secret_values(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the secrets `names`. Raises `EnvironmentFailure` if a secret is not
    set."""
    missing = [name for name in names if name not in environment]
    if missing:
        raise EnvironmentFailure(
            f"ssh: launch.ssh.secrets names {missing[0]}, but this environment variable is not "
            f"set: `export {missing[0]}=...`"
        )
    return {name: environment[name] for name in names}
