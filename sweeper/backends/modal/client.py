"""Modal, by its official client: where it is and who asks are the client's affair, and what goes
wrong is one line.

What is asked runs on a loop of ours, in a thread of its own: only so it can be given up. The client
itself waits for ever for what does not answer.
"""

import asyncio
import atexit
import functools
import io
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from sweeper.backends.backoff import Backoff
from sweeper.backends.container_jobs import line_of
from sweeper.errors import EnvironmentFailure, Unreachable

if TYPE_CHECKING:
    from modal import App, Client, Image

__all__ = ["Method", "Refused", "Service", "official"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Question = Callable[["Client", "App"], Awaitable[T]]
"""What asks by the client, for one app."""
_SECONDS = 20.0
_AGAIN_SECONDS = 1.0, 15.0
"""When one that did not answer is asked again: at first, and at most."""
_REFUSALS = (
    *("AuthError", "PermissionDeniedError", "NotFoundError", "AlreadyExistsError"),
    *("ConflictError", "InvalidError", "ResourceExhaustedError", "ImageBuildError"),
    *("RemoteError", "ExecutionError", "VersionError", "UnimplementedError"),
)
"""What the client raises where Modal has answered. All else may pass."""
_THEIRS = ("modal.", "grpclib.", "h2.", "asyncio.", "concurrent.")
"""Modules of errors that are of the way to Modal."""
_PASSING = ("AuthError", "ResourceExhaustedError")
_UNKNOWN = (
    "the token is missing or not valid: `modal token new`, and start the launcher again, which "
    "reads it once; what runs goes on"
)


class Method(Protocol[T_co]):
    """A method of the client's objects, for those of which it does not say what they return."""

    def aio(self) -> Awaitable[T_co]: ...


class Refused(Unreachable):
    """Modal answered, and will not. `kind` is what its client calls that."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    def settled(self) -> EnvironmentFailure:
        """What it is for who wants something made: the end, unless credentials can be renewed or
        there is room later."""
        return self if self.kind in _PASSING else EnvironmentFailure(str(self))


class Service:
    """Modal for the user's configuration, and one app of an environment; None: the default one.
    Raises `EnvironmentFailure` where the client is not installed."""

    def __init__(self, app: str, environment: str | None) -> None:
        self._modal = official()
        self._backoff = Backoff(*_AGAIN_SECONDS)
        self._renewing, self._connecting = threading.Lock(), asyncio.Lock()
        self._client: Client | None = None
        self._app: App | None = None
        self.app, self.environment = app, environment

    @property
    def server(self) -> str:
        """The address of Modal."""
        return str(self._modal.config.config["server_url"])

    def ask(self, question: "Question[T]", seconds: float = 0.0) -> T:
        """The answer to a question, which is given the client and the app. Raises `Unreachable`
        where there is none in so many seconds (0: as usual), or `Refused`."""
        self._backoff.check()
        seconds = seconds or _SECONDS
        client = self._client
        asked = asyncio.run_coroutine_threadsafe(self._put(question, seconds), _loop())
        try:
            found = asked.result(seconds + 5)
        except TimeoutError:
            asked.cancel()
            silent = self._silent(f"nothing came in {seconds:g} s")
            raise self._left_alone(silent, client) from None
        except Exception as error:
            raise self._told(error, client) from error
        self._backoff.succeeded()
        return found

    def image(self, address: str, seconds: float = 0.0) -> "Image":
        """An image of a registry, which Modal has fetched when this returns. Raises as `ask`."""
        made = self._modal.Image.from_registry(address)

        async def build(client: "Client", app: "App") -> "Image":
            del client
            return await made.build.aio(app)

        return self.ask(build, seconds)

    async def _put(self, question: "Question[T]", seconds: float) -> T:
        async with asyncio.timeout(seconds):
            async with self._connecting:
                client, app = self._client, self._app
                if client is None:
                    client = self._client = await self._connected()
                if app is None:
                    lookup = self._modal.App.lookup.aio
                    given = {"environment_name": self.environment, "client": client}
                    app = self._app = await lookup(self.app, create_if_missing=True, **given)
            return await question(client, app)

    async def _connected(self) -> "Client":
        """A client of our own, where a token is in the configuration: others may be closed by
        whoever has them. Else the one of this process, which says what is missing."""
        given = self._modal.config.config
        token = given["token_id"], given["token_secret"]
        if all(token):
            return await self._modal.Client.from_credentials.aio(*token)
        return await self._modal.Client.from_env.aio()

    def _told(self, error: Exception, client: "Client | None") -> Unreachable:
        """What a user is told, in one line. Raises what is no affair of Modal's."""
        names = [kind.__name__ for kind in type(error).__mro__]
        kind = next((name for name in names if name in _REFUSALS), None)
        said = line_of(error)
        if kind == "AuthError":
            refused = Refused(f"modal: {_UNKNOWN} ({said})", kind)
            return self._left_alone(refused, client)
        if kind is not None:
            return Refused(f"modal: {said}", kind)
        if not (isinstance(error, OSError) or type(error).__module__.startswith(_THEIRS)):
            raise error
        return self._left_alone(self._silent(said or type(error).__name__), client)

    def _silent(self, said: str) -> Unreachable:
        return Unreachable(f"modal: {self.server} does not answer: {said}")

    def _left_alone(self, failure: Unreachable, client: "Client | None") -> Unreachable:
        """The same, which is raised: nobody is asked for a while, and then by a new connection."""
        with self._renewing:
            self._forget(client)
        self._backoff.failed(failure)
        return failure

    def _forget(self, client: "Client | None") -> None:
        """Have the next question ask for a client anew; another thread may have done so already."""
        if client is None:  # it was made for the question that has failed
            client = self._client
        if client is None or self._client is not client:
            return
        self._client = self._app = None

        async def close() -> None:
            with suppress(Exception):
                async with asyncio.timeout(5):
                    await client.close.aio()

        asyncio.run_coroutine_threadsafe(close(), _loop())


def official() -> ModuleType:
    """The official client's module. Raises `EnvironmentFailure` where it is not installed, or its
    configuration is not one that sweeper can do with."""
    try:
        with redirect_stdout(io.StringIO()):  # it prints a box if it cannot be imported
            found = import_module("modal")
    except ImportError as error:
        raise EnvironmentFailure(
            "modal: its client is not installed: pip install 'sweeper[modal]'"
        ) from error
    except Exception as error:  # it reads its configuration as it is imported
        said = line_of(error)
        raise EnvironmentFailure(f"modal: its configuration cannot be read: {said}") from error
    if not found.config.config["sandbox_v2"]:
        raise EnvironmentFailure(
            "modal: its configuration has sandbox_v2 off, and sweeper needs it: "
            "take MODAL_SANDBOX_V2 away, or sandbox_v2 in ~/.modal.toml"
        )
    logging.getLogger("asyncio").addFilter(_is_of_others)
    return found


def _is_of_others(record: logging.LogRecord) -> bool:
    """Whether a line of asyncio's is not about an error of the client's: those of questions that we
    have given up would come with a traceback, long after they were told."""
    error = record.exc_info[1] if record.exc_info else None
    return not type(error).__module__.startswith("modal.")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all of this process, at work as long as that is."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="modal", daemon=True).start()
    # Before the client ends its own loop, as it was imported earlier: what then still asked it, a
    # connection that is being closed, would have it complain to the user.
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Have nothing more asked on the loop."""

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    with suppress(Exception):
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(2)
