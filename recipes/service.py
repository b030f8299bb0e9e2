"""Helpers around the Tinker SDK: connecting, errors in one line, stopping on signals."""

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import chz

if TYPE_CHECKING:
    import tinker

C = TypeVar("C")
T = TypeVar("T")

CONNECT_SECONDS = 5.0
KNOCK_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
TELL_SECONDS = 10.0
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class RecipeError(Exception):
    """An error that the user can fix. Its message is one line that says how to fix it."""


def parse_arguments(config_class: type[C]) -> C:
    """Parse the command line into a configuration. A bad value prints one line and exits with code
    2.
    """
    try:
        return chz.entrypoint(config_class)
    except (ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Exit with code 1 and one line on standard error if the `with` block raises a RecipeError or
    an error of the SDK."""
    try:
        yield
    except RecipeError as error:
        raise SystemExit(f"error: {error}") from None
    except Exception as error:
        cause = service_error(error)
        if cause is None:
            raise
        text = " ".join(str(cause).split())
        raise SystemExit(f"error: the service failed: {type(cause).__name__}: {text}") from None


@dataclass(frozen=True)
class Service:
    """A connection to a service: the SDK's client, and the address ("" for the hosted service).
    `key` is the API key; None if the SDK finds the key itself."""

    client: "tinker.ServiceClient"
    url: str
    knock_seconds: float = KNOCK_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    key: str | None = None

    def wait(self, request: "tinker.APIFuture[T]") -> T:
        """Wait for a request and return its result. Raises RecipeError if the service's address is
        unreachable for `patience_seconds`; the SDK would wait for ever."""
        unreachable_since: float | None = None
        while self.url:
            try:
                return request.result(timeout=self.knock_seconds)
            except TimeoutError:
                if request.future().done():  # the request itself timed out, or has just ended
                    break
            reason = _unreachable(self.url)
            if reason is None:
                unreachable_since = None
            elif unreachable_since is None:
                unreachable_since = time.monotonic()
            elif time.monotonic() - unreachable_since > self.patience_seconds:
                raise RecipeError(f"the service at {self.url} no longer answers ({reason})")
        return request.result()

    def close(self) -> None:
        """Tell the service that the session has ended, if it still answers."""
        with suppress(Exception):
            self.client.close("success").result(timeout=CONNECT_SECONDS)


def connect(base_url: str | None, metadata: dict[str, str]) -> Service:
    """Connect to `base_url`, else $TINKER_BASE_URL, else the hosted service. Raises RecipeError
    if there is no key (a service on this machine needs no key), or if no service answers at the
    given address. The SDK alone would retry for minutes."""
    # Both are read when transformers is first imported, by the SDK's get_tokenizer.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import tinker
    from tinker.auth import tinker_has_credentials

    url = (base_url or os.environ.get("TINKER_BASE_URL") or "").rstrip("/")
    try:
        local = urlsplit(url).hostname in LOOPBACK
    except ValueError as error:
        raise RecipeError(f"base_url={url} is not an address: {error}") from None
    key = None
    if local:  # a local engine has no use for the SDK's telemetry
        os.environ.setdefault("TINKER_TELEMETRY", "0")
    if not tinker_has_credentials():
        if not local:
            raise RecipeError(
                "no usable API key: write `service: local` in the grid for an engine on this "
                "machine, or `service: tinker` and set TINKER_API_KEY (it begins with tml-)"
            )
        key = "tml-local"  # the SDK insists on a key, and a local service may need none
    if url and (reason := _unreachable(url)):
        raise RecipeError(f"no service answers at {url} ({reason})")
    tell_of_waits()
    client = tinker.ServiceClient(base_url=url or None, api_key=key, user_metadata=metadata)
    return Service(client, url, key=key)


class _Waits(logging.Handler):
    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(logging.INFO)
        self._clock = clock
        self._reported: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if "429 Too Many Requests" not in record.getMessage():
            return
        now = self._clock()
        if self._reported is None or now - self._reported >= TELL_SECONDS:
            self._reported = now
            print("waiting: the service answers 429 Too Many Requests", flush=True)


def tell_of_waits(clock: Callable[[], float] = time.monotonic) -> None:
    """Install a log handler that prints a line if the service rejects a request (429), at most one
    line per `TELL_SECONDS`. Without it, the SDK retries silently for minutes, as if it hung."""
    logger = logging.getLogger("httpx")
    if not any(isinstance(handler, _Waits) for handler in logger.handlers):
        logger.addHandler(_Waits(clock))
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
        logger.propagate = False  # do not print httpx's other lines


def tokenizer_of(client: "tinker.TrainingClient | tinker.SamplingClient") -> Any:
    """Return the model's tokenizer, from the local cache or the hub. Raises RecipeError if it
    cannot be loaded."""
    try:
        return client.get_tokenizer()
    except OSError as error:  # transformers raises it for an unreachable hub or unknown model
        reason = str(error).partition("\n")[0]
        raise RecipeError(f"cannot load the model's tokenizer: {reason}") from None


def _unreachable(url: str) -> str | None:
    """Return the reason why an address is unreachable; None if a server answers, however slowly."""
    import httpx

    secure = url.startswith("https:")  # without TLS, loading certificates is wasted time
    try:
        httpx.get(f"{url}/api/v1/healthz", timeout=CONNECT_SECONDS, verify=secure)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
        return str(error) or type(error).__name__
    except httpx.HTTPError:
        return None
    return None


class Stop:
    """A signal handler that records SIGTERM or SIGINT, so that a loop can end after the current
    step. While `graceful` is False, there is nothing to save, and the first signal ends the program
    immediately. A second signal always ends the program immediately."""

    def __init__(self) -> None:
        self.graceful = False
        self.signum: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code by the shell's convention: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + (self.signum or 0)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        del frame
        again = self.signum is not None
        self.signum = signum
        if again or not self.graceful:
            raise SystemExit(self.exit_code)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Yield a Stop that receives SIGTERM and SIGINT during the `with` block. Outside of the main
    thread, it receives no signals."""
    stop = Stop()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def run_program(main: Callable[[C], object], config: type[C]) -> NoReturn:
    """Call `main` with the command line's options, then end the process. The exit code and the
    messages are the same as without this function.

    Python's teardown is skipped, because compiled parts of the SDK and its dependencies sometimes
    abort the process during the teardown (once in 123 runs on a busy machine). After an abort, a
    finished run would count as failed, and a failed run would lose its error message.
    """
    code = 0
    try:
        main(parse_arguments(config))
    except SystemExit as stop:
        code = _exit_code(stop)
    except Exception as error:  # noqa: BLE001 - printed as Python would
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _exit_code(stop: SystemExit) -> int:
    """Return the exit code of `stop`. Print its message, if any, as Python does."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def service_error(error: BaseException) -> BaseException | None:
    """Return the first error of the SDK in the chain of causes of `error`; None if the chain has
    no error of the SDK."""
    import tinker

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, tinker.TinkerError):
        cause = cause.__cause__
    return cause
