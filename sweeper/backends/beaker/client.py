"""Calls Beaker with its official client, and turns errors into one-line messages. gRPC calls go
to the client's stubs directly, with a timeout, since the client itself waits without limit."""

import functools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, overload, runtime_checkable

from sweeper.backends.container_jobs import line_of
from sweeper.common.backoff import Backoff, delays, retried
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.paths import add_extra

if TYPE_CHECKING:
    import beaker.beaker_pb2 as pb2
    from beaker import Beaker
    from google.protobuf.message import Message

    _Page = pb2.ListNodesResponse | pb2.ListWorkloadsResponse

_SECONDS = 20.0
_TRIES = 3
_AGAIN_SECONDS = 1.0, 15.0
"""Backoff after the service did not answer: first and longest wait."""
_ABREAST = 16
_PAGE = 50
_NOT_NOW = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "ABORTED", "CANCELLED")
_PASSING = ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED")
_HOLDERS = {"Budget": "organization_name", "Workspace": "owner_name", "Cluster": "owner_name"}
_HTTP = {
    **{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"},
    **{404: "NOT_FOUND", 409: "ALREADY_EXISTS", 429: "RESOURCE_EXHAUSTED"},
}


class _How(TypedDict):
    """The keyword arguments of every gRPC call."""

    timeout: float
    metadata: list[tuple[str, str]]


class _Streams(Protocol):
    """The streaming calls of the service. The client declares no types for them."""

    StreamJobLogs: Callable[..., "Iterator[pb2.JobLog]"]


class _Status(Protocol):
    name: str


@runtime_checkable
class _Ended(Protocol):
    """The error that a failed gRPC call raises."""

    def code(self) -> _Status: ...

    def details(self) -> object: ...


class Refused(Unreachable):
    """The service refused a request. `status` is the name of gRPC's status code."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status

    def settled(self) -> EnvironmentFailure:
        """Return the exception for a failed creation: this refusal if a later try may succeed
        (after new credentials or freed capacity), otherwise a permanent `EnvironmentFailure`."""
        return self if self.status in _PASSING else EnvironmentFailure(str(self))


class Service:
    """A connection to Beaker for one workspace, with the login from the user's configuration.
    Raises `EnvironmentFailure` if the client is not installed, or if a login or a workspace is
    missing."""

    def __init__(self, workspace: str | None = None) -> None:
        self._backoff = Backoff(*_AGAIN_SECONDS)
        self._new_client, self._messages, self._errors = _client()
        self._renewing = threading.Lock()
        self._client = self._new_client()
        self._config = self._client.config
        self.host = str(self._config.agent_address)
        name = workspace or self._config.default_workspace
        if not name:
            raise EnvironmentFailure(
                "beaker: no workspace is given: set launch.beaker.workspace, or `beaker "
                "config set default_workspace OWNER/NAME`"
            )
        self.workspace = str(name)

    @functools.cached_property
    def workspace_id(self) -> str:
        """The workspace's id. Raises `Refused` if the workspace does not exist."""
        return self.identity("Workspace", self.workspace)

    @functools.cached_property
    def organization(self) -> Mapping[str, str]:
        """The id of the workspace's organization, as `{"organization_id": id}`."""
        owner, slash, _ = self.workspace.partition("/")
        named = owner if slash else self._config.default_org or ""
        answer = self.ask("ResolveOrganizationName", organization_name=named)
        return {"organization_id": answer.organization_id}

    def identity(self, kind: str, name: str) -> str:
        """Return the id of the object called `name`. `kind` is its type in Beaker, such as
        Workspace or Image. A name without a slash is already an id. Raises `Refused` if there is no
        such object."""
        owner, slash, rest = name.partition("/")
        if not slash:
            return name
        key, holder = kind.lower(), _HOLDERS.get(kind, "author_name")
        answer = self.ask(f"Resolve{kind}Name", **{holder: owner, f"{key}_name": rest})
        return getattr(answer, f"{key}_id")

    @overload
    def ask(
        self, method: Literal["ResolveOrganizationName"], /, **fields: object
    ) -> "pb2.ResolveOrganizationNameResponse": ...

    @overload
    def ask(self, method: Literal["GetUser"], /) -> "pb2.GetUserResponse": ...

    @overload
    def ask(
        self, method: Literal["GetWorkspace"], /, **fields: object
    ) -> "pb2.GetWorkspaceResponse": ...

    @overload
    def ask(
        self, method: Literal["GetWorkspacePermissions"], /, **fields: object
    ) -> "pb2.GetWorkspacePermissionsResponse": ...

    @overload
    def ask(self, method: Literal["GetNode"], /, **fields: object) -> "pb2.GetNodeResponse": ...

    @overload
    def ask(
        self, method: Literal["ListNodes", "ListWorkloads"], /, **fields: object
    ) -> "_Page": ...

    @overload
    def ask(self, method: str, /, **fields: object) -> "Message": ...

    def ask(self, method: str, /, **fields: object) -> "Message":
        """Return the answer to a request. Raises `Unreachable` or `Refused`."""
        (answer,) = self.ask_each(method, [fields])
        return answer

    @overload
    def ask_each(
        self, method: Literal["ListJobs"], requests: Sequence[Mapping[str, object]]
    ) -> "Sequence[pb2.ListJobsResponse]": ...

    @overload
    def ask_each(
        self, method: str, requests: Sequence[Mapping[str, object]]
    ) -> "Sequence[Message]": ...

    def ask_each(
        self, method: str, requests: Sequence[Mapping[str, object]]
    ) -> "Sequence[Message]":
        """Return the answers to many requests, sent several at a time. All requests are sent again
        after a temporary failure, so repeating them must be harmless."""
        self._backoff.check()
        kind = getattr(self._messages, f"{method}Request")
        messages = [kind(**fields) for fields in requests]

        def ask() -> "Sequence[Message]":
            client = self._client
            try:
                return self._answers(client, method, messages)
            except self._errors as error:
                raise self._unreachable(*_of_grpc(error), client) from error

        def passes(error: Exception) -> bool:
            cause = error.__cause__
            late = isinstance(cause, Exception) and "DEADLINE" in _of_grpc(cause)[0]
            return isinstance(error, Unreachable) and not isinstance(error, Refused) and not late

        try:
            return retried(ask, delays(0.2, times=_TRIES - 1), passes)
        except Unreachable as failure:
            raise self._start_backoff(failure) from failure.__cause__

    @overload
    def pages(
        self, method: Literal["ListNodes"], /, **options: object
    ) -> "Iterator[pb2.ListNodesResponse]": ...

    @overload
    def pages(
        self, method: Literal["ListWorkloads"], /, **options: object
    ) -> "Iterator[pb2.ListWorkloadsResponse]": ...

    def pages(
        self, method: Literal["ListNodes", "ListWorkloads"], /, **options: object
    ) -> "Iterator[_Page]":
        """Yield the pages of a listing."""
        query: dict[str, object] = {"options": {**self.organization, "page_size": _PAGE, **options}}
        while query:
            answer = self.ask(method, **query)
            yield answer
            again = answer.next_page_token
            query = {"next_page_token": again} if again else {}

    def create(self, name: str, experiment: Mapping[str, object]) -> None:
        """Create an experiment. The request is never repeated. Raises `Unreachable`, or `Refused`
        with the status ALREADY_EXISTS if the name is taken."""
        self._backoff.check()
        path, data = f"workspaces/{self.workspace_id}/experiments", dict(experiment)
        client = self._client
        try:
            ask = client.experiment.http_request
            ask(path, "POST", {"name": name}, data, timeout=_SECONDS)
        except Exception as error:
            raise self._start_backoff(self._unreachable(*_of_http(error), client)) from error
        self._backoff.succeeded()

    def lines(self, job: str) -> Iterator[bytes]:
        """Yield a job's current output."""
        request, client = self._messages.StreamJobLogsRequest(job_id=job), self._client
        try:
            for log in _streams(client).StreamJobLogs(request, **self._how()):
                yield log.message
        except self._errors as error:
            raise self._unreachable(*_of_grpc(error), client) from error

    def _answers(
        self, client: "Beaker", method: str, messages: Sequence[object]
    ) -> "list[Message]":
        stub, answers = getattr(client.service, method), list["Message"]()
        for start in range(0, len(messages), _ABREAST):
            batch = messages[start : start + _ABREAST]
            calls = [stub.future(message, **self._how()) for message in batch]
            answers += [call.result() for call in calls]
        self._backoff.succeeded()
        return answers

    def _how(self) -> _How:
        token = f"bearer {self._config.user_token}"
        return {"timeout": _SECONDS, "metadata": [("authorization", token)]}

    def _unreachable(self, status: str, message: str, client: "Beaker") -> Unreachable:
        """Convert an error of `client` to an exception with a one-line message. Replace the client
        if the service did not answer."""
        line = line_of(message.replace(str(self._config.user_token), "***"))
        if status == "UNAUTHENTICATED":
            reason = (
                "the token has expired or is not valid: see BEAKER_TOKEN; running jobs continue"
            )
            return Refused(f"beaker: {reason} ({line})", status)
        if status not in _NOT_NOW:
            return Refused(f"beaker: {line}", status)
        with self._renewing:
            # gRPC would retry the old connection only after a while, so make a new one. Other
            # threads may still use the old connection. It closes itself when it is no longer
            # referenced.
            if self._client is client:
                self._client = self._new_client()
        return Unreachable(f"beaker: {self.host} does not answer: {line}")

    def _start_backoff(self, failure: Unreachable) -> Unreachable:
        """Start the backoff if the service did not answer. Return `failure`."""
        if not isinstance(failure, Refused):
            self._backoff.failed(failure)
        return failure


def _client() -> "tuple[Callable[[], Beaker], ModuleType, tuple[type[Exception], ...]]":
    """Return a factory of official clients, the module of message types, and the errors of gRPC
    calls."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # sweeper reports errors itself
    try:
        import beaker.beaker_pb2 as messages
        import grpc
        from beaker import Beaker
    except ImportError as error:
        raise EnvironmentFailure(
            f"beaker: the Python client is not installed: run `{add_extra('beaker')}`"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for keys written by a newer client
            config = import_module("beaker.config").Config.from_env()
    except Exception as error:  # errors of YAML, of files, and of the client
        raise EnvironmentFailure(
            f"beaker: no login ({line_of(error)}): set BEAKER_TOKEN, or run `beaker account login`"
        ) from error

    def new_client() -> Beaker:
        client = Beaker(config, check_for_upgrades=False)
        vars(client)["MAX_RETRIES"] = 1  # Set for this client only, although the class declares it.
        return client

    # ValueError means that the channel is closed.
    return new_client, messages, (grpc.RpcError, ValueError)


def _streams(client: "Beaker") -> _Streams:
    return client.service


def _of_grpc(error: Exception) -> tuple[str, str]:
    if isinstance(error, _Ended):
        return error.code().name, str(error.details())
    return "UNKNOWN", str(error)


def _of_http(error: Exception) -> tuple[str, str]:
    """Return the gRPC status and the message for an error of an HTTP request."""
    if type(error).__name__ == "BeakerPermissionsError":
        return "PERMISSION_DENIED", str(error)
    code = re.match(r"\[code=(\d{3})\] ?(.*)", str(error), re.DOTALL)
    if code:
        return _HTTP.get(int(code[1]), "FAILED_PRECONDITION"), code[2]
    answer: object = getattr(error, "response", None)
    status = int(getattr(answer, "status_code", 0) or 0)
    return _HTTP.get(status, "UNAVAILABLE"), str(error)
