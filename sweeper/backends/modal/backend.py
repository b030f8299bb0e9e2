"""Runs jobs as sandboxes of a Modal app: see docs/modal.md. Each attempt is a sandbox of its own,
identified by its name."""

import asyncio
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, require
from sweeper.backends.container_jobs import process_exit_code, reason_of
from sweeper.backends.modal import stop
from sweeper.backends.modal.client import Method, Refused, Service, official
from sweeper.backends.modal.options import Options
from sweeper.backends.modal.spec import Names, required, spec
from sweeper.backends.parallel_requests import for_each
from sweeper.common.backoff import Backoff, Freshness
from sweeper.fields.options import over

_ENDED = JobStatus(JobState.ENDED)
_END_STATUSES = {
    "TERMINATED": _ENDED._replace(
        reason="terminated: its machine was taken away, or a user stopped it", preempted=True
    ),
    "INTERNAL_FAILURE": _ENDED._replace(reason="Modal itself failed", preempted=True),
    "MEMORY_MANAGER_EVICTION": _ENDED._replace(
        reason="its machine ran out of memory", preempted=True
    ),
    "TIMEOUT": _ENDED._replace(reason="timeout"),
    "KERNEL_OOM_KILL": _ENDED._replace(reason="oom"),
    "MEMORY_THRASHING_EVICTION": _ENDED._replace(reason="oom"),
    "INIT_FAILURE": _ENDED._replace(reason="Modal could not start it"),
    "IDLE_TIMEOUT": _ENDED._replace(reason="Modal stopped it because it was idle"),
}
"""The status of an ended job, by the name of Modal's status. For other names the exit code
decides."""
_PREFIX = "GENERIC_STATUS_"


class Sandbox(Protocol):
    """The methods of a Modal sandbox that report how the sandbox has ended."""

    @property
    def poll(self) -> Method[int | None]: ...

    @property
    def wait(self) -> Method[object]: ...


async def ended(modal: ModuleType, sandbox: Sandbox) -> JobStatus | None:
    """Return the status of a sandbox that has ended, or None if the sandbox has not ended."""
    code = await sandbox.poll.aio()
    if code is None:
        return None
    status, why = _result(sandbox)
    try:
        await sandbox.wait.aio()
    except modal.exception.SandboxTimeoutError:
        status = "TIMEOUT"
    except modal.exception.SandboxTerminatedError:
        status = "TERMINATED"
    meaning = _END_STATUSES.get(status)
    if meaning is None:
        return _ENDED._replace(code=process_exit_code(code))
    if meaning.reason in ("oom", "timeout") or not why:
        return meaning
    return meaning._replace(reason=f"{meaning.reason}: {why}")


def _result(sandbox: Any) -> tuple[str, str]:
    """Return the name of the sandbox's status and Modal's message as one line. Both are empty if
    this version of Modal's client stores the result elsewhere."""
    with suppress(AttributeError, ValueError):
        inner = sandbox._sync_synchronizer._translate_in(sandbox)
        result = inner._impl.result if hasattr(inner, "_impl") else inner._result
        result_type = result.__class__
        kind = str(result_type.GenericStatus.Name(result.status)).removeprefix(_PREFIX)
        return kind, reason_of(result.exception) or ""
    return "", ""


if TYPE_CHECKING:
    from modal import App, Client, Image

_ROOM_SECONDS = 5.0, 60.0
"""Backoff of a submission for which there was no room: first and longest wait."""
_STOP_SECONDS = 2.0
"""Maximum number of seconds that a call spends on stopping sandboxes. Later calls stop the
remaining ones."""
_LINES = 10_000
"""How many of the last output lines of a job are shown."""
_STOP = inspect.getsource(stop)
_RUNS, _ABSENT = JobStatus(JobState.RUNNING), JobStatus(JobState.ABSENT)


def open_backend(sweep: str, folder: str, options: Options) -> "ModalBackend":
    """Open the backend for one sweep. Raises `EnvironmentFailure` if Modal does not answer."""
    service = Service(options.app, options.environment)
    backend = ModalBackend(service, options, sweep, folder)
    backend.find([])
    return backend


class ModalBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`). A job's own options, `JobSpec.resources`,
    override `options`."""

    name = "modal"

    def __init__(self, service: Service, options: Options, sweep: str, folder: str) -> None:
        self._service, self._options, self._folder = service, options, folder
        self._names = Names(sweep, folder)
        self._modal = official()
        self._image: Image | None = None
        self._app_id = ""
        self._going: set[str] = set()  # ids of running sandboxes, at the last listing
        self._ids: dict[str, str | None] = {}  # of sandboxes, by token; None if there was none
        self._over: dict[str, JobStatus] = {}
        self._unsignalled: set[str] = set()  # tokens whose last signal failed
        self._freshness = Freshness()
        self._room = Backoff(*_ROOM_SECONDS)

    def location(self) -> dict[str, str]:
        # An app belongs to one environment of one workspace.
        return {"app": self._app_id or self._service.app}

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        """Run the checks of `doctor` that a launch requires, for jobs with these resources."""
        from sweeper.backends.modal.doctor import checks

        for needs in resources:
            require(checks(over(self._options, needs), self._service), self.name)

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._room.check()
        self._names.identity.ensure()
        self._freshness.end()
        with self._room.tried(Refused):
            if self._image is None:
                self._image = self._fetched_image()
            for_each(jobs, self._create, Refused)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._look(tokens, anew=True)
        return {token: identity for token in tokens if (identity := self._ids.get(token))}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        if not tokens:
            return {}
        self._look(tokens)
        unknown = [t for t in tokens if t not in self._over and self._ids.get(t)]
        for_each([t for t in unknown if self._ids[t] not in self._going], self._query_end, Refused)
        return {token: self._status(token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> list[str]:
        """Ask the jobs to stop. Return the tokens of jobs that got no signal, because their worker
        has not started yet or `_STOP_SECONDS` have passed. Jobs that the last listing lacks also
        get a signal, since the listing may be outdated."""
        self._look(tokens)
        running = [t for t in tokens if t not in self._over and self._ids.get(t)]
        # Jobs that got no signal last time come last, so that they do not delay the others.
        running.sort(key=self._unsignalled.__contains__)
        until, signalled = time.monotonic() + _STOP_SECONDS, set[str]()

        def tell(token: str) -> None:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                return
            if self._signal(token, remaining_s):
                signalled.add(token)
                self._unsignalled.discard(token)
            else:
                self._unsignalled.add(token)

        for_each(running, tell, Refused)
        self._freshness.end()
        return [token for token in running if token not in signalled]

    def logs(self, token: str) -> Iterator[str]:
        """Yield the last lines of the job's current output; nothing if Modal has forgotten the
        job."""
        self._look([token])
        identity = self._ids.get(token)
        if not identity:
            return

        async def read(client: "Client", app: "App") -> list[str]:
            del app
            sandbox = await self._modal.Sandbox.from_id.aio(identity, client=client)
            return [entry.message async for entry in sandbox.logs.tail.aio(_LINES)]

        yield from "".join(self._service.ask(read)).splitlines()

    def _fetched_image(self) -> "Image":
        try:
            return self._service.image(self._options.image or "")
        except Refused as error:
            raise error.settled() from None

    def _create(self, job: JobSpec) -> None:
        self._over.pop(job.token, None)
        arguments = spec(job, over(self._options, job.resources), self._names)
        references = self._options.secrets
        from_name = partial(
            self._modal.Secret.from_name, environment_name=self._service.environment
        )
        secrets = [
            from_name(name, required_keys=required(references, name))
            for name in arguments.get("secrets", ())
        ]
        keywords = {
            key: value for key, value in arguments.items() if key not in ("args", "secrets")
        }
        keywords["image"] = self._image

        async def create(client: "Client", app: "App") -> str:
            make = self._modal.Sandbox.create.aio
            sandbox = await make(
                *arguments["args"], app=app, secrets=secrets, client=client, **keywords
            )
            return str(sandbox.object_id)

        try:
            self._ids[job.token] = self._service.ask(create)
        except Refused as error:
            if error.kind != "AlreadyExistsError":
                raise error.settled() from None
            self._query_id(job.token)
            # If the sandbox is ours, an earlier request has created it, but the answer was lost.
            if self._ids[job.token] is None:
                name = self._names.name(job.token)
                raise Refused(
                    f"modal: the sandbox {name} of an earlier sweep in this folder is still "
                    "running, and the launcher waits until this sandbox ends; you can stop the "
                    "sandbox at Modal",
                    error.kind,
                ) from error

    def _status(self, token: str) -> JobStatus:
        if self._ids.get(token) is None:
            return self._over.get(token, _ABSENT)
        return self._over.get(token, _RUNS)

    def _query_end(self, token: str) -> None:
        """Query whether and how a sandbox that is not in the last listing has ended."""
        identity = self._ids[token]

        async def ask(client: "Client", app: "App") -> JobStatus | None:
            del app
            sandbox = await self._modal.Sandbox.from_id.aio(identity, client=client)
            return await ended(self._modal, sandbox)

        try:
            how = self._service.ask(ask)
        except Refused as error:
            if error.kind != "NotFoundError":
                raise
            self._ids[token] = None  # Modal no longer knows the sandbox
            return
        if how is not None:
            self._over[token] = how

    def _signal(self, token: str, seconds: float) -> bool:
        """Send SIGTERM to the worker, from a process in the worker's sandbox, since Modal's own
        termination kills all processes immediately. Return True if the worker got the signal within
        `seconds`, or if the sandbox has ended."""
        identity, python = self._ids[token], self._options.python
        argv = [python, "-P", "-c", _STOP, token, self._folder]

        async def tell(client: "Client", app: "App") -> int | None:
            del app
            with suppress(TimeoutError):  # The sandbox is still starting.
                async with asyncio.timeout(seconds):
                    sandbox = await self._modal.Sandbox.from_id.aio(identity, client=client)
                    process = await sandbox.exec.aio(*argv, timeout=30)
                    return await process.wait.aio()
            return None

        try:
            return self._service.ask(tell) == 0
        except Refused as error:
            if error.kind not in ("NotFoundError", "ConflictError"):
                raise
        self._query_end(token)  # The sandbox has ended, or has not started yet.
        return token in self._over or self._ids[token] is None

    def _look(self, wanted: Sequence[str] = (), *, anew: bool = False) -> None:
        """List the sweep's running sandboxes if the last listing is outdated or `anew` is True. For
        tokens in `wanted` without a known sandbox, query the sandbox's id."""
        if anew or self._freshness.is_over():
            with self._freshness.renewed():
                self._app_id, self._going = self._listed()
            self._ids = {token: identity for token, identity in self._ids.items() if identity}
        for_each([token for token in wanted if token not in self._ids], self._query_id, Refused)

    def _listed(self) -> tuple[str, set[str]]:
        tags = self._names.tags

        async def ask(client: "Client", app: "App") -> tuple[str, set[str]]:
            listed = self._modal.Sandbox.list.aio(app_id=app.app_id, tags=tags, client=client)
            return str(app.app_id), {str(sandbox.object_id) async for sandbox in listed}

        return self._service.ask(ask)

    def _query_id(self, token: str) -> None:
        """Query the id of a token's sandbox. The id is None if there is no such sandbox, or if the
        sandbox belongs to an earlier sweep in the same folder."""

        async def ask(client: "Client", app: "App") -> tuple[str, dict[str, str]]:
            del app
            sandbox = await self._modal.Sandbox.from_name.aio(
                self._service.app,
                self._names.name(token),
                environment_name=self._service.environment,
                include_terminated=True,
                client=client,
            )
            return str(sandbox.object_id), await sandbox.get_tags.aio()

        try:
            identity, tags = self._service.ask(ask)
            self._ids[token] = identity if self._names.is_ours(tags) else None
        except Refused as error:
            if error.kind != "NotFoundError":
                raise
            self._ids[token] = None
