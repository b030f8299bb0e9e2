"""Queries the Tinker service, or the engine, about models, billing and checkpoints. Uses the REST
interface, not the SDK, which retries for minutes while a user waits."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode, urlsplit

from sweeper.common.json_values import is_table, table_of
from sweeper.errors import EnvironmentFailure, NotFound, UsageError

if TYPE_CHECKING:
    from sweeper.results.sweeps import Sweep

_SECONDS = 60.0
_LARGEST = 200_000_000
_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The SDK's default address."""


class Service(NamedTuple):
    """The address and the key of a service."""

    url: str
    key: str

    def ask(
        self,
        path: str,
        subject: str,
        *,
        method: str = "GET",
        body: dict[str, object] | None = None,
        seconds: float | None = None,
        **query: str,
    ) -> dict[str, object]:
        """Send a request and return the answer. `subject` names the requested resource in messages.
        Raises `NotFound` if the resource does not exist, `EnvironmentFailure` if the service
        refuses or does not answer."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import ProxyHandler, Request, build_opener

        address = f"{self.url.rstrip('/')}/api/v1/{path}" + (
            f"?{urlencode(query)}" if query else ""
        )
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": self.key, "Content-Type": "application/json"}
        request = Request(address, data, headers, method=method)  # noqa: S310 - by `hosted`, or ours
        here = urlsplit(self.url).hostname in ("127.0.0.1", "::1", "localhost")
        opener = build_opener(*([ProxyHandler({})] if here else []))
        try:
            with opener.open(request, timeout=seconds or _SECONDS) as answer:
                document: object = json.loads(answer.read(_LARGEST) or b"{}")
        except HTTPError as error:
            raise self._refusal(error.code, subject, _detail(error.read(_LARGEST))) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise EnvironmentFailure(f"{self.url} does not answer: {reason}") from error
        except ValueError:
            document = None
        if not is_table(document):
            raise EnvironmentFailure(f"{self.url}: the answer about {subject} is not a JSON object")
        return document

    def _refusal(self, status: int, subject: str, detail: str) -> Exception:
        if status == 403:
            return EnvironmentFailure(
                f"{self.url} does not show its {subject} to this key (403): your role in the "
                "organization may lack the permission"
            )
        if status == 401:
            return EnvironmentFailure(f"{self.url} rejects this key (401)")
        if status == 404:
            return NotFound(f"{self.url} has no such {subject}: {detail}")
        return EnvironmentFailure(f"{self.url} refuses the {subject} request ({status}): {detail}")


def hosted(environ: Mapping[str, str] = os.environ) -> Service:
    """Return the hosted service that the environment variables describe. Raises
    `EnvironmentFailure` if the key is missing or the address is invalid."""
    url, key = environ.get("TINKER_BASE_URL") or _URL, environ.get("TINKER_API_KEY")
    if not key:
        raise EnvironmentFailure("TINKER_API_KEY is not set: `export TINKER_API_KEY=...`")
    if urlsplit(url).scheme not in ("http", "https"):
        raise EnvironmentFailure(f"TINKER_BASE_URL is {url}: it must begin with https://")
    return Service(url, key)


def of_sweeps(sweeps: "Sequence[Sweep]") -> Service:
    """Return the service that the runs of `sweeps` use. Raises `UsageError` if the sweeps use
    several services or none, and `EnvironmentFailure` if there is no API key or no running
    engine."""
    names = sorted({sweep.plan.service for sweep in sweeps})
    if len(names) > 1:
        raise UsageError(
            f"these sweeps use different services ({', '.join(names)}): name sweeps of one service"
        )
    return of_service("".join(names))


def of_service(name: str, environ: Mapping[str, str] = os.environ) -> Service:
    """Return the service called `name`: `tinker` or `local`. Raises `UsageError` for any other
    name, and `EnvironmentFailure` if there is no API key or no running engine."""
    if name == "tinker":
        return hosted(environ)
    if name != "local":
        raise UsageError(
            "this works only for runs with `service: tinker` or `service: local`; these runs have "
            f"`service: {name or 'none'}`"
        )
    from sweeper.engine import lifecycle

    engine = lifecycle.find()
    if engine is None:
        raise EnvironmentFailure("no engine is running: start one with `sweeper engine start`")
    return Service(engine.url, lifecycle.client_key(engine.home))


def _detail(data: bytes) -> str:
    detail: object = None
    with suppress(ValueError):
        detail = table_of(json.loads(data)).get("detail")
    return " ".join(str(detail or data[:200].decode("utf-8", "replace")).split())[:200]
