"""The socket through which an agent in a sandbox reaches sweeper's tools. Each connection gets a
server outside the sandbox, so the agent reaches the budget and the store only through tools.
Grids that the agent launches run outside the sandbox, as this user."""

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

SOCKET = "mcp.sock"
_MOST = 4
"""The largest number of servers at the same time."""
_END_SECONDS = 10.0


class Connections:
    """A listener on a socket in `folder`. It starts the server `command` for each connection."""

    def __init__(
        self, folder: str, command: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> None:
        self._command, self._env, self._cwd = list(command), dict(env), cwd
        self._servers: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = os.path.join(folder, SOCKET)
        self._listener.bind(path)
        os.chmod(path, 0o666)  # noqa: S103 - in a private folder; the sandbox may have another user
        self._listener.listen(_MOST)
        threading.Thread(target=self._accept, name="agent-connections", daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                with connection, self._lock:
                    self._servers = [each for each in self._servers if each.poll() is None]
                    if len(self._servers) < _MOST and not self._closed:
                        self._servers.append(self._serve(connection))

    def _serve(self, connection: socket.socket) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self._command,
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            cwd=self._cwd,
            env=self._env,
        )

    def close(self) -> None:
        """Accept no more connections, and end the servers. Sweeps that the agent has launched
        continue."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # this wakes `accept`
        self._listener.close()
        with self._lock:
            self._closed = True
            servers = self._servers
        for server in servers:
            server.terminate()
        for server in servers:
            try:
                server.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
