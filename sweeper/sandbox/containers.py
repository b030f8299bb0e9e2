"""Environments in containers of podman or docker, without a network. The image is built from the
task's Dockerfile; without a Dockerfile, the task names an image. The image needs bash and tar."""

import hashlib
import os
import resource
import shlex
import shutil
import subprocess
import threading
import uuid
from contextlib import suppress

from sweeper.sandbox.base import Died, Made, NotThere
from sweeper.sandbox.shell import InShell, Shell, close_pipes, last_error, supervisor

_ASK_SECONDS = 30.0
_PROCESSES = 32_768
"""Maximum number of processes of the user, inside and outside containers. Each container also has a
limit of its own."""
_FOLDERS = "/logs/agent /logs/verifier /solution /tests"
_locks: dict[str, threading.Lock] = {}
_locks_lock = threading.Lock()


def missing(command: str) -> str | None:
    """Return why `command` (podman or docker) cannot be used on this machine; None if it can."""
    if shutil.which(command) is None:
        return f"{command} is not installed (Debian: apt-get install {_package(command)})"
    try:
        process = _run([command, "info"], _ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return f"{command} does not answer"
    if process.returncode == 0:
        return None
    return f"{command} cannot be used: {_last_line(process)}"


def _package(command: str) -> str:
    return {"docker": "docker.io"}.get(command, command)


def _run(argv: list[str], seconds: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
    )


def _last_line(process: "subprocess.CompletedProcess[str]") -> str:
    lines = (process.stderr.strip() or process.stdout.strip()).splitlines()
    return lines[-1][:300] if lines else f"exit code {process.returncode}"


def system_limits(files: int) -> list[str]:
    """Return the options that limit open files and processes. The limits do not exceed this
    process's own limits, since podman refuses higher limits."""
    argv: list[str] = []
    for name, kind, most in (
        ("nofile", resource.RLIMIT_NOFILE, files),
        ("nproc", resource.RLIMIT_NPROC, _PROCESSES),
    ):
        hard = resource.getrlimit(kind)[1]
        hard = most if hard < 0 else min(hard, most)
        argv += ["--ulimit", f"{name}={hard}:{hard}"]
    return argv


class Container(InShell):
    """An environment in a container. See `Environment`."""

    root = ""
    built = True

    def __init__(self, made: Made, command: str) -> None:
        self._made, self._command = made, command
        self._name = f"sweeper-{uuid.uuid4().hex[:16]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [*self._options(), *self._image()]
        at = shlex.quote(self._made.workdir)
        script = supervisor("-1", f"mkdir -p {_FOLDERS} {at}; cd {at}")
        try:
            self._process = subprocess.Popen(
                [*argv, "bash", "-c", script, "shell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only this process.
            )
        except OSError as error:
            raise NotThere(f"{self._command} did not start: {error}") from None
        self._shell = Shell(self._process, self._end_all)
        try:
            self._shell.await_ready()
        except Died:
            raise Died(self._last_words()) from None

    def _options(self) -> list[str]:
        made, limits = self._made, self._made.limits
        argv = [self._command, "run", "-i", "--rm", "--name", self._name, "--network", "none"]
        argv += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
        if limits.cpus is not None:  # More CPUs than the machine has are refused.
            argv += ["--cpus", str(min(limits.cpus, os.cpu_count() or 1))]
        argv += ["--pids-limit", str(limits.processes), *system_limits(1024)]
        argv += ["--security-opt", "no-new-privileges"]
        for key, value in made.env.items():
            argv += ["--env", f"{key}={value}"]
        return [*argv, "--entrypoint", ""]

    def _image(self) -> list[str]:
        """Return the arguments that name the image. If there is a Dockerfile, build the image
        first. Raises `NotThere` if there is no usable image."""
        made = self._made
        if made.root is not None:
            if self._command != "podman":
                raise NotThere(
                    f"{made.root}: only podman and bubblewrap support a prepared root file system"
                )
            return ["--rootfs", f"{os.path.abspath(made.root)}:O"]
        folder = made.context or os.path.join(made.folder or "", "environment")
        if not os.path.exists(os.path.join(folder, "Dockerfile")):
            if made.image is None:
                raise NotThere(f"{folder}: there is neither a Dockerfile nor a docker_image")
            return [made.image]
        tag = f"localhost/sweeper-task:{_fingerprint(folder)}"
        with _locks_lock:
            lock = _locks.setdefault(tag, threading.Lock())
        with lock:
            if _run([self._command, "image", "inspect", tag], _ASK_SECONDS).returncode != 0:
                self._build(folder, tag)
        return [tag]

    def _build(self, folder: str, tag: str) -> None:
        try:
            process = _run(
                [self._command, "build", "-q", "-t", tag, folder], self._made.build_seconds
            )
        except subprocess.TimeoutExpired:
            raise NotThere(
                f"{folder}: building its image took longer than {self._made.build_seconds:.0f} s"
            ) from None
        if process.returncode != 0:
            raise NotThere(f"{folder}: its image cannot be built: {_last_line(process)}")

    def _last_words(self) -> str:
        if (process := self._process) is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        return last_error(process)[:300]

    def _end_all(self) -> None:
        with suppress(subprocess.TimeoutExpired, OSError):
            _run([self._command, "kill", "--signal", "USR1", self._name], _ASK_SECONDS)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(subprocess.TimeoutExpired, OSError):
            # `rm -f` alone would first ask the container to end, and wait for that.
            _run([self._command, "kill", self._name], _ASK_SECONDS)
            _run([self._command, "rm", "-f", self._name], _ASK_SECONDS)
        try:
            process.wait(_ASK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        close_pipes(process)


def _fingerprint(folder: str) -> str:
    """Return a hash of an image's inputs: paths, modes and contents."""
    digest = hashlib.sha256()
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(at, name)
            digest.update(f"{os.path.relpath(path, folder)}\0{os.stat(path).st_mode:o}\0".encode())
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:24]
