"""The engine's HTTP API, as version 0.38 of the SDK `tinker` uses it."""

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import CancelledError
from typing import cast

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sweeper.engine import access_token, exports, listing
from sweeper.engine.errors import Busy, RequestError, Unknown
from sweeper.engine.limits import Bucket, Failures, Paused
from sweeper.engine.scheduler import Reply
from sweeper.engine.service import Body, Service
from sweeper.engine.wire import json_head, protobuf_head

OPEN = "/api/v1/healthz"
"""The path of the health check, which needs no token."""
OPEN_BELOW = "/api/v1/files/"
"""The prefix of download paths. They contain a key and need no token, because programs that
download weights do not have the token."""
JSON_BYTES = 16 * 2**20
"""Maximum size of a JSON body in bytes. A prompt of 1,000,000 tokens needs 7,000,000 bytes."""
OTHER_BYTES = 64 * 2**20
"""Maximum size of any other body in bytes. The SDK sends batches in parts of 5,000,000 bytes."""
_DRAINED = 8
"""A body that is too large is read and discarded, up to this multiple of the limit, before the
client gets the error. A client whose connection is closed while it sends would not see the error,
and would send the body again."""
_HEAD_BYTES = 4096
"""Number of bytes kept from the beginning of a body that is too large. In the SDK's requests, these
bytes contain the training client's name."""
_TYPES = ("application/json", "application/x-protobuf")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class TooLarge(HTTPException):
    """The error for a request body above the size limit. `head` is the beginning of the body."""

    def __init__(self, limit: int, head: bytes) -> None:
        super().__init__(413, f"the body has more than {limit:,} bytes")
        self.head = head


def local_names(address: str) -> frozenset[str]:
    """Return the host names that clients may use for a server on the loopback `address`."""
    return frozenset({"localhost", "127.0.0.1", "[::1]", address, f"[{address}]"})


class Front:
    """A middleware that checks each request before the application gets it. All paths require
    `token` (if it is not None), except `OPEN` and the paths below `OPEN_BELOW`. `names` are the
    accepted host names; None accepts any name."""

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
            return _refused(
                403, f"the Host header is {host!r}: this engine only serves its own machine"
            )
        if "origin" in headers:
            return _refused(403, "this engine does not serve pages in a browser")
        is_open = scope["path"] == OPEN or scope["path"].startswith(OPEN_BELOW)
        if not is_open and not self._allowed(headers):
            return _refused(
                401,
                "this engine requires its token as the API key: run `sweeper engine env` on its "
                "machine",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        if scope["method"] in _WITH_BODY and not empty and kind not in _TYPES:
            return _refused(
                415, f"the content type must be one of {', '.join(_TYPES)}, not {kind or 'missing'}"
            )
        return None

    def _allowed(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        key = headers.get("x-api-key") or bearer
        return hmac.compare_digest(key.encode(), self._token.encode())


def _refused(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


def _bounded(receive: Receive, limit: int) -> Receive:
    """Wrap `receive` so that it raises `TooLarge` for a body of more than `limit` bytes."""
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


_NO_PROJECTS = "there are no projects on this engine"
_NO_ACCOUNTS = "there are no accounts on this engine, only its token"

REFUSED: list[tuple[str, str, str]] = [
    ("POST", "copy_weights", f"{_NO_PROJECTS} to copy weights to"),
    ("PUT", "sessions/{session}/project", _NO_PROJECTS),
    ("GET", "sessions/{session}/trace_export", "this engine records no traces"),
    ("GET", "audit", "this engine keeps no audit log"),
    ("POST", "create_custom_loss", "custom losses run in the client with this engine"),
    ("POST", "retrieve_futures", "fetch one result at a time with retrieve_future"),
    ("POST", "auth/token", _NO_ACCOUNTS),
    ("GET", "auth/apikey/me", _NO_ACCOUNTS),
    ("DELETE", "auth/apikey/me", _NO_ACCOUNTS),
    (
        "GET",
        "training_runs/{run}/checkpoints/{checkpoint:path}/archive",
        "there are no archives on this engine: use save_weights_external, then the addresses of "
        "the files",
    ),
]
"""The HTTP method, the path below /api/v1/, and the message for each unsupported request."""


PREFIX = "/api/v1/"
POLL_SECONDS = 20.0  # a client repeats the request after 45 s by itself
PAUSED_SECONDS = 1.0  # paused requests are answered sooner, to report the pause
# Limits apply to requests for work, and to fetching their results.
_WORK = frozenset({
    "create_model", "load_weights", "forward_backward", "optim_step", "save_weights",
    "save_weights_for_sampler", "save_weights_external", "create_sampling_session", "asample",
})  # fmt: skip
_CAN_FAIL = _WORK | {"retrieve_future"}
_CLIENT_CONFIG: Body = {
    "pjwt_auth_enabled": False,
    "proto_compress_fwdbwd": False,
    "parallel_fwdbwd_chunks": True,
}
_DYNAMIC_CONFIG: Body = {"sample_cancel_enabled": True}

Handler = Callable[[Request], Awaitable[Response]]


def _nonfinite_as_text(value: object) -> object:
    """Replace NaN and infinities, which JSON does not have, with strings. The SDK converts the
    strings back to numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _nonfinite_as_text(item) for key, item in cast(Body, value).items()}
    if isinstance(value, list):
        return [_nonfinite_as_text(item) for item in cast(list[object], value)]
    return value


def _json(document: object, status: int = 200) -> Response:
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a metric of a diverged run
        text = json.dumps(_nonfinite_as_text(document), separators=(",", ":"), allow_nan=False)
    return Response(text.encode(), status, media_type="application/json")


def _reply(reply: Reply) -> Response:
    if isinstance(reply.body, bytes):
        return Response(reply.body, media_type="application/x-protobuf")
    return _json(reply.body)


def _busy(error: Busy) -> Response:
    response = _json({"detail": str(error)}, 429)
    # Send the time in milliseconds too, because otherwise the SDK waits for a whole second.
    response.headers["retry-after-ms"] = str(max(1, round(1000 * error.seconds)))
    response.headers["retry-after"] = f"{error.seconds:.3f}"
    return response


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("application/json")


async def _body(request: Request) -> Body:
    raw = await request.body()
    if raw and not _is_json(request):
        raise RequestError(f"{request.url.path} needs a JSON body")
    try:
        body: object = json.loads(raw) if raw else {}
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]  # a JSON object has string keys


def _posted(function: Callable[[Body], Body]) -> Handler:
    async def handler(request: Request) -> Response:
        return _json(function(await _body(request)))

    return handler


def _constant(document: Body) -> Handler:
    async def handler(_request: Request) -> Response:
        return _json(document)

    return handler


def _try_again(name: str, paused: Paused | None) -> Response:
    again: Body = {"type": "try_again", "request_id": name, "queue_state": "active"}
    if paused is not None:
        again |= {"queue_state": paused.state, "queue_state_reason": paused.reason}
    return _json(again, 408)


class _Api:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._bucket = Bucket(service.limits.rate_limit)
        self._failures = Failures(service.limits.fail_rate, service.limits.seed)

    def guard(self, name: str, handler: Handler) -> Handler:
        """Wrap `handler` so that its exceptions become responses. If `name` is a path with
        simulated limits, some requests get a 500 or a 429, and `handler` is not called."""

        async def guarded(request: Request) -> Response:
            if name in _CAN_FAIL and self._failures.next():
                self._service.meter.add(None, failed=1)
                return _json({"detail": "a simulated failure (--fail-rate)"}, 500)
            if name in _WORK and (seconds := self._bucket.take()):
                self._service.meter.add(None, refused=1)
                return _busy(Busy("too many requests (--rate-limit)", seconds))
            return await self._answer(request, handler)

        return guarded

    async def _answer(self, request: Request, handler: Handler) -> Response:
        try:
            return await handler(request)
        except Busy as error:  # the client retries with the same number
            return _busy(error)
        except Unknown as error:
            return await self._reject(request, str(error), 404)
        except RequestError as error:
            return await self._reject(request, str(error), 400)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            message = f"malformed request: {type(error).__name__}: {error}"
            return await self._reject(request, message, 400)

    async def _reject(self, request: Request, message: str, status: int) -> Response:
        try:
            start = await request.body()
        except TooLarge as error:
            start = error.head
        return self._reject_with(request, start, message, status)

    def _reject_with(self, request: Request, start: bytes, message: str, status: int) -> Response:
        """Reject a request whose body begins with `start`. If the body has a sequence number,
        requests with higher numbers no longer wait for this request."""
        self._service.refuse((json_head if _is_json(request) else protobuf_head)(start), message)
        return _json({"detail": message}, status)

    async def missing(self, request: Request, _error: Exception) -> Response:
        """Respond to a request with an unknown path or method."""
        message = f"this engine has no {request.method} {request.url.path}"
        return await self._reject(request, message, 404)

    def too_large(self, request: Request, error: Exception) -> Response:
        """Respond to a request whose body is too large."""
        message = getattr(error, "detail", "the body is too large")
        start = error.head if isinstance(error, TooLarge) else b""
        return self._reject_with(request, start, message, 413)

    def refused(self, message: str) -> Handler:
        """Return a handler that rejects a request with `message`."""

        async def handler(request: Request) -> Response:
            return await self._reject(request, message, 400)

        return handler

    def listed(self, function: listing.Handler) -> Handler:
        """Return a handler that calls `function` in a thread, because `function` reads
        directories."""

        async def handler(request: Request) -> Response:
            path, query = request.path_params, request.query_params
            return _json(await asyncio.to_thread(function, self._service, path, query))

        return handler

    def posted_listed(self, function: listing.PostHandler) -> Handler:
        """Return a handler that calls `function` with the request's body, in a thread."""

        async def handler(request: Request) -> Response:
            body = await _body(request)
            answer = await asyncio.to_thread(function, self._service, request.path_params, body)
            return _json(answer)

        return handler

    async def retrieve(self, request: Request) -> Response:
        """Respond with the result of a queued request. If there is no result after `POLL_SECONDS`
        (`PAUSED_SECONDS` if a limit makes the request wait), tell the client to try again."""
        service = self._service
        name = (await _body(request))["request_id"]
        future = service.promises.get(name)
        if future is None:
            return _json({"detail": f"there is no result for {name}, or it was dropped"}, 410)
        due = service.promises.since(name) + service.limits.latency
        paused = service.promises.paused(name)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(future))
            reply = await asyncio.wait_for(waiting, PAUSED_SECONDS if paused else POLL_SECONDS)
        except TimeoutError:
            return _try_again(name, service.promises.paused(name))
        except (CancelledError, asyncio.CancelledError):
            if not future.cancelled():
                raise  # this handler was cancelled: the server is stopping
            return _json({"error": "the request was cancelled", "category": "user"})
        if (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        service.promises.fetched(name)
        service.sweep()
        return _reply(reply)

    async def forward_backward(self, request: Request) -> Response:
        """Queue a forward pass, with or without a backward pass."""
        if "protobuf" not in request.headers.get("content-type", ""):
            raise RequestError("forward_backward needs protobuf: use the tinker SDK 0.38")
        if request.headers.get("content-encoding"):
            raise RequestError("this engine does not support compressed requests")
        return _json(self._service.forward_backward(await request.body()))

    async def create_sampling_session(self, request: Request) -> Response:
        """Create a sampler, and wait until it exists."""
        future = self._service.create_sampling_session(await _body(request))
        reply = await asyncio.shield(asyncio.wrap_future(future))
        if isinstance(reply.body, dict) and "error" in reply.body:
            return _json({"detail": reply.body["error"]}, 404)
        await asyncio.sleep(self._service.limits.latency)
        return _reply(reply)

    async def sample(self, request: Request) -> Response:
        """Queue a request for samples."""
        # A client that sends this header waits and retries by itself.
        may_refuse = request.headers.get("x-tinker-sampling-backpressure") == "1"
        try:
            return _json(self._service.sample(await _body(request), may_refuse=may_refuse))
        except Busy:
            self._service.meter.add(None, refused=1)
            raise

    async def finish_session(self, request: Request) -> Response:
        """End a session."""
        session = request.path_params["session"]
        return _json(self._service.finish_session(session, await _body(request)))

    async def external_addresses(self, request: Request) -> Response:
        """Respond with download URLs for a checkpoint's files. The URLs have the host name that the
        client used for this request."""
        base = f"{str(request.base_url).rstrip('/')}{PREFIX}files/"
        addresses = await asyncio.to_thread(
            listing.external_addresses, self._service, request.path_params, base
        )
        return _json(addresses)

    async def file(self, request: Request) -> Response:
        """Respond with one file of a checkpoint."""
        vault, name = self._service.vault, request.path_params["file"]
        place = self._service.tickets.place(request.path_params["ticket"])
        data = await asyncio.to_thread(lambda: exports.contents(vault.load(place), name))
        return Response(data, media_type="application/octet-stream")


def _health(identity: Body, token: str | None) -> Handler:
    async def handler(request: Request) -> Response:
        challenge = request.query_params.get("challenge")
        proof = {"proof": access_token.proof(token, challenge)} if token and challenge else {}
        return _json({"status": "ok", **identity, **proof})

    return handler


def build(
    service: Service, identity: Body, token: str | None = None, address: str | None = None
) -> ASGIApp:
    """Return the engine's ASGI application. `identity` is part of the response to `healthz`. All
    requests require `token` (if it is not None), except `healthz` and downloads. If `address` is
    set to the loopback address where the engine listens, only host names of this machine are
    accepted."""
    api = _Api(service)
    posted: dict[str, Handler] = {
        name: _posted(function)
        for name, function in {
            "create_session": service.create_session,
            "session_heartbeat": service.heartbeat,
            "create_model": service.create_model,
            "get_info": service.get_info,
            "optim_step": service.optim_step,
            "save_weights": service.save_weights,
            "save_weights_for_sampler": service.save_weights_for_sampler,
            "save_weights_external": service.save_weights_external,
            "load_weights": service.load_weights,
            "join_sampling_session": service.join_sampling_session,
            "unload_model": service.unload_model,
            "cancel_future": service.cancel,
        }.items()
    }
    posted |= {
        "client/config": _constant(_CLIENT_CONFIG),
        "client/dynamic_config": _constant(_DYNAMIC_CONFIG),
        "telemetry": _constant({"status": "accepted"}),
        "forward_backward": api.forward_backward,
        "asample": api.sample,
        "retrieve_future": api.retrieve,
        "create_sampling_session": api.create_sampling_session,
        "sessions/{session}/finish": api.finish_session,
        "weights_info": api.posted_listed(listing.weights_info),
        "sessions/search": api.posted_listed(listing.search_sessions),
    }
    handlers = [("POST", name, handler) for name, handler in posted.items()]
    handlers.append(("GET", OPEN.removeprefix(PREFIX), _health(identity, token)))
    checkpoint = listing.CHECKPOINT
    handlers += [
        ("PUT", f"{checkpoint}/ttl", api.posted_listed(listing.expire)),
        ("GET", f"{checkpoint}/external_weights_urls", api.external_addresses),
        ("GET", "files/{ticket}/{file}", api.file),
    ]
    handlers += [(m, path, api.refused(message)) for m, path, message in REFUSED]
    handlers += [(m, path, api.listed(function)) for m, path, function in listing.ROUTES]
    routes = [Route(PREFIX + path, api.guard(path, h), methods=[m]) for m, path, h in handlers]
    handled = {404: api.missing, 405: api.missing, 413: api.too_large}
    inner = Starlette(routes=routes, exception_handlers=handled)
    return Front(inner, token, None if address is None else local_names(address))
