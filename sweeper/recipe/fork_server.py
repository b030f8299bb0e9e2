"""The fork server: a process that has imported what recipes import, and forks their processes.

    python bootstrap.py serve STATUS       the listening socket is descriptor 3

Runs in the recipe's interpreter, by path. Standard library only. A worker connects (see
sweeper/worker/warm.py), and over that connection pass:

    worker -> server   {"modules": PATH}   a list of modules, which are imported first
    server -> worker   {}                  or {"refused": why}
    worker -> keeper   {"argv", "cwd", "environment", "umask"}, and the recipe's output as a
                       descriptor
    keeper -> worker   {"pid": N}          or {"refused": why}
    worker -> keeper   {"go": true}        only now the recipe begins
    worker -> keeper   {"reap": true}      when the recipe has ended
    keeper -> worker   {"status": N, "memory": N}

Each message is its length, four bytes, and JSON. The keeper is a process of the server's, one for
each recipe. It waits for the recipe, and kills the recipe's process group when the worker is gone.
The server itself never reads what a run is given: its secrets pass through the keeper alone. A
recipe outlives the server, and never its keeper.

A module is taken only from the interpreter's own packages. What the user may edit is imported by
each run for itself.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__all__ = ["receive", "remember", "send", "serve"]

LISTENING = 3
_IDLE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_REQUEST_SECONDS = 5.0
_LENGTH = struct.Struct("!I")
_LARGEST = 64 << 20


def send(connection: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Send a message, with descriptors that the other side gets copies of."""
    data = json.dumps(message).encode()
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([_LENGTH.pack(len(data))], passed if descriptors else [])
    connection.sendall(data)


def receive(connection: socket.socket, most: int = 0) -> tuple[dict[str, Any], list[int]]:
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


def serve(status: str, run: Callable[[str], None]) -> NoReturn:
    """Answer workers until none has asked for a minute, or the folder of the file `status` is gone.
    `run` becomes a recipe."""
    with socket.socket(fileno=LISTENING) as listener:
        Server(listener, status, run).loop()
    os._exit(0)


class Server:
    """Imports, and forks a keeper for each worker that asks."""

    def __init__(self, listener: socket.socket, status: str, run: Callable[[str], None]) -> None:
        self._listener = listener
        self._status = status
        self._run = run
        self._asked: dict[str, tuple[int, int]] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self._tops: set[str] = set()
        self._seconds = 0.0
        self._refused: str | None = None

    def loop(self) -> None:
        """Serve until nobody has asked for a while."""
        folder = os.path.dirname(self._status)
        last = time.monotonic()
        while time.monotonic() < last + _IDLE_SECONDS and os.path.isdir(folder):
            if select.select([self._listener], [], [], _LOOK_SECONDS)[0]:
                connection, _ = self._listener.accept()
                with connection:
                    if not self._answer(connection):
                        break
                last = time.monotonic()
            _reap_keepers()
        with suppress(OSError):
            os.unlink(self._status)

    def _answer(self, connection: socket.socket) -> bool:
        """Answer a worker. Returns whether the server is still of use."""
        connection.settimeout(_REQUEST_SECONDS)
        try:
            if _user_of(connection) != os.getuid():
                return True
            request, _ = receive(connection)
            if self._is_stale():
                send(connection, {"refused": "a package was changed"}, [])
                return False
            self._load(str(request["modules"]))
            send(connection, {} if self._refused is None else {"refused": self._refused}, [])
            if self._refused is None:
                self._fork(connection)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the worker goes on without us
        return True

    def _load(self, path: str) -> None:
        """Import what the list at `path` names and is not there yet."""
        if self._refused is not None or self._asked.get(path) == (stamp := _stamp(path)):
            return
        begun = time.process_time()
        for name in _listed(path):
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except (Exception, SystemExit):  # noqa: BLE001, S112  the run will tell
                    continue
        self._seconds += time.process_time() - begun
        self._asked[path] = stamp
        own = {name for name, _ in _own_modules()}
        self._files = {
            file: _stamp(file)
            for name in own
            if (file := getattr(sys.modules[name], "__file__", None)) is not None
        }
        self._tops = {name.partition(".")[0] for name in sys.modules}
        threads = _threads_after_fork()
        if threads:
            self._refused = f"what was imported has started {threads} threads"
        gc.collect()
        gc.freeze()  # or the first collection in each child would copy what they share
        self._tell(len(own))

    def _is_stale(self) -> bool:
        """Whether a file of what was imported is not as it was."""
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

    def _fork(self, connection: socket.socket) -> None:
        if os.fork():
            return
        code = 1
        try:
            self._listener.close()
            os.setsid()
            connection.settimeout(None)
            code = _keep(connection, self._tops, self._run)
        finally:
            os._exit(code)


def _keep(connection: socket.socket, tops: set[str], run: Callable[[str], None]) -> int:
    """Start a recipe, wait for its end, and for the worker to ask how it ended. It touches little:
    what it changes, a reference count too, is memory of its own."""
    request, descriptors = receive(connection, 1)
    why = _shadowed(request["argv"], tops)
    if why is not None:
        send(connection, {"refused": why}, [])
        return 0
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        connection.close()
        _become(request, descriptors[0], reading, run)
    os.close(reading)
    os.close(descriptors[0])
    del request
    ended = os.pidfd_open(pid)
    try:
        send(connection, {"pid": pid}, [])
        go, _ = receive(connection)
        if go.get("go"):
            os.write(writing, b"g")
            os.close(writing)
            select.select([connection, ended], [], [])
            receive(connection)  # the worker asks when it has seen the end
    except OSError:
        pass  # the worker is gone
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # it has no group of its own yet
    _, status, usage = os.wait4(pid, 0)
    with suppress(OSError):
        send(connection, {"status": status, "memory": usage.ru_maxrss * 1024}, [])
    return 0


def _become(
    request: dict[str, Any], output: int, reading: int, run: Callable[[str], None]
) -> NoReturn:
    """Be what a new interpreter would be, and then the recipe."""
    code = 1
    try:
        os.setsid()
        if os.read(reading, 1) != b"g":
            os._exit(127)
        _as_after_exec(request, output)
        _start(request["argv"], run)
        code = 0
    except SystemExit as leaving:
        code = _code_of(leaving)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        _leave(code)


def _start(argv: list[str], run: Callable[[str], None]) -> None:
    sys.argv[:] = argv[1:]
    run(argv[3])


def _as_after_exec(request: dict[str, Any], output: int) -> None:
    """Give this process the environment, folder, descriptors and random state of its own."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, max(1024, null + 1, output + 1))
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    time.tzset()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # Python's own generator is seeded anew by the fork
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _code_of(leaving: SystemExit) -> int:
    """The exit code that the interpreter would end with."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """End as the interpreter does: wait for threads, call what `atexit` was given, flush."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]  # joins those that are no daemons
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _shadowed(argv: list[str], tops: set[str]) -> str | None:
    """Why a recipe would find other modules than those that were imported, `tops` and what is in
    them: its own folder, which comes first on the module path, has one of the same name. None where
    it has none."""
    with open(argv[3], "rb") as file:
        recipe = json.load(file)["recipe"]
    if recipe["kind"] == "file":
        folder = os.path.dirname(recipe["file"])
    elif recipe["on_path"]:
        folder = recipe["cwd"]
    else:
        return None
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            importable = not suffix or suffix.endswith(("py", "pyc", "so"))
            if importable and name in tops and not _lies_below(name, folder):
                return f"{entry.name} shadows a module"
    return None


def _lies_below(name: str, folder: str) -> bool:
    """Whether what was imported as `name` is the one in `folder`, or Python's own frozen one."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(os.path.join(folder, ""))


def remember(path: str) -> None:
    """Write down what this process has imported of the interpreter's own packages, beside what the
    list at `path` has already, in the order of import."""
    before = _listed(path)
    known = set(before)
    new = [name for name, file in _own_modules() if name not in known and file is not None]
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


def _own_modules() -> list[tuple[str, str | None]]:
    """Modules of the standard library and of the interpreter's installed packages, with their
    files, in the order in which they were imported."""
    import sysconfig

    paths = sysconfig.get_paths()
    folders = tuple(
        os.path.join(paths[kind], "") for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    found: list[tuple[str, str | None]] = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        file = getattr(module, "__file__", None)
        ours = isinstance(file, str) and file.startswith(folders)
        if spec is not None and spec.name == name and ours and name != "__main__":
            found.append((name, file))
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


def _user_of(connection: socket.socket) -> int:
    form = struct.Struct("3i")
    asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return form.unpack(asked)[1]


def _reap_keepers() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
