"""A program that runs an agent in a Modal sandbox. It prints the agent's output, and ends with
the agent's exit code. `start.json` in the private folder says what to start (places.py)."""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from sweeper.agents.start.connection import SOCKET
from sweeper.agents.start.relay import Folder, frame, unpack
from sweeper.backends.modal.client import Service, official
from sweeper.errors import SweeperError
from sweeper.terminal import warn

if TYPE_CHECKING:
    from modal import App, Client

START = "start.json"
_APP = "sweeper"
_ALIVE_SECONDS = 10.0
_SPARE_SECONDS = 300.0
_GUARD = """\
import os, sys, time
base = sys.argv[1]
os.makedirs(base, exist_ok=True)
alive = os.path.join(base, "alive")
open(alive, "w").close()
while time.time() - os.path.getmtime(alive) < 60:
    time.sleep(1)
"""
"""The main command of the sandbox. It ends if nothing has arrived for a minute, for example
because this program was killed. The sandbox ends with its main command."""


class Start(NamedTuple):
    """The contents of `start.json`. `base` is a folder in the sandbox, and `work` is the agent's
    folder on this machine. `env` has no secrets. `secrets` are names of environment variables."""

    argv: list[str]
    env: dict[str, str]
    secrets: list[str]
    image: str
    memory: int | None
    hours: float
    base: str
    work: str
    python: str


class _Session:
    """The connection to the relay (relay.py) that runs an agent in the sandbox."""

    def __init__(self, start: Start, private: str, process: Any) -> None:
        self._start, self._private, self._process = start, private, process
        self._work = Folder(start.work)
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def _send(self, line: bytes) -> None:
        async with self._writing:
            self._process.stdin.write(line)
            await self._process.stdin.drain.aio()

    async def _send_files(self) -> None:
        for name, data in await asyncio.to_thread(self._work.changed):
            await self._send(frame("put", data, name=name, folder="work"))
        while self._work.notices:
            os.write(1, self._work.notices.pop(0))

    async def run(self) -> int:
        """Start the agent, and wait until it ends. Return the agent's exit code, or 1 if the relay
        ends without reporting an exit code."""
        for name in sorted(os.listdir(self._private)):
            path = os.path.join(self._private, name)
            if os.path.isfile(path) and name != START:
                with open(path, "rb") as file:
                    await self._send(frame("put", file.read(), name=name, folder="private"))
        await self._send_files()
        env = {**self._start.env, **{name: os.environ[name] for name in self._start.secrets}}
        await self._send(frame("start", argv=self._start.argv, env=env))
        self._task(self._stay_alive())
        left = b""
        try:
            async for data in self._process.stdout:
                *lines, left = (left + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"{"):  # an error of the relay
                        os.write(1, line + b"\n")
                        continue
                    code = await self._take(*unpack(line))
                    if code is not None:
                        return code
        finally:
            for task in self._tasks:
                task.cancel()
        return 1

    def _task(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE_SECONDS)
            await self._send(frame("alive"))

    async def _take(self, message: dict[str, Any], data: bytes) -> int | None:
        """Handle a message of the relay. Return the agent's exit code, or None before its end."""
        kind, number = message["kind"], message.get("id", 0)
        if kind == "exit":
            return int(message["code"])
        if kind == "out":
            os.write(1, data)
        elif kind == "put":
            await asyncio.to_thread(self._work.write, message["name"], data)
        elif kind == "open":
            path = os.path.join(self._private, SOCKET)
            try:
                reader, self._connections[number] = await asyncio.open_unix_connection(path)
            except OSError:
                await self._send(frame("close", id=number))
            else:
                self._task(self._answers(number, reader))
        elif number in self._connections:
            writer = self._connections[number]
            with suppress(OSError):  # the server has ended, so no more answers follow
                if kind == "data":
                    writer.write(data)
                    await writer.drain()
                else:
                    writer.write_eof()
        return None

    async def _answers(self, number: int, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._send_files()  # files that a tool has written must arrive first
                await self._send(frame("data", data, id=number))
        await self._send(frame("close", id=number))


def run(private: str) -> int:
    """Run the agent in a new sandbox, and end the sandbox. Return the agent's exit code, or 130
    after Ctrl-C. Raises `SweeperError`."""
    with open(os.path.join(private, START), encoding="utf-8") as file:
        start = Start(**json.load(file))
    modal = official()
    service = Service(_APP, None)
    image = service.image(start.image, 600.0)
    relay = resources.files("sweeper.agents.start").joinpath("relay.py").read_text("utf-8")
    seconds = 3600 * start.hours + _SPARE_SECONDS
    ids: list[str] = []

    async def work(client: "Client", app: "App") -> int:
        more = {} if start.memory is None else {"memory": start.memory}
        sandbox: Any = await modal.Sandbox.create.aio(
            *(start.python, "-c", _GUARD, start.base),
            name=f"sweeper-{os.path.basename(start.base)}-{time.time_ns()}"[:60],
            app=app,
            image=image,
            timeout=min(round(seconds), 24 * 3600),
            client=client,
            **more,
        )
        ids.append(sandbox.object_id)
        try:
            command = (start.python, "-u", "-c", relay, start.base)
            process = await sandbox.exec.aio(*command, text=False)
            return await _Session(start, private, process).run()
        finally:
            with suppress(Exception):  # on failure, the guard in the sandbox ends it
                await sandbox.terminate.aio()

    async def end(client: "Client", app: "App") -> None:
        del app
        for identity in ids:
            sandbox: Any = await modal.Sandbox.from_id.aio(identity, client=client)
            await sandbox.terminate.aio()

    try:
        return service.ask(work, seconds)
    except KeyboardInterrupt:
        service.ask(end)
        return 130


def main() -> int:
    """Run the agent that `start.json` in the folder `sys.argv[1]` describes."""
    try:
        return run(sys.argv[1])
    except SweeperError as error:
        warn(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
