"""The engine's process: lock, socket, record, log and signals."""

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from types import FrameType

import uvicorn

from sweeper import __version__, paths
from sweeper.common.atomic import atomic_write
from sweeper.engine import access_token, model_aliases
from sweeper.engine.app import build
from sweeper.engine.checkpoints import Vault
from sweeper.engine.lifecycle import SERVICE, Settings, log_path, loopback, record_path
from sweeper.engine.models import load_models
from sweeper.engine.service import Service
from sweeper.errors import EngineError

log = logging.getLogger("sweeper.engine")

THREADS = min(2, os.cpu_count() or 1)  # more threads have not been measured (docs/engine.md)
_LOCK_SECONDS = 3.0
_LOG_BYTES = 1_000_000
_DRAIN_SECONDS = 5.0
# With Python's default of 5 ms, a computing thread would delay a responding one.
_SWITCH_SECONDS = 0.0005


@contextlib.contextmanager
def _locked(home: str) -> Generator[None]:
    """Hold the home's lock. Retry for a while, because the previous engine may be stopping."""
    path = os.path.join(paths.engine(home), "lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"another engine serves the folder {home}: see `sweeper engine status`"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is explicit, because otherwise asyncio would not disable Nagle's algorithm, which
    # costs 40 ms per request.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise EngineError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def _listen_as_before(host: str, port: int, home: str) -> socket.socket:
    """Listen on `port`. If `port` is 0, use the port of the home's last engine, because programs
    may still have that address. If the last engine's port is not free, use any free port."""
    path = os.path.join(paths.engine(home), "port")
    listener = None
    if port == 0:
        failures = (OSError, ValueError, OverflowError, EngineError)
        with contextlib.suppress(*failures), open(path, encoding="ascii") as file:
            listener = _listen(host, int(file.read()))
    listener = listener or _listen(host, port)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{listener.getsockname()[1]}\n")
    return listener


def _log_to(home: str) -> None:
    """Log to the terminal and to the home's log. A large log is emptied first."""
    path = log_path(home)
    large = os.path.exists(path) and os.path.getsize(path) > _LOG_BYTES
    formatter = logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%d %H:%M:%S")
    handlers = [
        logging.FileHandler(path, mode="w" if large else "a", encoding="utf-8"),
        logging.StreamHandler(sys.stderr),
    ]
    for name in ("sweeper.engine", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.INFO if name == "sweeper.engine" else logging.WARNING)
        for handler in handlers:
            handler.setFormatter(formatter)
            logger.addHandler(handler)


class _Recorded(uvicorn.Server):
    """A server that writes `record` to the file `path` when it starts, and removes the file when it
    stops."""

    def __init__(self, config: uvicorn.Config, path: str, record: Mapping[str, object]) -> None:
        super().__init__(config)
        self._path, self._record = path, record

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        atomic_write(self._path, json.dumps(self._record).encode())
        log.info(
            "the engine (version %s, process %d) serves %s",
            __version__,
            os.getpid(),
            self._record["url"],
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)


def _run(host: str, port: int, home: str, settings: Settings) -> None:
    aliases = model_aliases.complete(settings.models, settings.aliases)
    settings = settings._replace(aliases=aliases)
    offered = load_models(home, settings.models, aliases)
    vault = Vault(paths.checkpoints(home))
    service = Service(offered, vault, paths.spill(home), THREADS, settings.limits)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    identity = {"service": SERVICE, "pid": os.getpid(), "started": started, "home": home}
    token = settings.token or access_token.read(home) or access_token.new()
    with _listen_as_before(host, port, home) as listener:
        access_token.keep(home, token)
        address, bound = listener.getsockname()[:2]
        url = f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}"
        record = {"schema": 1, "url": url, "pid": os.getpid(), "started": started,
                  "version": __version__, "models": offered.names(),
                  "aliases": dict(settings.aliases), "proves": True}  # fmt: skip
        config = uvicorn.Config(
            build(service, identity, token, address if loopback(address) else None),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,  # long polls would delay the end
            timeout_keep_alive=75,
        )
        server = _Recorded(config, record_path(home), record)

        def finish(_signal: int, _frame: FrameType | None) -> None:
            server.should_exit = True

        # uvicorn replaces these handlers while it serves, and raises the caught signals again
        # afterwards.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, finish)
        # The terminal window or the whole tmux server may be closed. The runs continue and need the
        # engine.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        server.run([listener])
    service.scheduler.stop(_DRAIN_SECONDS)
    log.info("engine stopped")


def run(host: str, port: int, home: str, settings: Settings) -> None:
    """Serve a home until SIGTERM or SIGINT. Raises EngineError if the engine cannot start."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    os.makedirs(paths.engine(home), exist_ok=True)
    with _locked(home):
        _log_to(home)
        try:
            _run(host, port, home, settings)
        except EngineError as error:
            log.error("%s", error)
            raise
        except Exception:
            log.exception("the engine failed")
            raise
