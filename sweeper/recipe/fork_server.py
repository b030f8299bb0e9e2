"""The fork server: a process that has imported what recipes import, and forks their processes.

    python bootstrap.py serve STATUS       descriptor 3 is the listening socket, 4 the lock

Runs in the recipe's interpreter, by path. Standard library only. A worker connects (see
sweeper/worker/warm.py), and over that connection pass:

    worker -> server   {"modules": PATH}   a list of modules, which are imported first
    server -> worker   {}                  or {"refused": why}
    worker -> keeper   {"argv", "cwd", "environment", "umask"}, and the recipe's output as a
                       descriptor
    keeper -> worker   {"pid", "keeper"}   or {"refused": why}
    worker -> keeper   {"go": true}        only now the recipe begins
    keeper -> worker   {"code": N}         when it has ended: negative is a signal
    worker -> keeper   {"reap": true}      until then no other process gets its id
    keeper -> worker   {"memory": N}

Each message is its length, four bytes, and JSON. The keeper is a process of the server's, one for
each recipe. It waits for the recipe, and kills the recipe's process group when the worker is gone.
The server itself never reads what a run is given: its secrets pass through the keeper alone. A
recipe outlives the server, and never its keeper.

A module is taken only from the interpreter's own packages. What the user may edit is imported by
each run for itself. Where a fork could differ from a new process, the answer is a refusal, and the
worker starts the recipe by itself.
"""

from __future__ import annotations

import array
import functools
import gc
import importlib
import io
import itertools
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple, cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from sweeper.recipe.documents import Begin, Child

    Move = Callable[[str, str], Callable[[str], str]]

    class _Variables(Protocol):
        """The class of `os.environ`."""

        __getitem__: Callable[[object, object], str]


__all__ = ["receive", "remember", "send", "serve", "user_of"]

LISTENING = 3
_IDLE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_REQUEST_SECONDS = 5.0
_IMPORT_SECONDS = 120
_LATE_SECONDS = 1.0
_CHANGED = (-1, -1)
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("!I")
_LARGEST = 64 << 20


def send(connection: socket.socket, message: Mapping[str, object], descriptors: list[int]) -> None:
    """Send a message, with descriptors that the other side gets copies of."""
    body = json.dumps(message).encode()
    data = _LENGTH.pack(len(body)) + body
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    # At once: who is killed in between would leave half a message.
    sent = connection.sendmsg([data], passed if descriptors else [])
    if sent < len(data):  # who has all may have answered and gone: to send nothing would fail
        connection.sendall(data[sent:])


def receive(connection: socket.socket, most: int = 0) -> tuple[Any, list[int]]:
    """The next message, and at most `most` descriptors. Raises `OSError` when there is none."""
    size = array.array("i").itemsize
    head, passed, _flags, _address = connection.recvmsg(
        _LENGTH.size, socket.CMSG_SPACE(most * size) if most else 0
    )
    found = array.array("i")
    for level, kind, data in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % size])
    head += _exactly(connection, _LENGTH.size - len(head))
    (length,) = _LENGTH.unpack(head)
    if length > _LARGEST:
        raise OSError("a message is too long")
    return json.loads(_exactly(connection, length)), found.tolist()


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("the other side is gone")
        data += more
    return data


def serve(status: str, move: Move) -> str | None:
    """Answer workers until none has asked for a minute, or the folder of the file `status` is gone.
    In a process that is to become a recipe, returns the file that describes it: then all is as at
    the start of a new process. `move` is bootstrap's."""
    with socket.socket(fileno=LISTENING) as listener:
        return Server(listener, status, move).loop()


class Server:
    """Imports, and forks a keeper for each worker that asks."""

    def __init__(self, listener: socket.socket, status: str, move: Move) -> None:
        self._listener = listener
        self._status = status
        self._move = move
        self._asked: dict[str, tuple[int, int]] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self._imported = Imported(set(), {}, _set_at_start())
        self._seconds = 0.0
        self._refused: str | None = None

    def loop(self) -> str | None:
        """Serve until nobody has asked for a while. In a recipe's process, returns its file."""
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
        """Answer a worker. Returns "", in a recipe's process its file, and None where the server is
        of no use any more."""
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
            pass  # the worker goes on without us
        return ""

    def _load(self, path: str) -> None:
        """Import what the list at `path` names and is not there yet."""
        if self._refused is not None or self._asked.get(path) == (stamp := _stamp(path)):
            return
        begun, since = time.process_time(), time.time_ns()
        self._asked[path] = stamp
        open_before = _descriptors()
        signal.alarm(_IMPORT_SECONDS)  # a server that hangs would make others wait
        environment = _import(_listed(path))
        signal.alarm(0)
        self._seconds += time.process_time() - begun
        self._imported = Imported(
            {name.partition(".")[0] for name in sys.modules},
            {**environment.read, **self._imported.read},
            {**self._imported.changed, **environment.changed},
        )
        files = _files_of_modules()
        self._files |= {file: _stamp(file) for file in files | _what_installs_change()}
        for file in files:
            if _stamp(file)[0] >= since:
                self._files[file] = _CHANGED  # meanwhile: nobody knows which one was imported
        self._refused = _trouble(files, open_before)
        gc.collect()
        gc.freeze()  # or the first collection in each child would copy what they share
        self._tell(len(files))

    def _is_stale(self) -> bool:
        """Whether a file of what was imported is not as it was, or a package came or went."""
        return any(_stamp(file) != stamp for file, stamp in self._files.items())

    def _tell(self, modules: int) -> None:
        """Have it on record what this process is, for `sweeper doctor`."""
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
        """Fork a keeper. Returns "" here, and the recipe's file in the recipe's process."""
        if os.fork():
            return ""
        recipe = None
        try:
            self._listener.close()
            os.close(LISTENING + 1)  # the lock is held by the server alone
            os.setsid()
            recipe = _keep(connection, self._imported, self._move)
        finally:
            if recipe is None:
                os._exit(0)
        return recipe


class Imported(NamedTuple):
    """What came of the imports: names of packages and modules (the first part), the variables that
    were read meanwhile (None: not there), and those that were set (None: removed)."""

    tops: set[str]
    read: dict[str, str | None]
    changed: dict[str, str | None]


def _set_at_start() -> dict[str, str | None]:
    """The variables that an interpreter sets by itself: `LC_CTYPE`, where there is no locale (PEP
    538). What was given is the same for each run, and so is this."""
    with open("/proc/self/environ", "rb") as file:
        given = {os.fsdecode(item.partition(b"=")[0]) for item in file.read().split(b"\0")}
    return {name: value for name, value in os.environ.items() if name not in given}


def _import(names: list[str]) -> Imported:
    """Import modules, and note what they do with the environment."""
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
                with suppress(Exception, SystemExit):  # the run will tell
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
    """Start a recipe, wait for its end, and for the worker to ask for it. Returns the recipe's file
    in its process, None in this one. It touches little: what it changes, a reference count too, is
    memory of its own."""
    request: Begin
    connection.settimeout(None)  # nobody else waits for this process: the worker may be slow
    request, descriptors = receive(connection, 1)
    why = _shadowed(request["argv"], imported.tops, move) or _differs(request, imported)
    if why is not None:
        send(connection, {"refused": why}, [])
        return None
    told, telling = os.pipe()
    reading, writing = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        connection.detach()
        ready = _become(request, imported, descriptors[0], (reading, telling), keeper)
        return request["argv"][3] if ready else os._exit(127)
    for descriptor in (reading, telling, descriptors[0]):
        os.close(descriptor)
    del request
    ended = os.pidfd_open(pid)
    gone = False
    try:
        ready = os.read(told, 1) == b"r"
        about: dict[str, object] = (
            {"pid": pid, "keeper": keeper} if ready else {"refused": "it cannot be prepared"}
        )
        send(connection, about, [])
        if ready and receive(connection)[0].get("go"):
            with suppress(BrokenPipeError):  # it was told to stop already
                os.write(writing, b"g")
            os.close(writing)
            gone = not _await(connection, ended, pid)
    except OSError:
        gone = True
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    if gone:
        time.sleep(_LATE_SECONDS)  # the worker's guard may be about to kill the group of this id
    _, _, usage = os.wait4(pid, 0)
    with suppress(OSError):
        send(connection, {"memory": usage.ru_maxrss * 1024}, [])
    return None


def _await(connection: socket.socket, ended: int, pid: int) -> bool:
    """Wait for the end of the recipe, tell the worker, and wait until it has seen to what the
    recipe left. Returns whether the worker was there to the end."""
    select.select([connection, ended], [], [])
    if select.select([ended], [], [], 0)[0]:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        code = 0 if info is None else info.si_status
        if info is not None and info.si_code != os.CLD_EXITED:
            code = -code
        send(connection, {"code": code}, [])
    return bool(receive(connection)[0].get("reap"))


def _become(
    request: Begin,
    imported: Imported,
    output: int,
    pipe: tuple[int, int],
    keeper: int,
) -> bool:
    """Be what a new interpreter would be. Returns whether the recipe is to begin: nothing may go
    wrong any more then, and the keeper or the worker has said so."""
    reading, telling = pipe
    try:
        os.setsid()
        _die_with(keeper)
        _as_after_exec(request, imported, output, keep=pipe)
        os.write(telling, b"r")
        os.close(telling)
        begun = os.read(reading, 1) == b"g"
        os.close(reading)
    except BaseException:  # noqa: BLE001 - the worker starts it by itself
        return False
    return begun


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(128 + signal.SIGKILL)


def _as_after_exec(
    request: Begin, imported: Imported, output: int, *, keep: tuple[int, int]
) -> None:
    """Give this process the environment, folder, descriptors and random state of its own."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in _descriptors():
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                os.close(descriptor)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, value in imported.changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(request["cwd"])
    time.tzset()
    sys.argv[:] = request["argv"][1:]
    sys.orig_argv[:] = request["argv"]
    sys.stdout = sys.__stdout__ = _opened(cast("io.TextIOWrapper", sys.stdout), 1)
    sys.stderr = sys.__stderr__ = _opened(cast("io.TextIOWrapper", sys.stderr), 2)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # Python's own generator is seeded anew by the fork
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _opened(before: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    """A standard stream as the interpreter opens it, for what the descriptor is now."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    raw.name = before.name
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def _differs(request: Begin, imported: Imported) -> str | None:
    """Why imports could have gone another way with the run's own environment."""
    given = request["environment"]
    for name, value in imported.read.items():
        if given.get(name) != value:
            return f"{name} was read while modules were imported"
    return None


def _shadowed(argv: list[str], tops: set[str], move: Move) -> str | None:
    """Why a recipe would find other modules than those that were imported: a folder that comes
    before the interpreter's own on the module path has one of the same name."""
    with open(argv[3], "rb") as file:
        child: Child = json.load(file)
    recipe = child["recipe"]
    folders = list(itertools.takewhile(lambda path: path not in _own_folders(), sys.path))
    if recipe["kind"] == "file":
        folders.append(os.path.dirname(recipe["file"]))
    elif recipe["on_path"]:
        folders.append(recipe["cwd"])
    snapshot = child.get("snapshot")
    if snapshot:
        moved = move(snapshot["root"], snapshot["copy"])
        folders += [moved(folder) for folder in folders]
    for folder in folders:
        found = _hides(folder, tops)
        if found is not None:
            return f"{os.path.join(folder, found)} hides a module"
    return None


def _hides(folder: str, tops: set[str]) -> str | None:
    """The first name in a folder that would be imported in place of one of `tops`."""
    if folder in _own_folders() or not os.path.isdir(folder):
        return None
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            importable = not suffix or suffix.endswith(("py", "pyc", "so"))
            if importable and name in tops:
                return entry.name
    return None


def _trouble(files: set[str], open_before: set[int]) -> str | None:
    """Why what was imported cannot be forked; None where it can be."""
    threads = _threads_after_fork()
    if threads:
        return f"what was imported has started threads ({threads})"
    if _descriptors() - open_before:
        return "what was imported has opened files"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in files and not _is_ours(name, file):
            return f"{file} is not of the interpreter's own packages"
    return None


def _is_ours(name: str, file: str) -> bool:
    """Whether it is this file, or bootstrap's."""
    return name == "__main__" or os.path.dirname(file) == os.path.dirname(__file__)


def _descriptors() -> set[int]:
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }


def remember(path: str) -> None:
    """Write down what this process has imported of the interpreter's own packages, beside what the
    list at `path` has already, in the order of import."""
    before = _listed(path)
    known = set(before)
    new = [name for name, _ in _own_modules() if name not in known]
    if not new:
        return
    partial = f"{path}.{os.getpid()}"
    with suppress(OSError):
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "modules": [*before, *new]}, file)
        os.replace(partial, path)


def _listed(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [name for name in json.load(file)["modules"] if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _own_modules() -> list[tuple[str, str]]:
    """Modules of the standard library and of the interpreter's installed packages, with their
    files, in the order in which they were imported."""
    folders = tuple(os.path.join(folder, "") for folder in _own_folders())
    found: list[tuple[str, str]] = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith(folders):
            continue
        if spec is not None and spec.name == name != "__main__":
            found.append((name, file))
    return found


def _files_of_modules() -> set[str]:
    """The files of all modules of the interpreter's own packages, whatever they call themselves."""
    folders = tuple(os.path.join(folder, "") for folder in _own_folders())
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str) and file.startswith(folders)}


@functools.cache
def _own_folders() -> frozenset[str]:
    """Where the standard library and the interpreter's packages lie."""
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    found = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    dynamic = {os.path.join(paths["platstdlib"], "lib-dynload")}
    return frozenset(found | dynamic)


def _what_installs_change() -> set[str]:
    """Files and folders that are not as they were when a package has come or gone."""
    found = {os.path.join(sys.prefix, "pyvenv.cfg")}
    for folder in _own_folders():
        if "-packages" in folder and os.path.isdir(folder):
            found.add(folder)
            found |= {entry.path for entry in os.scandir(folder) if entry.name.endswith(".pth")}
    return found


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _threads_after_fork() -> int:
    """Threads beside this one that a fork does not end: numerical libraries end theirs before it,
    and start them again when they are needed."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task")) - 1


def user_of(connection: socket.socket) -> int:
    """The user of the process on the other side."""
    form = struct.Struct("3i")
    asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return form.unpack(asked)[1]


def _reap_keepers() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
