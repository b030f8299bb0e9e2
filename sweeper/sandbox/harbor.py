# pyright: basic, reportMissingImports=false
"""Environments of the package `harbor` (docker, daytona, e2b, ..., or a class by its import path),
adapted to our protocol. harbor executes each command in a new process, so the shell's state is
loaded before each command and saved after it. Works only in an interpreter that has the package."""

import asyncio
import importlib.util
import os
import shlex
import shutil
import tempfile
import threading
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from sweeper.sandbox.base import Died, Made, NotThere, Result
from sweeper.sandbox.shell import Output

T = TypeVar("T")

_KEEP = "/tmp/.sweeper"  # noqa: S108 - of the environment
_PATIENCE = 30.0
_TIMED_OUT = 124
_COMMAND = f"""
mkdir -p {_KEEP}
[ -f {_KEEP}/state ] && . {_KEEP}/state 2>/dev/null
[ -f {_KEEP}/folder ] && cd "$(cat {_KEEP}/folder)"
eval "$(cat {_KEEP}/command)" </dev/null 2>&1
s=$?
pwd >{_KEEP}/folder
{{ declare -p | grep -v '^declare -[a-zA-Z]*r'; declare -f; }} >{_KEEP}/state 2>/dev/null
exit $s
"""


def missing(environment: str) -> str | None:
    """Return why this interpreter cannot open environments of the type `environment`; None if it
    can."""
    if importlib.util.find_spec("harbor") is None:
        return (
            "the package harbor is not in this interpreter (pip install harbor, Python 3.12 or "
            "newer)"
        )
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.environment_type import EnvironmentType

    by_path = environment if ":" in environment else None
    try:
        kind = None if by_path else EnvironmentType(environment)
        EnvironmentFactory.run_preflight(kind, by_path)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - each provider has its own errors
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


class _Answer(Protocol):
    """The result of a command in harbor."""

    stdout: str | None
    stderr: str | None
    return_code: int


class _Place(Protocol):
    """The methods of harbor's environments that are used here."""

    async def start(self, force_build: bool) -> object: ...
    async def stop(self, delete: bool) -> object: ...
    async def exec(self, command: str, *, timeout_sec: int) -> _Answer: ...
    async def upload_dir(self, source: str, target: str, /) -> object: ...
    async def download_file(self, source: str, target: str, /) -> object: ...


class Harbor:
    """An environment of harbor. Its type is one of harbor's types, or the import path of a class.
    See `Environment`."""

    root = ""
    built = True

    def __init__(self, made: Made, environment: str) -> None:
        if made.folder is None:
            raise ValueError("an environment of Harbor needs a task's folder")
        self._made, self._folder, self._which = made, made.folder, environment
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paths = ""
        self._place: _Place | None = None

    def start(self) -> None:
        self._paths = tempfile.mkdtemp(prefix="sweeper-harbor-")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="harbor", daemon=True).start()
        try:
            self._place = self._made_place()
        except (ImportError, ValueError, SystemExit) as error:
            raise NotThere(f"harbor cannot make an environment on this machine: {error}") from None
        self._wait(self._environment().start(force_build=False), self._made.build_seconds)
        at = shlex.quote(self._made.workdir)
        self._must(f"mkdir -p {at} {_KEEP} /logs/agent /logs/verifier /tests /solution")
        self._must(f"cd {at} && pwd >{_KEEP}/folder")

    def _made_place(self) -> _Place:
        from pathlib import Path

        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.task.task import Task
        from harbor.models.trial.config import EnvironmentConfig
        from harbor.models.trial.paths import TrialPaths

        named = {"import_path" if ":" in self._which else "type": self._which}
        paths = TrialPaths(trial_dir=Path(self._paths))
        paths.mkdir()
        task = Task(Path(self._folder))
        return EnvironmentFactory.create_environment_from_config(
            EnvironmentConfig.model_validate({**named, "env": dict(self._made.env)}),
            environment_dir=Path(self._folder, "environment"),
            environment_name=task.name.rpartition("/")[2],
            session_id=f"sweeper-{uuid.uuid4().hex[:12]}",
            trial_paths=paths,
            task_env_config=task.config.environment,
        )

    def _environment(self) -> _Place:
        if self._place is None:
            raise Died("the environment has not started")
        return self._place

    def _wait(self, work: Coroutine[object, None, T], seconds: float) -> T:
        """Wait for a coroutine of harbor. Raises TimeoutError, and `Died` for any other error."""
        if self._loop is None:
            work.close()
            raise Died("it has ended")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - each provider has its own errors
            if "timed out" in str(error):
                raise TimeoutError from None
            raise Died(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from None

    def _must(self, command: str) -> _Answer:
        try:
            return self._wait(
                self._environment().exec(command, timeout_sec=int(_PATIENCE)), 2 * _PATIENCE
            )
        except TimeoutError:
            raise Died("it does not answer") from None

    def exec(self, command: str, seconds: float, keep: int = 65_536) -> Result:
        output = Output(keep)
        if "\0" in command:
            raise ValueError("a command must not contain NUL")
        self.put({f"{_KEEP}/command": command.encode(errors="replace")})
        limited = f"timeout -k 1 {max(seconds, 0.1):.2f} bash -c {shlex.quote(_COMMAND)}"
        try:
            result = self._wait(
                self._environment().exec(limited, timeout_sec=int(seconds + _PATIENCE)),
                seconds + 2 * _PATIENCE,
            )
        except TimeoutError:
            raise Died("a command did not end after its time limit") from None
        output.add(((result.stdout or "") + (result.stderr or "")).encode(errors="replace"))
        if result.return_code in (_TIMED_OUT, 137):
            self.reset()
            return output.result(None, "timeout")
        return output.result(result.return_code)

    def reset(self) -> None:
        with suppress(Died):  # `kill -1` also kills the process that executes it.
            self._must("kill -KILL -1 2>/dev/null; true")
        self._must(
            f"rm -f {_KEEP}/state; cd {shlex.quote(self._made.workdir)} && pwd >{_KEEP}/folder"
        )

    def put(self, files: Mapping[str, bytes], seconds: float = 60.0) -> None:
        with tempfile.TemporaryDirectory(dir=self._paths) as folder:
            for path, data in files.items():
                local = os.path.join(folder, path.lstrip("/"))
                os.makedirs(os.path.dirname(local), exist_ok=True)
                with open(local, "wb") as file:
                    file.write(data)
                mode = 0o755 if data.startswith(b"#!") else 0o644
                os.chmod(local, mode)
            try:
                for name in sorted(os.listdir(folder)):
                    self._wait(
                        self._environment().upload_dir(os.path.join(folder, name), f"/{name}"),
                        seconds,
                    )
            except TimeoutError:
                raise OSError("writing files to the environment took too long") from None

    def get(self, path: str, most: int = 1 << 20, seconds: float = 10.0) -> bytes | None:
        quoted = shlex.quote(path)
        try:
            check = self._wait(
                self._environment().exec(f"test -f {quoted}", timeout_sec=10), seconds + 20
            )
            if check.return_code != 0:
                return None
            local = os.path.join(self._paths, "got")
            self._wait(self._environment().download_file(path, local), seconds + _PATIENCE)
        except TimeoutError:
            raise Died("it does not answer") from None
        with open(local, "rb") as file:
            return file.read(most)

    def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._place is not None:
            future = asyncio.run_coroutine_threadsafe(self._place.stop(delete=True), loop)
            with suppress(Exception):
                future.result(_PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        shutil.rmtree(self._paths, ignore_errors=True)
