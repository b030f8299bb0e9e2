"""Calls the API server with the official client, which finds the address and the credentials.
Objects are plain mappings. Errors become one-line messages."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from sweeper.backends.container_jobs import line_of
from sweeper.backends.kubernetes.objects import Job, Page, Pod
from sweeper.common.backoff import delays, retried, spread
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.paths import add_extra

T = TypeVar("T")


class Kind(NamedTuple, Generic[T]):
    """A kind of API objects. `path` is the API path that lists them; `{}` stands for the
    namespace."""

    path: str


JOBS = Kind[Job]("/apis/batch/v1/namespaces/{}/jobs")
PODS = Kind[Pod]("/api/v1/namespaces/{}/pods")
KUEUES = ("v1beta2", "v1beta1")
"""Versions of Kueue's objects, newest first."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Content type of answers without an object's content, used where the content must not be read."""
_JSON = "application/json"
_TRIES = 4
_MOST_SECONDS = 8.0
_PAGE = 500
_EXPIRED, _NOT_NOW = 401, (408, 425, 429, 500, 502, 503, 504)
_SECONDS = 5.0, 30.0
"""Timeouts in seconds: to connect, and between two bytes of an answer."""


class Refused(Unreachable):
    """The server refused a request. `status` is the HTTP status, and `reason` is Kubernetes' word
    for the cause, such as AlreadyExists."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    def settled(self) -> EnvironmentFailure:
        """Return the exception for a failed creation: the refusal itself if a later try may succeed
        (with renewed credentials, or when the quota has room), otherwise a permanent
        `EnvironmentFailure`."""
        passing = self.status == _EXPIRED or "exceeded quota" in str(self)
        return self if passing else EnvironmentFailure(str(self))


class _Configuration(Protocol):
    host: str


class _Response(Protocol):
    """A response whose content has not been read yet."""

    headers: Mapping[str, str]

    def read(self, *, decode_content: bool) -> bytes: ...


class _Request(TypedDict):
    """The keyword arguments of `call_api`. Timeouts are in seconds."""

    query_params: list[tuple[str, object]]
    header_params: dict[str, str]
    body: object
    auth_settings: list[str]
    _preload_content: bool
    _request_timeout: tuple[float, float]


class _Client(Protocol):
    """The methods of the official client that sweeper uses. The client itself declares no types."""

    configuration: _Configuration

    def call_api(
        self, resource_path: str, method: str, **request: Unpack[_Request]
    ) -> _Response: ...


class Cluster:
    """A connection to the API server, for one namespace. The connection uses the context `context`
    of the kubeconfig (None: the current context). Without `context` and without a usable
    kubeconfig, the connection uses the service account of this process's pod. Raises
    `EnvironmentFailure` if no cluster is found. `sleep` waits between tries."""

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._ahead = 0.0
        self._client, default_namespace = _client(context)
        self.host = self._client.configuration.host
        self.namespace = namespace or default_namespace

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        accept: str = _JSON,
        **query: object,
    ) -> dict[str, object]:
        """Send a request and return the answer, a JSON object. `{}` in `path` stands for the
        namespace. The request is repeated after temporary failures, so repeating it must be
        harmless. Raises `Unreachable` or a subclass."""
        return json.loads(self._answered(method, path, body, accept, query))

    def get(self, kind: Kind[T], name: str) -> T:
        return json.loads(self._answered("GET", f"{kind.path}/{name}", None, _JSON, {}))

    def text(self, path: str, **query: object) -> str:
        """Return an answer that is not JSON. Raises `Unreachable` or a subclass."""
        return self._answered("GET", path, None, "*/*", query).decode(errors="replace")

    def items(self, kind: Kind[T], **query: object) -> Iterator[T]:
        """Return the items of all pages of a listing. If the server no longer knows the listing
        when the next page is requested, request the first page again."""
        pages: list[list[T]] = []
        again = ""
        while True:
            more = {"limit": _PAGE, **query, **({"continue": again} if again else {})}
            try:
                data = self._answered("GET", kind.path, None, _JSON, more)
            except Refused as error:
                if error.status != 410 or not again:
                    raise
                pages, again = [], ""
                continue
            page: Page[T] = json.loads(data)
            pages.append(page["items"])
            again = page["metadata"].get("continue", "")
            if not again:
                return (item for page in pages for item in page)

    def now(self) -> float:
        """Return the time by the server's clock, in seconds since 1970."""
        return time.time() + self._ahead

    def _answered(
        self, method: str, path: str, body: object, accept: str, query: Mapping[str, object]
    ) -> bytes:
        def ask() -> bytes:
            answer = self._client.call_api(
                path.format(self.namespace),
                method,
                query_params=list(query.items()),
                header_params={"Accept": accept, "Content-Type": _JSON},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=_SECONDS,
            )
            data = answer.read(decode_content=True)
            if date := answer.headers.get("Date"):
                self._ahead = parsedate_to_datetime(date).timestamp() - time.time()
            return data

        try:
            return retried(
                ask,
                spread(delays(0.25, _MOST_SECONDS, times=_TRIES - 1)),
                lambda error: _status(error) in _NOT_NOW,
                at_least=_retry_after_s,
                sleep=self._sleep,
            )
        except Exception as error:
            raise _unreachable(error, self.host) from error


def _status(error: Exception) -> int:
    """Return the HTTP status of an error; 0 if there was no answer."""
    return int(getattr(error, "status", None) or 0)


def _retry_after_s(error: Exception) -> float:
    """Return the number of seconds that the server wants sweeper to wait (at most 8), multiplied by
    a random number from 1 to 2. Return 0 if the server gives no number."""
    headers: Mapping[str, str] = getattr(error, "headers", None) or {}
    seconds = headers.get("Retry-After", "")
    return next(spread([min(_MOST_SECONDS, float(seconds)) * 2])) if seconds.isdecimal() else 0.0


def _client(context: str | None) -> tuple[_Client, str]:
    """Return the official client, and the namespace from the client's configuration."""
    try:
        config = import_module("kubernetes.config")
        client = import_module("kubernetes.client")
    except ImportError as error:
        raise EnvironmentFailure(
            f"kubernetes: the Python client is not installed: run `{add_extra('kubernetes')}`"
        ) from error
    configuration = client.Configuration()
    configuration.retries = False  # This module decides which requests to repeat.
    # Read the variable now, since the client has read it only when it was imported.
    file = os.environ.get("KUBECONFIG") or None
    try:
        config.load_kube_config(file, context=context, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts(file)
        chosen = next((c for c in contexts if c["name"] == context), current)
        namespace = chosen["context"].get("namespace") or "default"
    except Exception as error:  # noqa: BLE001 - errors of YAML, files and the client
        try:
            if context is not None:
                raise
            config.load_incluster_config(client_configuration=configuration)
            with open(_ACCOUNT, encoding="utf-8") as account:
                namespace = account.read().strip()
        except Exception:  # noqa: BLE001
            raise EnvironmentFailure(
                f"kubernetes: no cluster ({line_of(error)}): see KUBECONFIG, "
                "launch.kubernetes.context and `kubectl config get-contexts`"
            ) from error
    return client.ApiClient(configuration), namespace


_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def _unreachable(error: Exception, host: str) -> Unreachable:
    """Convert an error of the client to an exception with a one-line message."""
    status = _status(error)
    if not status:
        return Unreachable(f"kubernetes: {host} does not answer: {line_of(error)}")
    try:
        answer = json.loads(getattr(error, "body", None) or "")
        message, reason = str(answer["message"]), str(answer.get("reason", ""))
    except (ValueError, KeyError, TypeError):  # The body may come from a proxy.
        message, reason = str(getattr(error, "reason", "")), ""
    if status == _EXPIRED:
        advice = (
            "the credentials have expired or are not valid: log in again; running jobs continue"
        )
        return Refused(f"kubernetes: {advice} ({line_of(message)})", status, reason)
    if status in _NOT_NOW:
        return Unreachable(f"kubernetes: the API server: {status}: {line_of(message)}")
    return Refused(f"kubernetes: {line_of(message)}", status, reason)
