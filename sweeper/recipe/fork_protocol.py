"""The protocol between a worker and the fork server. A message is its length in four bytes,
followed by JSON. Standard library only; the server loads this file by path."""

# worker -> server   {"modules": PATH}   a list of modules, which are imported first
# server -> worker   {}                  or {"refused": why}
# worker -> keeper   {"argv", "cwd", "environment", "umask"}, and a descriptor for the recipe's
#                    output
# keeper -> worker   {"pid", "keeper"}   or {"refused": why}
# worker -> keeper   {"go": true}        only now the recipe begins
# keeper -> worker   {"code": N}         when it has ended; negative for a signal
# worker -> keeper   {"reap": true}      until then no other process gets its id
# keeper -> worker   {"memory": N}

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LISTENING = 3
"""The server's descriptor of the listening socket. The next descriptor is the lock."""
_LENGTH = struct.Struct("!I")
_LARGEST = 64 << 20


def send(connection: socket.socket, message: Mapping[str, object], descriptors: list[int]) -> None:
    """Send a message, and copies of file descriptors."""
    body = json.dumps(message).encode()
    data = _LENGTH.pack(len(body)) + body
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    # Send all in one call: a sender that is killed between two calls would leave half a message.
    sent = connection.sendmsg([data], passed if descriptors else [])
    if sent < len(data):  # All was sent, and the receiver may already be gone.
        connection.sendall(data[sent:])


def receive(connection: socket.socket, most: int = 0) -> tuple[Any, list[int]]:
    """Return the next message, and at most `most` file descriptors sent with it. Raises `OSError`
    if the connection ends or the message is too long."""
    size = array.array("i").itemsize
    head, passed, _flags, _address = connection.recvmsg(
        _LENGTH.size, socket.CMSG_SPACE(most * size) if most else 0
    )
    descriptors = array.array("i")
    for level, kind, data in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % size])
    head += _exactly(connection, _LENGTH.size - len(head))
    (length,) = _LENGTH.unpack(head)
    if length > _LARGEST:
        raise OSError("a message is too long")
    return json.loads(_exactly(connection, length)), descriptors.tolist()


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("the other process closed the connection")
        data += more
    return data


def user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of the connection."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return form.unpack(credentials)[1]
