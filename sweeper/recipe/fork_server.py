"""The fork server (`python start.py serve STATUS`) imports the modules that recipes import, and
forks a process for each recipe. It refuses to fork if the process could differ from a new one. Uses
only the standard library."""

# The server forks one keeper for each recipe. A keeper waits for its recipe, and kills the recipe's
# process group when the worker is gone. The server never reads the environment of a run: secrets
# reach only the keeper.

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple, cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from sweeper.recipe.documents import Begin, Child
    from sweeper.recipe.fork_protocol import LISTENING, receive, send, user_of
    from sweeper.recipe.fresh_process import become, open_descriptors
    from sweeper.recipe.own_packages import (
        files_of_modules,
        listed,
        own_folders,
        what_installs_change,
    )

    Move = Callable[[str, str], Callable[[str], str]]

    class _Variables(Protocol):
        """The class of `os.environ`."""

        __getitem__: Callable[[object, object], str]
else:  # bootstrap.py has loaded the modules by path, under these names.
    from sweeper_fork_protocol import LISTENING, receive, send, user_of
    from sweeper_fresh_process import become, open_descriptors
    from sweeper_own_packages import files_of_modules, listed, own_folders, what_installs_change


_IDLE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_REQUEST_SECONDS = 5.0
_IMPORT_SECONDS = 120
_LATE_SECONDS = 1.0
_CHANGED = (-1, -1)


def serve(status: str, move: Move) -> str | None:
    """Serve workers. Return None if no worker has connected for a minute, if the folder of the file
    `status` is gone, or if a package was changed. Also return in each process forked for a recipe,
    with the path of the file that describes the recipe. `move` is `bootstrap.move`."""
    with socket.socket(fileno=LISTENING) as listener:
        return Server(listener, status, move).loop()


class Server:
    """A server that imports modules, and forks a keeper for each worker that connects. The keeper
    is a process that forks the worker's recipe, and waits for the recipe's end."""

    def __init__(self, listener: socket.socket, status: str, move: Move) -> None:
        self._listener = listener
        self._status = status
        self._move = move
        self._stamps: dict[str, tuple[int, int]] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self._imported = Imported(set(), {}, _set_at_start())
        self._seconds = 0.0
        self._refused: str | None = None

    def loop(self) -> str | None:
        """Serve workers. The results are those of the function `serve`."""
        folder = os.path.dirname(self._status)
        last = time.monotonic()
        while time.monotonic() < last + _IDLE_SECONDS and os.path.isdir(folder):
            if select.select([self._listener], [], [], _LOOK_SECONDS)[0]:
                connection, _ = self._listener.accept()
                with connection:
                    recipe = self._answer(connection)
                if recipe:
                    return recipe
                if recipe is None:
                    break
                last = time.monotonic()
            _reap_keepers()
        with suppress(OSError):
            os.unlink(self._status)
        return None

    def _answer(self, connection: socket.socket) -> str | None:
        """Serve a worker. The result is None if the server has to end, "" if it continues, and in
        the recipe's process the path of the file that describes the recipe."""
        connection.settimeout(_REQUEST_SECONDS)
        try:
            if user_of(connection) != os.getuid():
                return ""
            request: Mapping[str, object] = receive(connection)[0]
            if not self._is_stale():
                self._load(str(request["modules"]))
            if self._is_stale():
                send(connection, {"refused": "a package was changed"}, [])
                return None
            send(connection, {} if self._refused is None else {"refused": self._refused}, [])
            if self._refused is None:
                return self._fork(connection)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # The worker starts the recipe itself.
        return ""

    def _load(self, path: str) -> None:
        """Import the modules in the list at `path` that are not imported yet."""
        if self._refused is not None or self._stamps.get(path) == (stamp := _stamp(path)):
            return
        begun, since = time.process_time(), time.time_ns()
        self._stamps[path] = stamp
        open_before = open_descriptors()
        signal.alarm(_IMPORT_SECONDS)  # A server that hangs would block others.
        environment = _import(listed(path))
        signal.alarm(0)
        self._seconds += time.process_time() - begun
        self._imported = Imported(
            {name.partition(".")[0] for name in sys.modules},
            {**environment.read, **self._imported.read},
            {**self._imported.changed, **environment.changed},
        )
        files = files_of_modules()
        self._files |= {file: _stamp(file) for file in files | what_installs_change()}
        for file in files:
            if _stamp(file)[0] >= since:
                # The file changed during the import, so the imported version is unknown.
                self._files[file] = _CHANGED
        self._refused = _why_not_forked(files, open_before)
        gc.collect()
        gc.freeze()  # Otherwise the first collection in a child would copy shared memory.
        self._write_status(len(files))

    def _is_stale(self) -> bool:
        """Return whether a file of an imported module has changed, or packages were installed or
        removed."""
        return any(_stamp(file) != stamp for file, stamp in self._files.items())

    def _write_status(self, modules: int) -> None:
        """Write the status file of this process, for `sweeper doctor`."""
        document = {
            "schema": 1,
            "pid": os.getpid(),
            "python": sys.executable,
            "modules": modules,
            "import_s": round(self._seconds, 3),
            "refused": self._refused,
        }
        partial = f"{self._status}.{os.getpid()}"
        with suppress(OSError):
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(partial, self._status)

    def _fork(self, connection: socket.socket) -> str:
        """Fork a keeper. The result is "" in the server, and in the recipe's process the path of
        the file that describes the recipe."""
        if os.fork():
            return ""
        recipe = None
        try:
            self._listener.close()
            os.close(LISTENING + 1)  # Only the server holds the lock.
            os.setsid()
            recipe = _keep(connection, self._imported, self._move)
        finally:
            if recipe is None:
                os._exit(0)
        return recipe


class Imported(NamedTuple):
    """The effects of imports: the top-level names of the imported modules, the environment
    variables that were read (None: not set), and the variables that were changed (None:
    removed)."""

    tops: set[str]
    read: dict[str, str | None]
    changed: dict[str, str | None]


def _set_at_start() -> dict[str, str | None]:
    """Return the environment variables that this interpreter itself has set: `LC_CTYPE` if there is
    no locale (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        given = {os.fsdecode(item.partition(b"=")[0]) for item in file.read().split(b"\0")}
    return {name: value for name, value in os.environ.items() if name not in given}


def _import(names: list[str]) -> Imported:
    """Import modules, and record how they use the environment."""
    read: dict[str, str | None] = {}
    before = dict(os.environ)
    kind = cast("type[_Variables]", type(os.environ))
    get = kind.__getitem__

    def noting(environ: object, name: object) -> str:
        if isinstance(name, str) and name not in read:
            read[name] = before.get(name)
        return get(environ, name)

    kind.__getitem__ = noting
    try:
        for name in names:
            if name not in sys.modules:
                with suppress(Exception, SystemExit):  # The run reports the error.
                    importlib.import_module(name)
    finally:
        kind.__getitem__ = get
    after = dict(os.environ)
    changed = {
        name: after.get(name)
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
    return Imported(set(), read, changed)


def _keep(connection: socket.socket, imported: Imported, move: Move) -> str | None:
    """Start a recipe, wait for its end, and reap it when the worker asks for that. In the recipe's
    process, return the path of the file that describes the recipe; in the keeper, return None.

    The keeper avoids writes to memory, because the kernel copies each page that is written.
    """
    request: Begin
    connection.settimeout(None)  # The worker may be slow, and nothing else waits for this process.
    request, descriptors = receive(connection, 1)
    why = _why_shadowed(request["argv"], imported.tops, move) or _why_differs(request, imported)
    if why is not None:
        send(connection, {"refused": why}, [])
        return None
    status_pipe, telling = os.pipe()
    reading, writing = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        connection.detach()
        ready = become(request, imported.changed, descriptors[0], (reading, telling), keeper)
        return request["argv"][3] if ready else os._exit(127)
    for descriptor in (reading, telling, descriptors[0]):
        os.close(descriptor)
    del request
    ended = os.pidfd_open(pid)
    gone = False
    try:
        ready = os.read(status_pipe, 1) == b"r"
        about: dict[str, object] = (
            {"pid": pid, "keeper": keeper}
            if ready
            else {"refused": "the process could not be prepared"}
        )
        send(connection, about, [])
        if ready and receive(connection)[0].get("go"):
            with suppress(BrokenPipeError):  # The recipe was already asked to stop.
                os.write(writing, b"g")
            os.close(writing)
            gone = not _wait_for_end(connection, ended, pid)
    except OSError:
        gone = True
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    if gone:
        time.sleep(_LATE_SECONDS)  # The worker's guard may be about to kill the group with this id.
    _, _, usage = os.wait4(pid, 0)
    with suppress(OSError):
        send(connection, {"memory": usage.ru_maxrss * 1024}, [])
    return None


def _wait_for_end(connection: socket.socket, ended: int, pid: int) -> bool:
    """Wait until the recipe ends or the worker sends a message. Send the recipe's exit code to the
    worker if the recipe has ended. Return whether the worker's message asks to reap the recipe.
    Raises `OSError` if the worker disappears."""
    select.select([connection, ended], [], [])
    if select.select([ended], [], [], 0)[0]:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        code = 0 if info is None else info.si_status
        if info is not None and info.si_code != os.CLD_EXITED:
            code = -code
        send(connection, {"code": code}, [])
    return bool(receive(connection)[0].get("reap"))


def _why_differs(request: Begin, imported: Imported) -> str | None:
    """Return a message if an environment variable that the imports have read has another value for
    the run, else None."""
    given = request["environment"]
    for name, value in imported.read.items():
        if given.get(name) != value:
            return f"{name} was read while modules were imported"
    return None


def _why_shadowed(argv: list[str], tops: set[str], move: Move) -> str | None:
    """Return a message if one of the recipe's folders hides a module that the server has imported,
    else None."""
    with open(argv[3], "rb") as file:
        child: Child = json.load(file)
    recipe = child["recipe"]
    folders = list(itertools.takewhile(lambda path: path not in own_folders(), sys.path))
    if recipe["kind"] == "file":
        folders.append(os.path.dirname(recipe["file"]))
    elif recipe["on_path"]:
        folders.append(recipe["cwd"])
    snapshot = child.get("snapshot")
    if snapshot:
        moved = move(snapshot["root"], snapshot["copy"])
        folders += [moved(folder) for folder in folders]
    for folder in folders:
        shadowing = _shadowing_name(folder, tops)
        if shadowing is not None:
            return f"{os.path.join(folder, shadowing)} hides a module"
    return None


def _shadowing_name(folder: str, tops: set[str]) -> str | None:
    """Return a name in a folder that hides one of the top-level modules `tops`, or None."""
    if folder in own_folders() or not os.path.isdir(folder):
        return None
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            importable = not suffix or suffix.endswith(("py", "pyc", "so"))
            if importable and name in tops:
                return entry.name
    return None


def _why_not_forked(files: set[str], open_before: set[int]) -> str | None:
    """Return why this process cannot be forked after its imports, or None if it can be forked."""
    threads = _threads_after_fork()
    if threads:
        return f"an imported module has started threads ({threads})"
    if open_descriptors() - open_before:
        return "an imported module has opened files"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in files and not _is_ours(name, file):
            return f"{file} is outside the interpreter's own packages"
    return None


def _is_ours(name: str, file: str) -> bool:
    """Return whether a module is bootstrap.py or a file of the folder sweeper/recipe."""
    return name == "__main__" or os.path.dirname(file) == os.path.dirname(__file__)


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _threads_after_fork() -> int:
    """Fork a child that ends at once, and return how many other threads this process then has.
    The fork makes numerical libraries end their threads, which they restart later."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) - 1


def _reap_keepers() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
