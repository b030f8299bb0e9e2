"""Checks on every request before the engine handles it: its origin, its token and its size. Pages
in the user's browser and other users of the machine can reach a loopback port as well as the
owner."""

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = "/api/v1/healthz"
"""The only path that needs neither the token nor a key of its own."""
OPEN_BELOW = "/api/v1/files/"
"""Paths below it contain a key, because programs that download weights do not have the token."""
JSON_BYTES = 16 * 2**20
"""Maximum bytes of a JSON body. A prompt of 1,000,000 tokens has 7,000,000."""
OTHER_BYTES = 64 * 2**20
"""Maximum bytes of any other body. The SDK sends batches in parts of 5,000,000."""
_DRAINED = 8
"""A body that is too large is read and discarded up to this many times the limit before the
connection is cut. A client whose connection is cut while it sends cannot read the reason, and
sends the body again."""
_HEAD_BYTES = 4096
"""Bytes kept of a body that is too large. The SDK's bodies name their training client there."""
_TYPES = ("application/json", "application/x-protobuf")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class TooLarge(HTTPException):
    """A body larger than its limit. `head` is its beginning."""

    def __init__(self, limit: int, head: bytes) -> None:
        super().__init__(413, f"the body has more than {limit:,} bytes")
        self.head = head


def local_names(address: str) -> frozenset[str]:
    """Return the host names by which local clients may call a server at `address` on loopback."""
    return frozenset({"localhost", "127.0.0.1", "[::1]", address, f"[{address}]"})


class Front:
    """Checks each request before it passes it to the application. `token` is required of all
    requests except `OPEN` (None: no token). `names` are the accepted host names (None: any)."""

    def __init__(
        self, app: ASGIApp, token: str | None, names: Collection[str] | None = None
    ) -> None:
        self._app, self._token, self._names = app, token, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
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
    """Wrap `receive` so that reading a body of more than `limit` bytes raises a 413."""
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
