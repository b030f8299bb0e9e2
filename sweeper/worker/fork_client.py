"""Starts a recipe from a fork server, a process that has already imported the recipe's modules. If
that is not possible, `fork` returns None. Uses only the standard library."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from sweeper import paths
from sweeper.common.daemon import (
    OF_A_TERMINAL,
    Daemon,
    digest,
    is_possible,
    of_this_process,
    private_folder,
)
from sweeper.common.full_machine import when_there_is_room
from sweeper.common.redaction import secret_values
from sweeper.common.sweeper_argv import BOOTSTRAP
from sweeper.sweep.job import Job
from sweeper.worker.child import Child, Guard, spawn
from sweeper.worker.output import say

if TYPE_CHECKING:
    import socket

_WAIT_SECONDS = 10.0
_BUSY = 2.0
"""Load per processor above which a server may answer slowly."""
_LONGEST_SECONDS = 300.0
_KEEPER_SECONDS = 5.0
_REAP_SECONDS = 60.0
"""Seconds that a live keeper may take to answer after the recipe's end."""
_AGAIN_SECONDS = 600.0
"""Seconds for which a server that did not answer is not asked again."""
_OF_A_RUN = ("SWEEPER_", "WANDB_", "TINKER_TAGS")
"""Prefixes of variables that differ between runs but do not affect imports."""
PARTS = (
    *("start.py", "bootstrap.py", "fork_server.py", "fork_protocol.py", "fresh_process.py"),
    *("own_packages.py", "meter.py", "inspection.py", "function_recipes.py", "stack_signal.py"),
)
"""The source files of the server and of its children. If one of them changes, a new server is
needed."""


def module_list(job: Job, environment: Mapping[str, str]) -> str | None:
    """Return the path of the file that lists the modules that the recipe imports. The file may not
    exist yet, but its folder exists. Return None if the recipe cannot be forked: the system has no
    pidfd, `launch.env` contains `{log_path}`, PYTHONPATH has a relative folder, or the file's
    folder is not private to this user."""
    recipe = job.recipe
    if not is_possible():
        return None
    if any("{log_path}" in value for value in job.settings.env.values()):
        return None
    path = environment.get("PYTHONPATH", "")
    if path and not all(map(os.path.isabs, path.split(os.pathsep))):
        return None
    folder = paths.warm(paths.home(environment))
    identity = [recipe.python, recipe.kind, recipe.module, recipe.file, recipe.function]
    if not private_folder(folder):
        return None  # Another user could listen there.
    return os.path.join(folder, f"{digest(identity)}.modules")


class ForkedChild:
    """A recipe's process that was forked by another process, called the keeper. The class has the
    interface of `Child`."""

    def __init__(
        self, pid: int, keeper: int, output: int, connection: "socket.socket", ended: int
    ) -> None:
        self.pid = pid
        self.output = output
        self.keeper = keeper
        self.connection = connection
        self._ended = ended
        self._reaped: tuple[int, int | None] | None = None

    def await_end(self) -> None:
        """Wait until the process has ended, without reaping it."""
        import select

        select.select([self._ended], [], [])

    def reap(self) -> tuple[int, int | None]:
        """Wait for the process to end, and ask the keeper (its parent process) to reap it. Return
        the exit code (negative for a signal) and the peak memory in bytes. If the keeper was killed
        before the recipe's end, return -9 and None."""
        if self._reaped is None:
            self.await_end()
            code, memory = -9, None
            with suppress(OSError, KeyError, ValueError), self.connection:
                code = self._receive()["code"]
                memory = self._request_reaping()["memory"]
            self._reaped = code, memory
            os.close(self._ended)
        return self._reaped

    def _receive(self) -> Mapping[str, int]:
        """Wait for the keeper's next message. Resume the keeper if it was stopped (SIGSTOP)."""
        from sweeper.recipe.fork_protocol import receive

        self.connection.settimeout(_KEEPER_SECONDS)
        deadline = time.monotonic() + _REAP_SECONDS
        while True:
            try:
                return receive(self.connection)[0]
            # The keeper was stopped, or is slow. A dead keeper closes the connection.
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            with suppress(OSError):
                os.kill(self.keeper, signal.SIGCONT)

    def _request_reaping(self) -> Mapping[str, int]:
        from sweeper.recipe.fork_protocol import send

        send(self.connection, {"reap": True}, [])
        return self._receive()


class Program(NamedTuple):
    """The program to execute, its working folder and its environment."""

    command: Sequence[str]
    cwd: str
    environment: Mapping[str, str]


def start(
    modules: str | None, job: Job, guard: Guard, program: Program, meanwhile: Callable[[], bool]
) -> Child | ForkedChild:
    """Start `program` from a fork server if possible, else with `spawn`. `fork` describes the
    arguments."""
    forked = fork(modules, job, guard, program, meanwhile)
    return forked or when_there_is_room(partial(spawn, *program, guard))


def fork(
    modules: str | None,
    job: Job,
    guard: Guard,
    program: Program,
    meanwhile: Callable[[], bool] = lambda: True,
    wait_s: float = _WAIT_SECONDS,
) -> ForkedChild | None:
    """Let a fork server start `program`, and let `guard` watch the new process. `program` executes
    sweeper's bootstrap script. The file `modules` lists the modules that the recipe imports. Call
    `fork` while there is only one thread, since it may start a server. The server may take `wait_s`
    seconds for an answer or, on a busy machine, five minutes. Meanwhile, call `meanwhile` every
    `wait_s` seconds; if it returns False, give up. Return None if no server starts the program."""
    if modules is None or not os.path.exists(modules):
        return None
    try:
        server = _Server(modules, job, program.command[0], program.environment, wait_s)
        if server.is_slow():
            return None
        try:
            # Ask again if the server was ending, or had waited too long for our message.
            with suppress(ConnectionError):
                return _ask(server, modules, guard, program, meanwhile)
            return _ask(server, modules, guard, program, meanwhile)
        except TimeoutError:
            server.tell_slow()
    except InterruptedError:  # `meanwhile` returned False
        pass
    except Exception as error:  # noqa: BLE001 - it can be started without
        say(f"sweeper: starting without the fork server: {type(error).__name__}: {error}")
    return None


def _ask(
    server: "_Server", modules: str, guard: Guard, program: Program, meanwhile: Callable[[], bool]
) -> ForkedChild | None:
    from sweeper.recipe.fork_protocol import receive, send

    with ExitStack() as undo:
        connection = undo.enter_context(server.connect())
        send(connection, {"modules": modules}, [])
        _await(connection, meanwhile, server.wait_s)
        if "refused" in receive(connection)[0]:
            return None
        output, writing = os.pipe()
        undo.callback(os.close, output)
        try:
            send(connection, _request(program), [writing])
        finally:
            os.close(writing)
        _await(connection, meanwhile, server.wait_s)
        answer, _ = receive(connection)
        if "refused" in answer:
            return None
        ended = os.pidfd_open(answer["pid"])
        undo.callback(os.close, ended)
        undo.callback(guard.watch, 0)
        guard.watch(answer["pid"])
        send(connection, {"go": True}, [])
        undo.pop_all()
    return ForkedChild(answer["pid"], answer["keeper"], output, connection, ended)


def _request(program: Program) -> dict[str, object]:
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "argv": list(program.command),
        "cwd": program.cwd,
        "environment": dict(program.environment),
        "umask": umask,
    }


def _await(connection: "socket.socket", meanwhile: Callable[[], bool], wait_s: float) -> None:
    """Wait until the server answers. Raises `TimeoutError` after `wait_s` seconds or, on a busy
    machine, after about five minutes, since hundreds of runs may be starting. Raises
    `InterruptedError` when `meanwhile` returns False."""
    import select

    begun = time.monotonic()
    while not select.select([connection], [], [], wait_s)[0]:
        busy = os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
        if not busy or time.monotonic() - begun > _LONGEST_SECONDS:
            raise TimeoutError
        if not meanwhile():
            raise InterruptedError


class _Server(Daemon):
    """The fork server of one interpreter and environment."""

    def __init__(
        self, modules: str, job: Job, python: str, environment: Mapping[str, str], wait_s: float
    ) -> None:
        self.wait_s = wait_s
        shared = dict(_shared(job, environment))
        name = digest([python, sorted(shared.items()), *of_this_process(), *_parts()])
        super().__init__(
            os.path.dirname(modules),
            name,
            [python, BOOTSTRAP, "serve", os.path.join(os.path.dirname(modules), f"{name}.json")],
            shared,
            wait_s,
        )

    def is_slow(self) -> bool:
        """Return whether, in the last ten minutes, the server did not answer a client in time."""
        try:
            age = time.time() - os.stat(self.path("slow")).st_mtime
        except OSError:
            return False
        return 0 <= age < _AGAIN_SECONDS

    def tell_slow(self) -> None:
        """Record that the server is slow, so that other clients do not wait for it."""
        with suppress(OSError):
            os.close(os.open(self.path("slow"), os.O_CREAT | os.O_WRONLY, 0o600))
            os.utime(self.path("slow"))


def _shared(job: Job, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that are the same for all runs of a sweep, without secrets."""
    for name, value in environment.items():
        if (
            name.startswith(_OF_A_RUN)
            or name.startswith(OF_A_TERMINAL)
            or name in job.wandb
            or secret_values({name: value}, job.secrets)
        ):
            continue
        yield name, value


def _parts() -> Iterator[object]:
    for part in PARTS:
        status = os.stat(os.path.join(os.path.dirname(BOOTSTRAP), part))
        yield status.st_mtime_ns, status.st_size


class Servers(NamedTuple):
    """The running fork servers of a home folder. `number` is the number of servers. `modules` is
    the largest number of modules that a server has imported, and `import_s` the largest processor
    time (in seconds) that a server has spent on imports. `refused` is a server's reason for
    refusing to fork, or None."""

    number: int
    modules: int
    import_s: float
    refused: str | None


class _Record(TypedDict):
    """The JSON file in which a fork server describes itself."""

    pid: int
    modules: int
    import_s: float
    refused: str | None


def at_work(root: str | None = None) -> Servers:
    """Return the running fork servers of the home folder `root`."""
    folder = paths.warm(root)
    records: list[_Record] = []
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".json"):
                with suppress(OSError, ValueError), open(os.path.join(folder, name)) as file:
                    document: _Record = json.load(file)
                    if os.path.exists(f"/proc/{int(document['pid'])}"):
                        records.append(document)
    return Servers(
        len(records),
        max((record["modules"] for record in records), default=0),
        max((record["import_s"] for record in records), default=0.0),
        next((record["refused"] for record in records if record["refused"]), None),
    )
