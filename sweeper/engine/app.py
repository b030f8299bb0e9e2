"""The engine's requests over HTTP, as the SDK of `tinker` 0.38 makes them."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sweeper.engine import exports, keys, listing, searching
from sweeper.engine.errors import Busy, RequestError, Unknown
from sweeper.engine.front import OPEN, Front, TooLarge, local_names
from sweeper.engine.limits import Bucket, Failures, Paused
from sweeper.engine.refusals import REFUSED
from sweeper.engine.scheduler import Reply
from sweeper.engine.service import Body, Service
from sweeper.engine.wire import head_of, json_head

__all__ = ["build"]

PREFIX = "/api/v1/"
POLL_SECONDS = 20.0  # a client waits for 45 s before it asks again by itself
PAUSED_SECONDS = 1.0  # one that is paused is told so
# What the limits are about: requests for work, and the answers to them.
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


def _spelled(value: object) -> object:
    """NaN and infinities as the strings that the SDK's models read as numbers: JSON has none, and
    its parser refuses the bare words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in cast(Body, value).items()}
    if isinstance(value, list):
        return [_spelled(item) for item in cast(list[object], value)]
    return value


def _json(document: object, status: int = 200) -> Response:
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a metric of a run that diverges
        text = json.dumps(_spelled(document), separators=(",", ":"), allow_nan=False)
    return Response(text.encode(), status, media_type="application/json")


def _reply(reply: Reply) -> Response:
    if isinstance(reply.body, bytes):
        return Response(reply.body, media_type="application/x-protobuf")
    return _json(reply.body)


def _busy(error: Busy) -> Response:
    response = _json({"detail": str(error)}, 429)
    # milliseconds: the SDK takes both, and would wait for a whole second otherwise
    response.headers["retry-after-ms"] = str(max(1, round(1000 * error.seconds)))
    response.headers["retry-after"] = f"{error.seconds:.3f}"
    return response


class _Rehearsal:
    """What a request has to pass where limits were asked for: failures, the rate."""

    def __init__(self, service: Service) -> None:
        limits = service.limits
        self._service = service
        self._bucket = Bucket(limits.rate_limit)
        self._failures = Failures(limits.fail_rate, limits.seed)

    def guard(self, name: str, handler: Handler) -> Handler:
        """The handler behind all that stands before it."""
        inner = _guarded(self._service, handler)

        async def guarded(request: Request) -> Response:
            if name in _CAN_FAIL and self._failures.next():
                self._service.meter.add(None, failed=1)
                return _json({"detail": "a failure that --fail-rate asked for"}, 500)
            if name in _WORK and (seconds := self._bucket.take()):
                self._service.meter.add(None, refused=1)
                return _busy(Busy("too many requests: --rate-limit", seconds))
            return await inner(request)

        return guarded


def _guarded(service: Service, handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Busy as error:  # the client comes again, with the same number
            return _busy(error)
        except Unknown as error:
            return await _turned_away(service, request, str(error), 404)
        except RequestError as error:
            return await _turned_away(service, request, str(error), 400)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            message = f"malformed request: {type(error).__name__}: {error}"
            return await _turned_away(service, request, message, 400)

    return guarded


async def _turned_away(service: Service, request: Request, message: str, status: int) -> Response:
    """The answer to a request that nothing will be done for."""
    try:
        said = await request.body()
    except TooLarge as error:
        said = error.head
    return _freed(service, request, said, message, status)


def _freed(service: Service, request: Request, said: bytes, message: str, status: int) -> Response:
    """The same to one that begins with `said`. If it has a number, in JSON or in protobuf, the
    number is freed: the SDK counts it, and the requests that follow would wait for it."""
    service.refuse((json_head if _is_json(request) else head_of)(said), message)
    return _json({"detail": message}, status)


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("application/json")


async def _body(request: Request) -> Body:
    raw = await request.body()
    if raw and not _is_json(request):
        raise RequestError(f"{request.url.path} takes JSON")
    try:
        body: object = json.loads(raw) if raw else {}
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is no JSON: {error}") from None
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


def _listed(service: Service, function: listing.Handler) -> Handler:
    async def handler(request: Request) -> Response:
        # these read directories: not in the loop that everybody waits for
        body = await asyncio.to_thread(function, service, request.path_params, request.query_params)
        return _json(body)

    return handler


def _try_again(name: str, paused: Paused | None) -> Response:
    again: Body = {"type": "try_again", "request_id": name, "queue_state": "active"}
    if paused is not None:
        again |= {"queue_state": paused.state, "queue_state_reason": paused.reason}
    return _json(again, 408)


def _retrieve(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        name = (await _body(request))["request_id"]
        future = service.promises.get(name)
        if future is None:
            return _json({"detail": f"there is no answer for {name}, or none any more"}, 410)
        due = service.promises.since(name) + service.limits.latency
        paused = service.promises.paused(name)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(future))
            reply = await asyncio.wait_for(waiting, PAUSED_SECONDS if paused else POLL_SECONDS)
        except TimeoutError:
            return _try_again(name, service.promises.paused(name))
        except (CancelledError, asyncio.CancelledError):
            if not future.cancelled():
                raise  # this handler was cancelled: the server is going down
            return _json({"error": "the request was cancelled", "category": "user"})
        if (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        service.promises.fetched(name)
        service.sweep()
        return _reply(reply)

    return handler


def _forward_backward(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        if "protobuf" not in request.headers.get("content-type", ""):
            raise RequestError("forward_backward takes protobuf: use the tinker SDK 0.38")
        if request.headers.get("content-encoding"):
            raise RequestError("this engine takes uncompressed requests only")
        return _json(service.forward_backward(await request.body()))

    return handler


def _sampling_session(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        future = service.create_sampling_session(await _body(request))
        reply = await asyncio.shield(asyncio.wrap_future(future))
        if isinstance(reply.body, dict) and "error" in reply.body:
            return _json({"detail": reply.body["error"]}, 404)
        await asyncio.sleep(service.limits.latency)
        return _reply(reply)

    return handler


def _sample(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        # this header says that the client waits by itself when it is turned away
        may_refuse = request.headers.get("x-tinker-sampling-backpressure") == "1"
        try:
            return _json(service.sample(await _body(request), may_refuse=may_refuse))
        except Busy:
            service.meter.add(None, refused=1)
            raise

    return handler


def _finish(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        return _json(service.finish_session(request.path_params["session"], await _body(request)))

    return handler


def _weights_info(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        body = await _body(request)
        return _json(await asyncio.to_thread(listing.weights_info, service, body, {}))

    return handler


def _publish(service: Service, *, public: bool) -> Handler:
    async def handler(request: Request) -> Response:
        place = listing.place_of(request.path_params)
        await asyncio.to_thread(service.vault.publish, place, public=public)
        return _json({})

    return handler


def _external_addresses(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        base = f"{str(request.base_url).rstrip('/')}{PREFIX}files/"
        found = await asyncio.to_thread(
            listing.external_addresses, service, request.path_params, base
        )
        return _json(found)

    return handler


def _file(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        place = service.tickets.place(request.path_params["ticket"])
        name = request.path_params["file"]
        data = await asyncio.to_thread(lambda: exports.contents(service.vault.load(place), name))
        return Response(data, media_type="application/octet-stream")

    return handler


def _search(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        body = await _body(request)
        return _json(await asyncio.to_thread(searching.search_sessions, service, body))

    return handler


def _refused(service: Service, message: str) -> Handler:
    async def handler(request: Request) -> Response:
        return await _turned_away(service, request, message, 400)

    return handler


def _expire(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        body = await _body(request)
        await asyncio.to_thread(listing.expire, service, request.path_params, body)
        return _json({})

    return handler


def _missing(service: Service) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What an address or a method that is not there answers."""

    async def missing(request: Request, _error: Exception) -> Response:
        message = f"this engine has no {request.method} {request.url.path}"
        return await _turned_away(service, request, message, 404)

    return missing


def _too_large(service: Service) -> Callable[[Request, Exception], Response]:
    """What is answered to a body that is not read to its end."""

    def too_large(request: Request, error: Exception) -> Response:
        message = getattr(error, "detail", "the body is too large")
        said = error.head if isinstance(error, TooLarge) else b""
        return _freed(service, request, said, message, 413)

    return too_large


def _health(identity: Body, token: str | None) -> Handler:
    async def handler(request: Request) -> Response:
        challenge = request.query_params.get("challenge")
        proof = {"proof": keys.proof(token, challenge)} if token and challenge else {}
        return _json({"status": "ok", **identity, **proof})

    return handler


def build(
    service: Service, identity: Body, token: str | None = None, address: str | None = None
) -> ASGIApp:
    """The application. `identity` is what `healthz` answers besides that all is well; all else
    asks for the token, if there is one. `address` is that on loopback where it listens: then it
    answers to no other name of its host."""
    rehearsal = _Rehearsal(service)
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
        "forward_backward": _forward_backward(service),
        "asample": _sample(service),
        "retrieve_future": _retrieve(service),
        "create_sampling_session": _sampling_session(service),
        "sessions/{session}/finish": _finish(service),
        "weights_info": _weights_info(service),
        "sessions/search": _search(service),
    }
    handlers = [("POST", name, handler) for name, handler in posted.items()]
    handlers.append(("GET", OPEN.removeprefix(PREFIX), _health(identity, token)))
    checkpoint = "training_runs/{run}/checkpoints/{checkpoint:path}"
    handlers += [
        ("PUT", f"{checkpoint}/ttl", _expire(service)),
        ("POST", f"{checkpoint}/publish", _publish(service, public=True)),
        ("DELETE", f"{checkpoint}/publish", _publish(service, public=False)),
        ("GET", f"{checkpoint}/external_weights_urls", _external_addresses(service)),
        ("GET", "files/{ticket}/{file}", _file(service)),
    ]
    handlers += [(m, path, _refused(service, message)) for m, path, message in REFUSED]
    handlers += [(m, path, _listed(service, function)) for m, path, function in listing.ROUTES]
    guard = rehearsal.guard
    routes = [Route(PREFIX + path, guard(path, h), methods=[m]) for m, path, h in handlers]
    missing = _missing(service)
    handled = {404: missing, 405: missing, 413: _too_large(service)}
    inner = Starlette(routes=routes, exception_handlers=handled)
    return Front(inner, token, None if address is None else local_names(address))
