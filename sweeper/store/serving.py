"""The process that reaches a remote store for all workers and commands of this machine. `shared.py`
starts it with `python -m sweeper.store.serving ROOT`. The process inherits its socket and its
lock."""

# A message is two lengths (of 4 and 8 bytes), an object in JSON, and bytes. A request has `method`,
# `arguments` and the bytes to write; an answer has `result`, or `error` and `text`, and the bytes
# that were read.

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from sweeper.store.base import Store

_LENGTHS = struct.Struct("!IQ")
_IDLE_SECONDS = 60.0


def send(connection: socket.socket, document: Mapping[str, object], data: bytes = b"") -> None:
    """Send a message. Raises `OSError`."""
    text = json.dumps(document).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(data)) + text)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next message. Raises `OSError`, also at the end of the connection."""
    length, size = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    document = json.loads(_exactly(connection, length))
    return document, bytes(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the connection has ended")
        view = view[count:]
    return data


def direct(
    store: "Store", method: str, arguments: Iterable[object], data: bytes
) -> tuple[Any, bytes]:
    """Execute a request: call `method` of the store. Return the result as JSON data, and the bytes
    that the method has read (empty for methods that read no content)."""
    if method == "address":
        return store.root, b""
    if method == "read_many":
        contents: dict[str, bytes] = cast(Any, store).read_many(*arguments)
        return [[path, len(part)] for path, part in contents.items()], b"".join(contents.values())
    values = [*arguments, data] if method in ("create", "replace", "append") else [*arguments]
    result = getattr(store, method)(*values)
    if isinstance(result, bytes):
        return None, result
    if method in ("list", "children", "names", "folders_with"):
        return [*result], b""
    return result, b""


def _serve(connection: socket.socket, root: str, clients: set[socket.socket]) -> None:
    from sweeper.errors import StoreError, SweeperError

    with connection:
        try:
            while True:
                request, data = receive(connection)
                content = b""
                try:
                    result, content = direct(
                        _store(root), request["method"], request["arguments"], data
                    )
                    answer: dict[str, object] = {"result": result}
                except SweeperError as error:
                    if type(error) is StoreError:
                        _reopen(root)
                    answer = {"error": type(error).__name__, "text": str(error)}
                except Exception as error:  # noqa: BLE001 - the client reports the error
                    answer = {"error": StoreError.__name__, "text": f"{root}: {error!r}"}
                send(connection, answer, content)
        except OSError:
            pass  # the client has ended
        finally:
            clients.discard(connection)


_stores: dict[str, Any] = {}
_opened: dict[str, float] = {}
_opening = threading.Lock()
_REOPEN_SECONDS = 5.0


def _store(root: str) -> Any:
    """Return the store at `root`. The first call opens the store."""
    from sweeper.store.opening import open_store

    with _opening:
        if root not in _stores:
            _stores[root] = open_store(root)
            _opened[root] = time.monotonic()
        return _stores[root]


def _reopen(root: str) -> None:
    """Make the next request open the store again, since credentials may have been renewed. Do
    nothing if the store was opened in the last `_REOPEN_SECONDS`."""
    with _opening:
        if root in _stores and time.monotonic() - _opened[root] > _REOPEN_SECONDS:
            del _stores[root]


def main(root: str) -> None:
    """Serve clients. Return when no client is connected and none has connected for
    `_IDLE_SECONDS`."""
    from sweeper.common.daemon import LISTENING, user_of

    clients: set[socket.socket] = set()
    with socket.socket(fileno=LISTENING) as listener:
        listener.settimeout(_IDLE_SECONDS)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if clients:
                    continue
                break
            connection.settimeout(None)
            if user_of(connection) != os.getuid():
                connection.close()
                continue
            clients.add(connection)
            threading.Thread(target=_serve, args=(connection, root, clients), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
