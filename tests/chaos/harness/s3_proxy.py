"""An S3 that fails at a chosen request: a proxy in front of a working S3.

Every request is counted, from 1. A `Fault` describes the failure; `Proxy.requests` records the
requests and those that were struck. Threads of this process serve it.
"""

import http.client
import os
import re
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["FIRST", "KINDS", "Fault", "Proxy", "Request", "apart"]

_WHOLE = "SWEEPER_TEST_WHOLE" in os.environ
"""Strike every request: `make chaos`."""
_PARTS = 8
FIRST = range(1, _PARTS + 1) if _WHOLE else range(1, 2)
"""The first requests that tests strike: each is a test of its own, so that several run at once."""


def apart(usually: int) -> int:
    """Return the distance to the next request that a test strikes."""
    return _PARTS if _WHOLE else usually


KINDS = {
    "error": "500 InternalError: nothing was done",
    "slowdown": "503 SlowDown: nothing was done",
    "slow": "the reply comes late, and still in time",
    "late": "it is done only after the client has given up waiting",
    "cut": "it is done, and the connection is cut before the reply",
    "drop": "the connection is cut before it is done",
    "stale": "a listing without what was written in the last seconds",
}
"""The kinds of faults."""
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>injected</Message></Error>"
_STALE_SECONDS = 3.0


class Fault(NamedTuple):
    """`kind` (see `KINDS`) strikes the request numbered `index`. With `times` above 1 it also
    strikes that request when it is sent again; with `every` it recurs after that many requests. A
    `stale` counts listings only, and hides files written in the last `seconds`."""

    kind: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    times: int = 1
    every: int = 0
    seconds: float = _STALE_SECONDS


class Request(NamedTuple):
    """A request: `what` describes it in words that are the same for every run and sweep."""

    what: str
    struck: bool


class Proxy:
    """Listens on `address` and forwards to the S3 at `upstream`. `timeout` is how many seconds its
    clients wait for an answer."""

    def __init__(self, upstream: str, fault: Fault | None = None, timeout: float = 1.0) -> None:
        self.fault = fault
        self.requests: list[Request] = []
        self._upstream = urlsplit(upstream).netloc
        self._timeout = timeout
        self._lock = threading.Lock()
        self._counted = 0
        self._hit: tuple[str, str] | None = None
        self._left = 0
        self._made: dict[str, float] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # the client has gone
                    self.close_connection = True

            def do_GET(self) -> None:
                proxy.serve(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                del format, args

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                del request, client_address  # a killed client has cut the connection

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request, or apply the fault."""
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        kind = self._choose(handler)
        if kind in ("error", "slowdown"):
            code = "InternalError" if kind == "error" else "SlowDown"
            status = 500 if kind == "error" else 503
            _answer(handler, status, {"content-type": "application/xml"}, _ERROR.format(code))
            return
        if kind == "drop":
            handler.close_connection = True
            return
        if kind == "late":
            time.sleep(self._timeout * 1.4)
        status, headers, data = self._ask(handler, body)
        if kind == "slow":
            time.sleep(self._timeout * 0.6)
        if kind == "cut":
            handler.close_connection = True
            return
        if kind == "stale":
            data = self._without_the_newest(data)
        _answer(handler, status, headers, data)

    def _choose(self, handler: BaseHTTPRequestHandler) -> str | None:
        """Count the request; returns its fault, if any."""
        same = handler.command, handler.path
        with self._lock:
            fault, struck = self.fault, False
            if fault is not None and (fault.kind != "stale" or _is_list(handler)):
                self._counted += 1
                past = self._counted - fault.index
                if past == 0 or (past > 0 and fault.every and past % fault.every == 0):
                    self._hit, self._left = same, fault.times
                struck = self._hit == same and self._left > 0
                self._left -= struck
            self.requests.append(Request(_trouble_of(handler), struck))
            return fault.kind if fault is not None and struck else None

    def _ask(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            given = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP}
            upstream.request(handler.command, handler.path, body or None, given)
            reply = upstream.getresponse()
            data = reply.read()
        finally:
            upstream.close()
        if handler.command == "PUT" and reply.status == 200:
            with self._lock:
                self._made.setdefault(_key(handler), time.monotonic())
        headers = {k: v for k, v in reply.getheaders() if k.lower() not in _HOP}
        if handler.command == "HEAD" and (size := reply.getheader("content-length")):
            headers["content-length"] = size
        return reply.status, headers, data

    def _without_the_newest(self, data: bytes) -> bytes:
        fault = self.fault
        assert fault is not None
        since = time.monotonic() - fault.seconds
        with self._lock:
            new = {key for key, made in self._made.items() if made > since}
            old = self._made.keys() - new
        bucket = re.search(rb"<Name>(.*?)</Name>", data)
        where = f"/{bucket[1].decode()}/" if bucket else "/"

        def keep(match: "re.Match[bytes]") -> bytes:
            key = where + unquote(match[2].decode())
            if match[1] == b"Contents":
                return b"" if key in new else match[0]
            listed_before = any(name.startswith(key) for name in old)
            return match[0] if listed_before else b""

        pattern = rb"<(Contents|CommonPrefixes)>.*?<(?:Key|Prefix)>(.*?)</(?:Key|Prefix)>.*?</\1>"
        return re.sub(pattern, keep, data, flags=re.DOTALL)


def _answer(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], data: bytes | str
) -> None:
    body = data.encode() if isinstance(data, str) else data
    handler.send_response_only(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if "content-length" not in headers and status not in (204, 304):
        handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        with suppress(OSError):
            handler.wfile.write(body)


def _key(handler: BaseHTTPRequestHandler) -> str:
    return unquote(urlsplit(handler.path).path)


def _is_list(handler: BaseHTTPRequestHandler) -> bool:
    return handler.command == "GET" and "list-type" in parse_qs(urlsplit(handler.path).query)


def _trouble_of(handler: BaseHTTPRequestHandler) -> str:
    """Describe a request: `PUT new state/RUN/1.claimed.json`, `LIST state`."""
    if _is_list(handler):
        prefix = parse_qs(urlsplit(handler.path).query).get("prefix", [""])[0]
        return f"LIST {_plain(prefix)}"
    verb = handler.command
    if handler.headers.get("if-none-match"):
        verb += " new"
    return f"{verb} {_plain(_key(handler))}"


def _plain(path: str) -> str:
    """Remove bucket, prefix and sweep, and make every run, hash and offset the same."""
    _, _, inside = path.rstrip("/").partition("/toys")
    inside = re.sub(r"\b[0-9a-f]{12}\b", "RUN", inside.strip("/"))
    inside = re.sub(r"\.probe-[0-9a-f]+", ".probe", inside)
    return re.sub(r"\b[0-9a-f]{16,}\b", "HASH", inside) or "the root"
