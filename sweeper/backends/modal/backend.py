"""Sandboxes of an app of Modal's: see docs/modal.md.

A run's attempt is a sandbox of its own, whose name says which. What is asked is one listing of
those of the sweep that run; one that is not on it is asked for by its name, and how it has ended.
A sandbox is given a machine as it is made, so that none waits.
"""

import asyncio
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from sweeper.backends.backoff import Backoff, Freshness
from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus, require
from sweeper.backends.modal import stop
from sweeper.backends.modal.client import Refused, Service, official
from sweeper.backends.modal.options import Options, asked_of
from sweeper.backends.modal.spec import Names, required, spec
from sweeper.backends.modal.status import ended
from sweeper.backends.parallel_requests import for_each

if TYPE_CHECKING:
    from modal import App, Client, Image

__all__ = ["ModalBackend", "open_backend"]

_ROOM_SECONDS = 5.0, 60.0
"""When a submission is tried again for which there was no room: at first, and at most."""
_TELLING_SECONDS = 2.0
"""How long a launcher is held by telling sandboxes to stop; the rest comes later."""
_LINES = 10_000
"""So many lines of what a job printed are shown, the last ones."""
_STOP = inspect.getsource(stop)
_RUNS, _ABSENT = JobStatus(JobState.RUNNING), JobStatus(JobState.ABSENT)


def open_backend(sweep: str, folder: str, options: Options) -> "ModalBackend":
    """The backend for one sweep. Raises `EnvironmentFailure` where Modal does not answer."""
    service = Service(options["app"], options.get("environment"))
    backend = ModalBackend(service, options, sweep, folder)
    backend.find([])
    return backend


class ModalBackend(Backend):
    """See `sweeper.backends.base.Backend`. `options` stand where a job's resources say nothing."""

    name = "modal"

    def __init__(self, service: Service, options: Options, sweep: str, folder: str) -> None:
        self._service, self._options, self._folder = service, options, folder
        self._names = Names(sweep, folder)
        self._modal = official()
        self._image: Image | None = None
        self._app_id = ""
        self._going: set[str] = set()  # ids of those that run, as of the last look
        self._ids: dict[str, str | None] = {}  # by token; None: as of that look there is none
        self._over: dict[str, JobStatus] = {}
        self._untold: set[str] = set()  # those that could not be told to stop, as of the last try
        self._freshness = Freshness()
        self._room = Backoff(*_ROOM_SECONDS)

    def location(self) -> dict[str, str]:
        # It is of one environment of one workspace.
        return {"app": self._app_id or self._service.app}

    def preflight(self, asked: Sequence[Mapping[str, object]]) -> None:
        """Look for all that jobs with these resources name, as `doctor` does."""
        from sweeper.backends.modal.doctor import checks

        for one in asked:
            require(checks(asked_of(self._options, one), self._service), self.name)

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._room.check()
        self._names.identity.ensure()
        self._freshness.end()
        with self._room.tried(Refused):
            if self._image is None:
                self._image = self._had_image()
            for_each(jobs, self._create, Refused)

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._look(tokens, anew=True)
        return {token: found for token in tokens if (found := self._ids.get(token))}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        if not tokens:
            return {}
        self._look(tokens)
        silent = [t for t in tokens if t not in self._over and self._ids.get(t)]
        for_each([t for t in silent if self._ids[t] not in self._going], self._ask_how, Refused)
        return {token: self._status(token) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> list[str]:
        """Those that were not told are returned: the worker is not there yet, or time was up. A
        listing may lag, so it is none of its affair who is asked."""
        self._look(tokens)
        asked = [t for t in tokens if t not in self._over and self._ids.get(t)]
        # Those that would not be told last time do not keep others waiting.
        asked.sort(key=self._untold.__contains__)
        until, told = time.monotonic() + _TELLING_SECONDS, set[str]()

        def tell(token: str) -> None:
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._told(token, left):
                told.add(token)
                self._untold.discard(token)
            else:
                self._untold.add(token)

        for_each(asked, tell, Refused)
        self._freshness.end()
        return [token for token in asked if token not in told]

    def logs(self, token: str) -> Iterator[str]:
        """What the job printed, as it is now; nothing of one that Modal has forgotten."""
        self._look([token])
        identity = self._ids.get(token)
        if not identity:
            return

        async def read(client: "Client", app: "App") -> list[str]:
            del app
            found = await self._modal.Sandbox.from_id.aio(identity, client=client)
            return [entry.message async for entry in found.logs.tail.aio(_LINES)]

        yield from "".join(self._service.ask(read)).splitlines()

    def _had_image(self) -> "Image":
        """The image of the jobs, which a launch has tried."""
        try:
            return self._service.image(self._options.get("image", ""))
        except Refused as error:
            raise error.settled() from None

    def _create(self, job: JobSpec) -> None:
        self._over.pop(job.token, None)
        made = spec(job, asked_of(self._options, job.resources), self._names)
        of = self._options.get("secrets", {})
        from_name = partial(
            self._modal.Secret.from_name, environment_name=self._service.environment
        )
        secrets = [
            from_name(name, required_keys=required(of, name)) for name in made.get("secrets", ())
        ]
        given = {key: value for key, value in made.items() if key not in ("args", "secrets")}
        given["image"] = self._image

        async def create(client: "Client", app: "App") -> str:
            make = self._modal.Sandbox.create.aio
            there = await make(*made["args"], app=app, secrets=secrets, client=client, **given)
            return str(there.object_id)

        try:
            self._ids[job.token] = self._service.ask(create)
        except Refused as error:
            if error.kind != "AlreadyExistsError":
                raise error.settled() from None
            self._ask_id(job.token)
            if self._ids[job.token] is None:  # else an answer was lost
                told = "of a sweep that was in the same folder the sandbox"
                how = "is at work: waits for its end, or stop it at Modal"
                name = self._names.name(job.token)
                raise Refused(f"modal: {told} {name} {how}", error.kind) from error

    def _status(self, token: str) -> JobStatus:
        if self._ids.get(token) is None:
            return self._over.get(token, _ABSENT)
        return self._over.get(token, _RUNS)

    def _ask_how(self, token: str) -> None:
        """Ask how one has ended that is not listed; it may have begun since."""
        identity = self._ids[token]

        async def ask(client: "Client", app: "App") -> JobStatus | None:
            del app
            found = await self._modal.Sandbox.from_id.aio(identity, client=client)
            return await ended(self._modal, found)

        try:
            how = self._service.ask(ask)
        except Refused as error:
            if error.kind != "NotFoundError":
                raise
            self._ids[token] = None  # it is forgotten
            return
        if how is not None:
            self._over[token] = how

    def _told(self, token: str, seconds: float) -> bool:
        """Tell the worker of a sandbox to stop, if there is anything to be told; False: it was not
        told in so many seconds. What is told from outside kills everything at once."""
        identity, python = self._ids[token], self._options["python"]
        argv = [python, "-P", "-c", _STOP, token, self._folder]

        async def tell(client: "Client", app: "App") -> int | None:
            del app
            with suppress(TimeoutError):  # it is being started
                async with asyncio.timeout(seconds):
                    found = await self._modal.Sandbox.from_id.aio(identity, client=client)
                    process = await found.exec.aio(*argv, timeout=30)
                    return await process.wait.aio()
            return None

        try:
            return self._service.ask(tell) == 0
        except Refused as error:
            if error.kind not in ("NotFoundError", "ConflictError"):
                raise
        self._ask_how(token)  # it may have ended, or not have come that far
        return token in self._over or self._ids[token] is None

    def _look(self, wanted: Sequence[str] = (), *, anew: bool = False) -> None:
        """List the sweep's sandboxes that run, and ask for those of `wanted` by their names whose
        ids are not known."""
        if anew or self._freshness.is_over():
            with self._freshness.renewed():
                self._app_id, self._going = self._listed()
            self._ids = {token: found for token, found in self._ids.items() if found}
        for_each([token for token in wanted if token not in self._ids], self._ask_id, Refused)

    def _listed(self) -> tuple[str, set[str]]:
        """The app's id, and the ids of what runs of the sweep."""
        tags = self._names.tags

        async def ask(client: "Client", app: "App") -> tuple[str, set[str]]:
            listed = self._modal.Sandbox.list.aio(app_id=app.app_id, tags=tags, client=client)
            return str(app.app_id), {str(one.object_id) async for one in listed}

        return self._service.ask(ask)

    def _ask_id(self, token: str) -> None:
        """Ask for the id of one that there is, or was, of no sweep before in the same folder."""

        async def ask(client: "Client", app: "App") -> tuple[str, dict[str, str]]:
            del app
            found = await self._modal.Sandbox.from_name.aio(
                self._service.app,
                self._names.name(token),
                environment_name=self._service.environment,
                include_terminated=True,
                client=client,
            )
            return str(found.object_id), await found.get_tags.aio()

        try:
            identity, tags = self._service.ask(ask)
            self._ids[token] = identity if self._names.is_ours(tags) else None
        except Refused as error:
            if error.kind != "NotFoundError":
                raise
            self._ids[token] = None
