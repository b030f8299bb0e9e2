"""Calls AWS with botocore and interprets the errors. Calls are written `call(<service>,
<operation>, ...)`, so that a test can compare the operations with docs/aws-batch-policy.json."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Literal, Protocol, overload

from sweeper.backends.aws_batch import answers
from sweeper.backends.aws_batch.answers import Answer
from sweeper.backends.container_jobs import line_of
from sweeper.common.backoff import delays, retried, spread
from sweeper.common.json_values import is_table, list_of, table_of
from sweeper.errors import EnvironmentFailure, Unreachable

_TRIES = 4
"""How often botocore tries a request that may be repeated. If all tries fail, the launcher tries
again later. After throttling, botocore also sends fewer requests ("adaptive")."""
_THROTTLED_TRIES = 8
_MOST_SECONDS = 20.0
_EXPIRED = {
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
    *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException"),
    *("SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthFailure"),
    *("RequestTimeTooSkewed", "RequestInTheFuture"),
}
_UNDECIDED = {"RequestTimeout", "RequestTimeoutException", "IDPCommunicationError"}
"""Error codes that leave the outcome unknown, although their HTTP status is that of a refusal."""
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_THROTTLED = {
    *("TooManyRequestsException", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
    *("ThrottledException", "RequestThrottled", "RequestThrottledException"),
    *("SlowDown", "PriorRequestNotComplete"),
}
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
    *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError", "SSOError"),
    *("RefreshWithMFAUnsupportedError", "MetadataRetrievalError"),
}
_CONFIGURED = "~/.aws/config, ~/.aws/credentials and the variables AWS_*"


class _Meta(Protocol):
    region_name: str


class _Client(Protocol):
    """A botocore client of one service."""

    meta: _Meta


class _Session(Protocol):
    def create_client(
        self, service_name: str, *, region_name: str | None, config: object
    ) -> _Client: ...


class Throttled(Unreachable):
    """AWS got too many requests and did not execute this request."""


class Refused(Unreachable):
    """AWS refused a request. `code` is AWS's error code. `for_good` is true if AWS would refuse the
    same request again, and false if the credentials are missing or invalid."""

    def __init__(self, message: str, code: str, *, for_good: bool) -> None:
        super().__init__(message)
        self.code, self.for_good = code, for_good


class Aws:
    """The AWS clients of one region and profile, created at first use. `calls` has the number of
    calls of each operation. `sleep` waits between tries."""

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        session: "_Session | None" = None,
    ) -> None:
        self._region, self._profile = region, profile
        self._sleep = sleep
        self._session = session
        self._clients: dict[tuple[str, bool], _Client] = {}
        self.calls: Counter[str] = Counter()

    @property
    def region(self) -> str:
        """The region in use. Raises `Unreachable` if no region is configured."""
        return self._client("batch", True).meta.region_name

    @overload
    def call(
        self, service: str, operation: Literal["describe_jobs"], **parameters: object
    ) -> answers.DescribedJobs: ...

    @overload
    def call(
        self, service: str, operation: Literal["describe_job_queues"], **parameters: object
    ) -> answers.JobQueues: ...

    @overload
    def call(
        self,
        service: str,
        operation: Literal["describe_compute_environments"],
        **parameters: object,
    ) -> answers.ComputeEnvironments: ...

    @overload
    def call(
        self, service: str, operation: Literal["get_log_events"], **parameters: object
    ) -> answers.LogEvents: ...

    @overload
    def call(
        self, service: str, operation: Literal["describe_images"], **parameters: object
    ) -> answers.Images: ...

    @overload
    def call(
        self, service: str, operation: Literal["get_role"], **parameters: object
    ) -> answers.FoundRole: ...

    @overload
    def call(
        self, service: str, operation: Literal["describe_parameters"], **parameters: object
    ) -> answers.Parameters: ...

    @overload
    def call(
        self, service: str, operation: Literal["get_service_quota"], **parameters: object
    ) -> answers.ServiceQuota: ...

    @overload
    def call(self, service: str, operation: str, **parameters: object) -> Answer: ...

    def call(self, service: str, operation: str, **parameters: object) -> Answer:
        """Return the answer to a request. botocore repeats the request after temporary failures.
        Raises `Unreachable` or a subclass."""
        return self._send(service, operation, True, parameters)

    def submit(self, service: str, operation: str, **parameters: object) -> Answer:
        """Send a request that creates something, and return the answer. Only a throttled request is
        repeated, since AWS did not execute it. Raises `EnvironmentFailure` if AWS would refuse the
        request again, `Refused` if the credentials are the problem, and `Throttled` if AWS
        throttled every try. If `Unreachable` itself is raised, AWS may have executed the
        request."""
        waits = spread(delays(0.5, _MOST_SECONDS, times=_THROTTLED_TRIES - 1))
        try:
            return retried(
                lambda: self._send(service, operation, False, parameters),
                waits,
                lambda error: isinstance(error, Throttled),
                sleep=self._sleep,
            )
        except Refused as error:
            if not error.for_good:
                raise
            raise EnvironmentFailure(str(error)) from error

    @overload
    def pages(
        self, service: str, operation: Literal["list_jobs"], field: str, **parameters: object
    ) -> Iterator[answers.JobSummary]: ...

    @overload
    def pages(
        self,
        service: str,
        operation: Literal["describe_job_definitions"],
        field: str,
        **parameters: object,
    ) -> Iterator[answers.JobDefinition]: ...

    def pages(
        self, service: str, operation: str, field: str, **parameters: object
    ) -> Iterator[object]:
        """Yield the items of all pages of a listing. Each page has its items in the list
        `field`."""
        token: object = None
        while True:
            more = {} if token is None else {"nextToken": token}
            answer = self.call(service, operation, **parameters, **more)
            yield from list_of(answer.get(field))
            token = answer.get("nextToken")
            if not token:
                return

    def _send(
        self, service: str, operation: str, again: bool, parameters: dict[str, object]
    ) -> Answer:
        client = self._client(service, again)
        self.calls[operation] += 1
        try:
            return getattr(client, operation)(**parameters)
        except Exception as error:
            raise _unreachable(error, service, operation) from error

    def _client(self, service: str, again: bool) -> _Client:
        client = self._clients.get((service, again))
        if client is not None:
            return client
        try:
            if self._session is None:
                session: _Session = import_module("botocore.session").Session(profile=self._profile)
                self._session = session
            retries: dict[str, object] = {"mode": "adaptive", "total_max_attempts": _TRIES}
            if not again:
                retries = {"mode": "standard", "total_max_attempts": 1}
            options = {"connect_timeout": 5, "read_timeout": 30, "retries": retries}
            config = import_module("botocore.config").Config(**options)
            client = self._session.create_client(service, region_name=self._region, config=config)
        except Exception as error:
            raise _unreachable(error, service, "") from error
        self._clients[service, again] = client
        return client


def _unreachable(error: Exception, service: str, operation: str) -> Unreachable:
    """Convert an error of botocore to an exception with a one-line message for the user."""
    kind, where = type(error).__name__, f"AWS {service.title()}"
    response: object = getattr(error, "response", None)
    if is_table(response):
        return _refused(response, where, operation)
    here = {
        "ProfileNotFound": f"AWS: {error}: see launch.aws_batch.profile, AWS_PROFILE",
        "NoRegionError": "AWS: no region: set launch.aws_batch.region, or AWS_DEFAULT_REGION",
        "ParamValidationError": f"{where}: {line_of(error)}",
    }
    advice = here.get(kind)
    if advice is None:
        if kind in _NO_CREDENTIALS or (operation and isinstance(error, FileNotFoundError)):
            lacking = f"AWS: no usable credentials ({line_of(error)})"
            return Refused(lacking, kind, for_good=False)
        if operation:
            return Unreachable(f"{where} does not answer: {line_of(error)}")
        # The client could not be created, so nothing was sent.
        why = line_of(error).rstrip(".")
        advice = f"AWS: its configuration cannot be used: {why}: see {_CONFIGURED}"
    return Refused(advice, kind, for_good=True)


def _refused(answer: Answer, where: str, operation: str) -> Unreachable:
    about = table_of(answer.get("Error"))
    code, message = str(about.get("Code", "error")), line_of(about.get("Message", ""))
    status = table_of(answer.get("ResponseMetadata")).get("HTTPStatusCode")
    if code in _THROTTLED or status == 429:
        return Throttled(f"{where}: too many requests ({operation}); the request will be repeated")
    if (isinstance(status, int) and status >= 500) or code in _UNDECIDED:
        return Unreachable(f"{where}: {code} at {operation}: {message}")
    reason = f"{where}: {operation}: {message}"
    if code in _EXPIRED:
        reason = (
            "AWS: the credentials have expired or are not valid: renew them (`aws sso "
            "login`, or a profile that renews itself), or correct this machine's clock; "
            f"running jobs continue ({code})"
        )
    elif code in _DENIED:
        reason = f"AWS: not allowed: {message} (docs/aws-batch.md has the permissions)"
    return Refused(reason, code, for_good=code not in _EXPIRED)
