"""Runs an agent in a sandbox whose only connection is standard input and output. Frames (one
JSON object per line) carry the agent's files, its output, and its connections to sweeper's
tools."""

# This module uses only the standard library of any Python 3, because the sandbox executes its text.
# The other side is modal_client.py, which also uses `Folder` and `Frames`.
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any

LARGEST = 10_000_000
"""The largest size of a file that is copied, in bytes."""
_SKIPPED = (".git", "__pycache__", "node_modules", ".venv", "sweeps")
_EVERY_SECONDS = 10.0


class Folder:
    """A folder that exists twice: in the sandbox and on the machine that started the sandbox.
    Files that are written on one side are copied to the other side."""

    def __init__(self, top: str) -> None:
        self.top = os.path.realpath(top)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._skipped: set[str] = set()
        self.notices: list[bytes] = []
        """New messages about files that are not copied. Callers remove the messages that they
        have shown."""
        self._lock = threading.Lock()

    def changed(self) -> "list[tuple[str, bytes]]":
        """Return (path, content) of each file that this side has written since the last call. Leave
        out files above `LARGEST` bytes and folders in `_SKIPPED`, and add messages to `notices`."""
        files: list[tuple[str, bytes]] = []
        with self._lock:
            for at, folders, names in os.walk(self.top):
                for name in sorted(set(folders) & set(_SKIPPED)):
                    self._skip(os.path.join(at, name), "a folder of that name")
                folders[:] = sorted(set(folders) - set(_SKIPPED))
                for name in sorted(names):
                    path = os.path.join(at, name)
                    stamp = self._stamp(path)
                    key = os.path.relpath(path, self.top)
                    if stamp is None or stamp == self._stamps.get(key):
                        continue
                    if stamp[1] > LARGEST:
                        self._skip(path, f"above {LARGEST // 1_000_000} MB")
                        continue
                    try:
                        with open(path, "rb") as file:
                            files.append((key, file.read(LARGEST)))
                    except OSError:  # removed in the meantime, or unreadable
                        continue
                    self._stamps[key] = stamp
        return files

    def _skip(self, path: str, why: str) -> None:
        key = os.path.relpath(path, self.top)
        if key not in self._skipped:
            self._skipped.add(key)
            self.notices.append(f"sweeper: {key} is not copied: {why}\n".encode())

    def _stamp(self, path: str) -> "tuple[int, int] | None":
        try:
            if os.path.islink(path) or not os.path.isfile(path):
                return None
            status = os.stat(path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def write(self, name: str, data: bytes) -> None:
        """Write a file that the other side has sent. Ignore paths outside the folder."""
        path = os.path.realpath(os.path.join(self.top, name))
        if not path.startswith(self.top + os.sep) or os.path.isdir(path):
            return
        with self._lock:
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(data)
            except OSError:  # for example a file where the other side has a folder
                return
            stamp = self._stamp(path)
            if stamp is not None:
                self._stamps[os.path.relpath(path, self.top)] = stamp


def frame(kind: str, data: bytes = b"", **more: Any) -> bytes:
    """Encode a message (a frame) as one line of JSON, with `data` in base64."""
    packed = {"data": base64.b64encode(data).decode()} if data else {}
    return json.dumps({"kind": kind, **packed, **more}).encode() + b"\n"


def unpack(line: bytes) -> "tuple[dict[str, Any], bytes]":
    """Decode a line that `frame` has made. Return the JSON object and the data."""
    message = json.loads(line)
    return message, base64.b64decode(message.get("data", ""))


class Relay:
    """The program that runs the agent in the sandbox. It talks to modal_client.py in messages."""

    def __init__(self, base: str, output: "IO[bytes]") -> None:
        self.base, self._output = base, output
        self.private, self.work = os.path.join(base, "private"), os.path.join(base, "work")
        for folder in (self.private, self.work):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder, mode=0o700)
        self.folders = {"private": Folder(self.private), "work": Folder(self.work)}
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._agent: subprocess.Popen[bytes] | None = None

    def send(self, line: bytes) -> None:
        """Send an encoded frame."""
        with self._lock:
            self._output.write(line)
            self._output.flush()

    def send_files(self) -> None:
        """Send the files that the agent has written."""
        for name, data in self.folders["work"].changed():
            self.send(frame("put", data, name=name))
        notices = self.folders["work"].notices
        while notices:
            self.send(frame("out", notices.pop(0)))

    def take(self, message: "dict[str, Any]", data: bytes) -> None:
        """Handle a message from modal_client.py."""
        with open(os.path.join(self.base, "alive"), "w"):
            pass
        if message["kind"] == "put":
            self.folders[message["folder"]].write(message["name"], data)
        elif message["kind"] == "start":
            self._start(message["argv"], message["env"])
        elif message["kind"] == "data":
            connection = self._connections.get(message["id"])
            if connection is not None:
                try:
                    connection.sendall(data)
                except OSError:  # the bridge has ended
                    self._close(message["id"])
        elif message["kind"] == "close":
            self._close(message["id"])

    def _start(self, argv: "list[str]", env: "dict[str, str]") -> None:
        self.folders["work"].changed()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.path.join(self.private, "mcp.sock"))
        listener.listen(4)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        try:
            with open(os.path.join(self.private, "prompt.md"), "rb") as prompt:
                self._agent = subprocess.Popen(
                    argv,
                    cwd=self.work,
                    env={**os.environ, **env},
                    stdin=prompt,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self.send(frame("out", f"{argv[0]}: {error.strerror}\n".encode()))
            self.send(frame("exit", code=127))
            return
        threading.Thread(target=self._follow, args=(self._agent,), daemon=True).start()
        threading.Thread(target=self._repeat, daemon=True).start()

    def _repeat(self) -> None:
        while True:
            time.sleep(_EVERY_SECONDS)
            self.send_files()

    def _follow(self, agent: "subprocess.Popen[bytes]") -> None:
        output = agent.stdout.fileno() if agent.stdout is not None else 0
        while True:
            data = os.read(output, 65536)
            if not data:
                break
            self.send(frame("out", data))
        code = agent.wait()
        self.send_files()
        self.send(frame("exit", code=code if code >= 0 else 128 - code))

    def _accept(self, listener: socket.socket) -> None:
        number = 0
        while True:
            connection, _ = listener.accept()
            number += 1
            self._connections[number] = connection
            self.send(frame("open", id=number))
            threading.Thread(target=self._copy, args=(number, connection), daemon=True).start()

    def _copy(self, number: int, connection: socket.socket) -> None:
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            self.send_files()  # a grid must arrive before the call that names it
            self.send(frame("data", data, id=number))
        self.send(frame("close", id=number))

    def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def end(self) -> None:
        """Kill the agent if it is running."""
        if self._agent is not None and self._agent.poll() is None:
            os.killpg(self._agent.pid, signal.SIGKILL)


def main(base: str) -> None:
    """Run the relay until standard input ends."""
    relay = Relay(base, sys.stdout.buffer)
    try:
        for line in sys.stdin.buffer:
            relay.take(*unpack(line))
    finally:
        relay.end()


if __name__ == "__main__":
    main(sys.argv[1])
