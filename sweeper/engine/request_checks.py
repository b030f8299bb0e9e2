"""What every request has to pass before the engine looks at it: where it comes from, its key, how
large it is. A page in somebody's browser, and another user of the machine, can reach a port on
loopback as well as its owner can."""

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["JSON_BYTES", "OPEN", "OTHER_BYTES", "Front", "TooLarge", "local_names"]

OPEN = "/api/v1/healthz"
"""The only address that is answered without the token and without a key of its own."""
OPEN_BELOW = "/api/v1/files/"
"""Addresses below it hold a key: who fetches weights by them has no token."""
JSON_BYTES = 16 * 2**20
"""Bytes of a JSON body at most: a prompt of 1,000,000 tokens has 7,000,000."""
OTHER_BYTES = 64 * 2**20
"""Bytes of any other at most: the SDK sends batches in parts of 5,000,000."""
_DRAINED = 8
"""Times the limit that is read, and thrown away, before the connection is cut: who sends a body and
finds the connection cut cannot read why, and sends it again."""
_HEAD_BYTES = 4096
"""Of a body that is too large, what is kept: the SDK's say there whom they are for."""
_TYPES = ("application/json", "application/x-protobuf")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class TooLarge(HTTPException):
    """A body of more bytes than are read; `head` is how it begins."""

    def __init__(self, limit: int, head: bytes) -> None:
        super().__init__(413, f"the body has more than {limit:,} bytes")
        self.head = head


def local_names(address: str) -> frozenset[str]:
    """The names by which a client on this machine may call a server at `address` on loopback."""
    return frozenset({"localhost", "127.0.0.1", "[::1]", address, f"[{address}]"})


class Front:
    """The application behind it. `token` is asked of all requests but `OPEN`, None: of none;
    `names` are those of the hosts that it answers to, None: any."""

    def __init__(
        self, app: ASGIApp, token: str | None, names: Collection[str] | None = None
    ) -> None:
        self._app, self._token, self._names = app, token, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the application do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        kind = headers.get("content-type", "")
        limit = JSON_BYTES if kind.startswith("application/json") else OTHER_BYTES
        await self._app(scope, _bounded(receive, limit), send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if self._names is not None and name.lower() not in self._names:
            return _refused(403, f"this engine is not {host!r}: it answers to its own machine")
        if "origin" in headers:
            return _refused(403, "this engine does not answer to pages in a browser")
        is_open = scope["path"] == OPEN or scope["path"].startswith(OPEN_BELOW)
        if not is_open and not self._allowed(headers):
            return _refused(
                401,
                "this engine asks for its token as the API key: `sweeper engine env` on its "
                "machine shows what to set",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        if scope["method"] in _WITH_BODY and not empty and kind not in _TYPES:
            return _refused(415, f"a body is one of {', '.join(_TYPES)}, not {kind or 'unnamed'}")
        return None

    def _allowed(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        return hmac.compare_digest(given.encode(), self._token.encode())


def _refused(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same, but that a body of more than `limit` bytes is a 413 for who reads it."""
    size, head = 0, b""

    async def bounded() -> Message:
        nonlocal size, head
        message = await receive()
        size += len(message.get("body", b""))
        head += message.get("body", b"")[: _HEAD_BYTES - len(head)]
        if size <= limit:
            return message
        while message.get("more_body") and size <= _DRAINED * limit:
            message = await receive()
            size += len(message.get("body", b""))
        raise TooLarge(limit, head)

    return bounded
