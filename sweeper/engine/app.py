"""The engine's requests over HTTP, as the SDK of `tinker` 0.38 makes them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sweeper.engine import listing
from sweeper.engine.errors import RequestError, Unknown
from sweeper.engine.scheduler import Reply
from sweeper.engine.service import Body, Service

__all__ = ["build"]

PREFIX = "/api/v1/"
POLL_SECONDS = 20.0  # a client waits for 45 s before it asks again by itself
_CLIENT_CONFIG: Body = {
    "pjwt_auth_enabled": False,
    "proto_compress_fwdbwd": False,
    "parallel_fwdbwd_chunks": True,
}
_DYNAMIC_CONFIG: Body = {"sample_cancel_enabled": True}

Handler = Callable[[Request], Awaitable[Response]]


def _json(document: object, status: int = 200) -> Response:
    # unlike Starlette's JSONResponse, lets NaN through: the SDK reads it, and a metric may be one
    body = json.dumps(document, separators=(",", ":")).encode()
    return Response(body, status, media_type="application/json")


def _reply(reply: Reply) -> Response:
    if isinstance(reply.body, bytes):
        return Response(reply.body, media_type="application/x-protobuf")
    return _json(reply.body)


def _guarded(handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Unknown as error:
            return _json({"detail": str(error)}, 404)
        except RequestError as error:
            return _json({"detail": str(error)}, 400)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return _json({"detail": f"malformed request: {type(error).__name__}: {error}"}, 400)

    return guarded


async def _body(request: Request) -> Body:
    raw = await request.body()
    body: Any = json.loads(raw) if raw else {}
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


def _retrieve(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        name = (await _body(request))["request_id"]
        future = service.promises.get(name)
        if future is None:
            return _json({"detail": f"there is no answer for {name}, or none any more"}, 410)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(future))
            reply = await asyncio.wait_for(waiting, POLL_SECONDS)
        except TimeoutError:
            again = {"type": "try_again", "request_id": name, "queue_state": "active"}
            return _json(again, 408)
        except (CancelledError, asyncio.CancelledError):
            if not future.cancelled():
                raise  # this handler was cancelled: the server is going down
            return _json({"error": "the request was cancelled", "category": "user"})
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
        return _reply(reply)

    return handler


def _finish(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        return _json(service.finish_session(request.path_params["session"]))

    return handler


def _weights_info(service: Service) -> Handler:
    async def handler(request: Request) -> Response:
        body = await _body(request)
        return _json(await asyncio.to_thread(listing.weights_info, service, body, {}))

    return handler


def _missing(request: Request, _error: Exception) -> Response:
    return _json({"detail": f"this engine has no {request.method} {request.url.path}"}, 404)


def build(service: Service, identity: Body) -> Starlette:
    """The application. `identity` is what `healthz` answers besides that all is well."""
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
            "load_weights": service.load_weights,
            "unload_model": service.unload_model,
            "asample": service.sample,
            "cancel_future": service.cancel,
        }.items()
    }
    posted |= {
        "client/config": _constant(_CLIENT_CONFIG),
        "client/dynamic_config": _constant(_DYNAMIC_CONFIG),
        "telemetry": _constant({"status": "accepted"}),
        "forward_backward": _forward_backward(service),
        "retrieve_future": _retrieve(service),
        "create_sampling_session": _sampling_session(service),
        "sessions/{session}/finish": _finish(service),
        "weights_info": _weights_info(service),
    }
    handlers = [("POST", name, handler) for name, handler in posted.items()]
    handlers.append(("GET", "healthz", _constant({"status": "ok", **identity})))
    handlers += [(m, path, _listed(service, function)) for m, path, function in listing.ROUTES]
    routes = [Route(PREFIX + path, _guarded(h), methods=[m]) for m, path, h in handlers]
    return Starlette(routes=routes, exception_handlers={404: _missing})
