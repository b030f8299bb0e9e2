"""Environments in namespaces, made by bubblewrap without a daemon or root rights. They have no
network and no capabilities, see only `/usr` or a given root, and keep their files in memory."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sweeper.sandbox.base import Died, Ended, Limits, Made, NotThere
from sweeper.sandbox.shell import InShell, Shell, close_pipes, last_error, on_cpus, supervisor

_EVERY_SECONDS = 0.1
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Watched:
    """A monitored environment: its first process, its limits, and a function that ends its other
    processes."""

    def __init__(self, pid: int, limits: Limits, end_all: Callable[[], None]) -> None:
        self.pid, self.limits, self.end_all = pid, limits, end_all
        self._ended: Ended = ""
        self._most_files, self._just_ended = limits.files, False

    def why(self) -> Ended:
        """Return the limit that the processes have exceeded since the last call, or "" if they
        exceeded none."""
        reason, self._ended = self._ended, ""
        return reason

    def check(self) -> None:
        """End the environment's processes if they exceed a limit. Keep the environment's files."""
        processes = list(itertools.islice(below(self.pid), 4 * self.limits.processes + 2))
        too_much = sum(map(_private_mb, processes)) > self.limits.memory_mb
        if too_much:
            # On a busy machine, killed processes may not have released their memory yet. This
            # memory must not count against the next command.
            alive = [pid for pid in processes if not _is_dying(pid)]
            too_much = sum(map(_private_mb, alive)) > self.limits.memory_mb
        ended: Ended = "memory" if too_much else ""
        with suppress(OSError):
            if not ended:
                system = os.statvfs(f"/proc/{self.pid}/root/")
                files = system.f_files - system.f_ffree
                if self._just_ended:  # Tolerate the existing files, so that they can be removed.
                    self._most_files = max(files, self._most_files)
                ended = "files" if files > self._most_files else ""
        self._just_ended = bool(ended)
        if ended:
            self._ended = ended
            self.end_all()


def below(pid: int) -> Iterator[int]:
    """Yield all descendants of a process."""
    pending = [pid]
    while pending:
        at = pending.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{at}/task"):
                with open(f"/proc/{at}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(child) for child in file.read().split()]
                yield from children
                pending += children


def _private_mb(pid: int) -> float:
    """Return a process's resident memory in MB, without shared memory; 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_MB
    return 0.0


def _is_dying(pid: int) -> bool:
    """Return whether a process has a pending SIGKILL."""
    with suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            waiting = [line.split()[1] for line in file if line.startswith(("SigPnd:", "ShdPnd:"))]
        return any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in waiting)
    return False


_lock = threading.Lock()
_watched: "weakref.WeakSet[Watched]" = weakref.WeakSet()
_thread: threading.Thread | None = None


def watch(environment: Watched) -> None:
    """Monitor an environment until `unwatch` is called or `environment` is garbage-collected."""
    global _thread  # noqa: PLW0603 -- one for all environments of this process
    with _lock:
        _watched.add(environment)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_monitor, name="environments", daemon=True)
            _thread.start()


def unwatch(environment: Watched) -> None:
    """Stop monitoring an environment."""
    with _lock:
        _watched.discard(environment)


def _monitor() -> None:
    while True:
        time.sleep(_EVERY_SECONDS)
        with _lock:
            watched = list(_watched)
        for environment in watched:
            environment.check()
        del watched


_NOBODY = 65534
_SHARED_MEMORY_MB = 64
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = (
    *("/app", "/etc", "/home", "/logs/agent", "/logs/verifier", "/mnt", "/opt", "/root", "/run"),
    *("/solution", "/srv", "/tests", "/tmp", "/var/lib", "/var/log", "/var/tmp"),  # noqa: S108
)
_SHARED = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_UNDER = "/mnt"
"""The folder where a given root is mounted with a layer over it, invisible to other processes."""
_OVERLAY = f"""
limits=$1
shift
set -e
mount -t tmpfs -o "$limits" none {_UNDER}
mkdir {_UNDER}/upper {_UNDER}/work {_UNDER}/merged
mount -t overlay -o "lowerdir=.,upperdir={_UNDER}/upper,workdir={_UNDER}/work,userxattr" \\
  none {_UNDER}/merged
exec "$@"
"""
_PREPARE = r"""
exec 2>/dev/null
[ -e /etc/passwd ] || printf 'root:x:0:0:root:/root:/bin/bash\n' >/etc/passwd
[ -e /etc/group ] || printf 'root:x:0:\n' >/etc/group
[ -e /etc/hosts ] || printf '127.0.0.1 localhost\n' >/etc/hosts
"""
# The kernel treats the end of the thread that started a process as the end of its parent. So one
# thread, which lasts as long as this process, starts all environments.
_spawner = ThreadPoolExecutor(1, "environments")


def missing() -> str | None:
    """Return why bubblewrap cannot make environments on this machine; None if it can."""
    for program in ("bwrap", "setpriv", "unshare", "nice"):
        if shutil.which(program) is None:
            packages = {"bwrap": "bubblewrap", "nice": "coreutils"}
            return _not_there(program, packages.get(program, "util-linux"))
    tried = subprocess.run(
        trial(), capture_output=True, text=True, timeout=30, check=False, env={"PATH": _PATH}
    )
    if tried.returncode == 0:
        program = tried.stdout.strip()
        return _not_there(f"{program} in /usr", program) if program else None
    reason = tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"
    return f"bwrap cannot create namespaces here: {reason}"


def trial() -> list[str]:
    """Return a command that starts an environment and prints its first missing program, if any."""
    return [*_start(), *_NAMESPACES, *_file_system(Made()), "--", "sh", "-c", _SHOW_MISSING]


def _not_there(program: str, package: str) -> str:
    return f"{program} is not installed (Debian: apt-get install {package}; or `make bubblewrap`)"


_SHOW_MISSING = "for p in bash tar; do command -v $p >/dev/null || { echo $p; exit; }; done"
"""The script of `trial`. It prints the first program that is not in /usr."""


_NAMESPACES = (
    *("--unshare-user", "--unshare-all", "--disable-userns", "--uid", "0", "--gid", "0"),
    *("--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"),
)


# For a moment after its start, bubblewrap's child would outlive bubblewrap. So both run in a
# process namespace whose first process is bubblewrap: the namespace ends with that process.
_WITH_US = ("--user", "--map-current-user", "--pid", "--fork", "--kill-child=KILL", "--")


def _start(over_root: Sequence[str] = ()) -> list[str]:
    """Return the beginning of the command that starts an environment. The command names programs
    by absolute paths, since it runs with a fixed PATH."""
    bwrap, nice, setpriv, unshare = (
        shutil.which(name) or name for name in ("bwrap", "nice", "setpriv", "unshare")
    )
    argv = [nice, "-n", "5"]
    if os.geteuid() == 0:
        ids = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        argv += [setpriv, *ids, "--"]
    return [*argv, setpriv, "--pdeathsig", "KILL", "--", unshare, *_WITH_US, *over_root, bwrap]


class Bubblewrap(InShell):
    """An environment made by bubblewrap. See `Environment`."""

    root = ""

    def __init__(self, made: Made) -> None:
        self._made = made
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None
        self._stopping = threading.Lock()
        self._watched: Watched | None = None

    def start(self) -> None:
        if shutil.which("bwrap") is None:
            raise NotThere(missing() or "bwrap is not installed")
        root = self._made.root
        if root is not None and os.geteuid() == 0 and os.stat(root).st_uid != _NOBODY:
            raise NotThere(
                f"{root} must belong to the user {_NOBODY}, as whom root starts environments: "
                f"run chown -R {_NOBODY}:{_NOBODY} {root}"
            )
        read, write = os.pipe()
        try:
            self._process = self._spawn(write)
        finally:
            os.close(write)
        with os.fdopen(read, "rb") as pipe:
            info = b""
            for line in pipe:  # Other processes hold the pipe open, so it has no end of file.
                info += line
                if line.strip() == b"}":
                    break
        try:
            json.loads(info)  # This fails if bubblewrap ended before it wrote all of it.
            *_, pid = below(self._process.pid)  # bubblewrap, then its child
            self._first = os.pidfd_open(pid)
        except (ValueError, OSError):
            raise Died(self._last_words()) from None
        self._watched = Watched(pid, self._made.limits, self._end_all)
        self._shell = Shell(self._process, self._end_all, self._watched.why)
        self._shell.await_ready()
        watch(self._watched)

    def _spawn(self, info: int) -> "subprocess.Popen[bytes]":
        made = self._made
        script = supervisor("-1", _PREPARE, made.limits)
        argv = [*on_cpus(made.limits.cpus), *_start(_over_root(made))]
        argv += ["--info-fd", str(info), *_NAMESPACES]
        argv += [*_file_system(made), "--chdir", made.workdir, "--", "bash", "-c", script, "shell"]
        env = {"PATH": _PATH, "HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8", "USER": "root"}
        try:
            return _spawner.submit(
                subprocess.Popen[bytes],
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(info,),
                env=env | dict(made.env),
                cwd=made.root or "/",
            ).result()
        except OSError as error:
            raise Died(f"bwrap did not start: {error}") from None

    def _last_words(self) -> str:
        if (process := self._process) is not None:
            process.kill()
            process.wait()
        return last_error(process)

    def _end_all(self) -> None:
        self._signal(signal.SIGUSR1)

    def _signal(self, number: int) -> None:
        with self._stopping, suppress(OSError):
            if self._first is not None:
                signal.pidfd_send_signal(self._first, number)

    def stop(self) -> None:
        if self._watched is not None:
            unwatch(self._watched)
        self._signal(signal.SIGKILL)
        with self._stopping:
            first, self._first = self._first, None
            process, self._process = self._process, None
        if first is not None:
            os.close(first)
        if process is not None:
            process.kill()
            process.wait()
            close_pipes(process)


def _file_system(made: Made) -> list[str]:
    """Return bubblewrap's options for the file system. With a given root, this is the overlay of
    `_over_root`. Without, it is a file system in memory with this machine's programs, read-only."""
    if made.root is not None:
        argv = ["--bind", f"{_UNDER}/merged", "/"]
    else:
        argv = ["--size", str(made.limits.storage_mb << 20), "--tmpfs", "/"]
        argv += ["--ro-bind", "/usr", "/usr"]
        for path in _SHARED:
            if os.path.islink(path):
                argv += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                argv += ["--ro-bind", path, path]
        argv += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    for folder in (*_FOLDERS, made.workdir):
        argv += ["--dir", folder]
    argv += ["--chmod", "1777", "/tmp"]  # noqa: S108
    argv += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    shared_memory = str(min(_SHARED_MEMORY_MB, made.limits.storage_mb) << 20)
    return [*argv, "--size", shared_memory, "--tmpfs", "/dev/shm"]  # noqa: S108


def _over_root(made: Made) -> list[str]:
    """Return the beginning of a command that mounts a writable layer in memory over a given root;
    empty without a given root. The command must start with the root as its working folder."""
    if made.root is None:
        return []
    limits = f"size={made.limits.storage_mb}m,nr_inodes={made.limits.files}"
    unshare = shutil.which("unshare") or "unshare"
    apart = [unshare, "--user", "--map-root-user", "--mount", "--propagation", "private", "--"]
    return [*apart, "sh", "-c", _OVERLAY, "sh", limits]
