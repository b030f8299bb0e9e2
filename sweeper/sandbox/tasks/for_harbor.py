# pyright: basic, reportMissingImports=false
"""sweeper's environments, adapted to the package `harbor`, which loads them by their import path:
`harbor run --environment-import-path sweeper.sandbox.tasks.for_harbor:Bubblewrap`. Works only in
an interpreter that has `harbor`."""

import asyncio
import io
import os
import shlex
import tarfile
from pathlib import Path
from time import monotonic

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

from sweeper.sandbox import Result, missing, open_environment
from sweeper.sandbox.tasks import made_of, read_all, set_up
from sweeper.sandbox.tasks.running import files_of

_LONGEST = 24 * 3600.0
_MAX_OUTPUT = 8 << 20
_LARGEST = 256 << 20


class Bubblewrap(BaseEnvironment):
    """An environment in separate namespaces, without a network. All commands run as the
    environment's own root user, even if harbor asks for another user."""

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment in harbor's records."""
        return "sweeper-bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Return the capabilities: the environment never has a network."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return the resources that can be limited: memory."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    @classmethod
    def preflight(cls) -> None:
        """Exit with an error if bubblewrap does not work on this machine."""
        if (lacking := missing("bubblewrap")) is not None:
            raise SystemExit(lacking)

    def _validate_definition(self) -> None:
        tasks, mistakes = read_all(str(self.environment_dir.parent))
        if mistakes:
            raise ValueError(mistakes[0])
        self._task = tasks[0]

    async def start(self, force_build: bool) -> None:
        """Start the environment, and execute the Dockerfile."""
        del force_build
        self._one_at_a_time = asyncio.Lock()
        self._place = open_environment("bubblewrap", made_of(self._task))
        await asyncio.to_thread(self._place.start)
        await asyncio.to_thread(set_up, self._place, self._task)

    async def stop(self, delete: bool) -> None:
        """End the environment and everything in it."""
        del delete
        if hasattr(self, "_place"):
            await asyncio.to_thread(self._place.stop)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Execute one command in its own shell. Raises RuntimeError after `timeout_sec`."""
        del user
        exports = "".join(
            f"export {key}={shlex.quote(value)}\n"
            for key, value in (self._merge_env(env) or {}).items()
        )
        at = cwd or self.task_env_config.workdir or made_of(self._task).workdir
        inner = f"{exports}cd {shlex.quote(at)} || exit\n{command}"
        limit = f"timeout -k 1 {timeout_sec} " if timeout_sec else ""
        begun = monotonic()
        result = await self._run(
            f"{limit}bash -c {shlex.quote(inner)}", (timeout_sec or _LONGEST) + 5, _MAX_OUTPUT
        )
        over = timeout_sec is not None and monotonic() - begun >= timeout_sec
        if result.ended == "timeout" or (over and result.code in (124, 137)):
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(
            stdout=result.text, stderr="", return_code=255 if result.code is None else result.code
        )

    async def _run(self, command: str, seconds: float, keep: int) -> Result:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._place.exec, command, seconds, keep)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy one file into the environment."""
        await self._put({str(target_path): Path(source_path).read_bytes()})

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's files into the environment."""
        await self._put(files_of(str(source_dir), str(target_dir), str(source_dir)))

    async def _put(self, files: dict[str, bytes]) -> None:
        async with self._one_at_a_time:
            await asyncio.to_thread(self._place.put, files)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the environment. Raises FileNotFoundError if there is no such file."""
        async with self._one_at_a_time:
            data = await asyncio.to_thread(self._place.get, str(source_path), _LARGEST, 60.0)
        if data is None:
            raise FileNotFoundError(f"no file {source_path}")
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder out of the environment. Raises FileNotFoundError if this fails."""
        result = await self._run(f"tar -C {shlex.quote(str(source_dir))} -cf - .", 600.0, _LARGEST)
        if result.code != 0 or result.lost:
            raise FileNotFoundError(f"cannot get {source_dir}: {result.text[-200:]}")
        os.makedirs(target_dir, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(result.output)) as archive:
            archive.extractall(target_dir, filter=_safe_member)  # noqa: S202 - only safe members


def _safe_member(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Check a member with `tarfile.data_filter`. Return None for devices and pipes, which are
    skipped."""
    return None if member.isdev() else tarfile.data_filter(member, path)
