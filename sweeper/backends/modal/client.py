"""Calls Modal with its official client, and turns errors into one-line messages. Calls run on an
event loop in a thread, so that a call can be abandoned."""

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

from sweeper.backends.container_jobs import line_of
from sweeper.common.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable
from sweeper.paths import add_extra

if TYPE_CHECKING:
    from modal import App, Client, Image

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Question = Callable[["Client", "App"], Awaitable[T]]
"""A function that calls Modal with the client and an app."""
_SECONDS = 20.0
_AGAIN_SECONDS = 1.0, 15.0
"""Backoff after Modal did not answer: first and longest wait."""
_REFUSALS = (
    *("AuthError", "PermissionDeniedError", "NotFoundError", "AlreadyExistsError"),
    *("ConflictError", "InvalidError", "ResourceExhaustedError", "ImageBuildError"),
    *("RemoteError", "ExecutionError", "VersionError", "UnimplementedError"),
)
"""Classes of the client's errors that mean a refusal by Modal. Other errors may be temporary."""
_THEIRS = ("modal.", "grpclib.", "h2.", "asyncio.", "concurrent.")
"""Modules of the client's connection errors."""
_PASSING = ("AuthError", "ResourceExhaustedError")
_UNKNOWN = (
    "the token is missing or not valid: `modal token new`, then restart the launcher, which "
    "reads the token only at its start; running jobs continue"
)


class Method(Protocol[T_co]):
    """A method of Modal's client whose return type the client does not declare."""

    def aio(self) -> Awaitable[T_co]: ...


class Refused(Unreachable):
    """Error for a request that Modal refused. `kind` is the name of the error's class in Modal's
    client, such as `AuthError`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    def settled(self) -> EnvironmentFailure:
        """Return this error if the request may succeed later, else a permanent `EnvironmentFailure`
        with the same message."""
        return self if self.kind in _PASSING else EnvironmentFailure(str(self))


class Service:
    """A connection to one app at Modal, with the user's configuration. `environment` is a Modal
    environment (None: the default one). Raises `EnvironmentFailure` if Modal's client is not
    installed or its configuration cannot be used."""

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
        """Call `question` with the client and the app, and return the answer. Raises `Unreachable`
        if Modal does not answer within `seconds` (0: 20 seconds), and `Refused` if Modal
        refuses."""
        self._backoff.check()
        seconds = seconds or _SECONDS
        client = self._client
        future = asyncio.run_coroutine_threadsafe(self._put(question, seconds), _loop())
        try:
            answer = future.result(seconds + 5)
        except TimeoutError:
            future.cancel()
            no_answer = self._no_answer(f"no answer in {seconds:g} s")
            raise self._start_backoff(no_answer, client) from None
        except Exception as error:
            raise self._unreachable(error, client) from error
        self._backoff.succeeded()
        return answer

    def image(self, address: str, seconds: float = 0.0) -> "Image":
        """Make Modal fetch the image at `address`, and return the image. Raises the same errors as
        `ask`."""
        definition = self._modal.Image.from_registry(address)

        async def build(client: "Client", app: "App") -> "Image":
            del client
            return await definition.build.aio(app)

        return self.ask(build, seconds)

    async def _put(self, question: "Question[T]", seconds: float) -> T:
        async with asyncio.timeout(seconds):
            async with self._connecting:
                client, app = self._client, self._app
                if client is None:
                    client = self._client = await self._connected()
                if app is None:
                    lookup = self._modal.App.lookup.aio
                    keywords = {"environment_name": self.environment, "client": client}
                    app = self._app = await lookup(self.app, create_if_missing=True, **keywords)
            return await question(client, app)

    async def _connected(self) -> "Client":
        """Return a new client, since other code may close the client that all code of this process
        shares. Return the shared client if the configuration has no API token."""
        config = self._modal.config.config
        token = config["token_id"], config["token_secret"]
        if all(token):
            return await self._modal.Client.from_credentials.aio(*token)
        return await self._modal.Client.from_env.aio()

    def _unreachable(self, error: Exception, client: "Client | None") -> Unreachable:
        """Convert an error of a call to an exception with a one-line message. Errors that do not
        come from Modal are raised again."""
        names = [kind.__name__ for kind in type(error).__mro__]
        kind = next((name for name in names if name in _REFUSALS), None)
        line = line_of(error)
        if kind == "AuthError":
            refused = Refused(f"modal: {_UNKNOWN} ({line})", kind)
            return self._start_backoff(refused, client)
        if kind is not None:
            return Refused(f"modal: {line}", kind)
        if not (isinstance(error, OSError) or type(error).__module__.startswith(_THEIRS)):
            raise error
        return self._start_backoff(self._no_answer(line or type(error).__name__), client)

    def _no_answer(self, reason: str) -> Unreachable:
        return Unreachable(f"modal: {self.server} does not answer: {reason}")

    def _start_backoff(self, failure: Unreachable, client: "Client | None") -> Unreachable:
        with self._renewing:
            self._forget(client)
        self._backoff.failed(failure)
        return failure

    def _forget(self, client: "Client | None") -> None:
        """Close the client, so that the next call connects again. Do nothing if another thread has
        already replaced the client."""
        if client is None:  # The client was created by the call that failed.
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
    """Return the official client's module. Raises `EnvironmentFailure` if the client is not
    installed or its configuration does not work with sweeper."""
    try:
        with redirect_stdout(io.StringIO()):  # The client prints a box if it cannot be imported.
            module = import_module("modal")
    except ImportError as error:
        raise EnvironmentFailure(
            f"modal: the Python client is not installed: run `{add_extra('modal')}`"
        ) from error
    except Exception as error:  # The client reads its configuration when it is imported.
        line = line_of(error)
        raise EnvironmentFailure(f"modal: its configuration cannot be read: {line}") from error
    if not module.config.config["sandbox_v2"]:
        raise EnvironmentFailure(
            "modal: its configuration turns off sandbox_v2, which sweeper needs: remove "
            "MODAL_SANDBOX_V2, or sandbox_v2 in ~/.modal.toml"
        )
    logging.getLogger("asyncio").addFilter(_is_of_others)
    return module


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether a log record contains no error of Modal's client."""
    error = record.exc_info[1] if record.exc_info else None
    return not type(error).__module__.startswith("modal.")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which runs until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="modal", daemon=True).start()
    # The client has registered its own exit handler before, so this one runs first. Calls that are
    # still on our loop when the client ends would print errors to the user.
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks on the loop."""

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    with suppress(Exception):
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(2)
