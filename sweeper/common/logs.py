"""Logging of launchers and workers to a file of limited size. $SWEEPER_LOG sets the level. Until
logging is set up, a `Log` does nothing and does not import `logging`, to keep the start of the
command line fast."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sweeper.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

LEVEL = "SWEEPER_LOG"
SHOWN = "SWEEPER_LOG_SHOWN"
"""If this is set, the messages are also printed on standard error."""
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MOST_BYTES = 1_000_000
"""The largest size of the file in bytes. A full file is renamed, and replaces the previous full
file."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Log:
    """A logger with the name of a module. It writes to `logging` if this process has imported
    `logging` and set up a handler. Otherwise messages are dropped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *values: object) -> None:
        self._log(10, message, values)

    def info(self, message: str, *values: object) -> None:
        self._log(20, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._log(30, message, values)

    def _log(self, level: int, message: str, values: tuple[object, ...]) -> None:
        if (logging := sys.modules.get("logging")) is not None:
            logger = logging.getLogger(self._name)
            if logger.hasHandlers():  # Otherwise Python would print the warnings of a library.
                logger.log(level, message, *values)


class Changes:
    """A logger of a condition that the program checks repeatedly. It logs only changes. `name` is
    the condition's name in messages, and `gone` is the message for its end."""

    def __init__(self, log: Log, name: str, gone: str) -> None:
        self._log, self._name, self._gone = log, name, gone
        self._last: str | None = None

    def see(self, value: str | None) -> None:
        """Log the condition's value if the value has changed. None means that the condition has
        ended."""
        if value == self._last:
            return
        self._last = value
        if value is None:
            self._log.info("%s", self._gone)
        else:
            self._log.warning("%s: %s", self._name, value)


def level() -> int:
    """Return the number of the level in $SWEEPER_LOG. Raises `UsageError` for an unknown level."""
    name = os.environ.get(LEVEL, "").lower() or "info"
    if name not in _LEVELS:
        raise UsageError(f"{LEVEL}={name!r} is not one of {', '.join(_LEVELS)}")
    return _LEVELS[name]


@contextmanager
def logging_to(path: str, redact: Callable[[str], str]) -> Generator[None]:
    """Log to the file at `path` during the block, and also to standard error if $SWEEPER_LOG_SHOWN
    is set. `redact` removes secrets from messages. Write errors are ignored."""
    import logging
    from logging.handlers import RotatingFileHandler

    file = RotatingFileHandler(
        path, maxBytes=MOST_BYTES, backupCount=1, delay=True, encoding="utf-8", errors="replace"
    )
    handlers: list[logging.Handler] = [file]
    if os.environ.get(SHOWN):
        handlers.append(logging.StreamHandler())
    top = logging.getLogger("sweeper")
    before = top.level
    for handler in handlers:
        handler.setFormatter(_formatter(redact))
        handler.setLevel(level())
        handler.handleError = _ignore
        top.addHandler(handler)
    top.setLevel(min(level(), before or level()))
    try:
        yield
    finally:
        top.setLevel(before)
        for handler in handlers:
            top.removeHandler(handler)
            handler.close()


def log_in_a_job(redact: Callable[[str], str]) -> None:
    """If $SWEEPER_LOG is set, log to standard error, which is part of the job's output."""
    if not os.environ.get(LEVEL):
        return
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(redact))
    top = logging.getLogger("sweeper")
    top.addHandler(handler)
    top.setLevel(level())


def _ignore(record: "logging.LogRecord") -> None:
    """Ignore an error of the logger, such as a full disk."""
    del record


def _formatter(redact: Callable[[str], str]) -> "logging.Formatter":
    import logging
    import time

    class Redacted(logging.Formatter):
        """A formatter that writes each log record on one line, with its time in UTC and without
        secrets."""

        converter = time.gmtime

        def format(self, record: "logging.LogRecord") -> str:
            return redact(super().format(record).replace("\n", " | "))

    return Redacted(_FORMAT, "%Y-%m-%dT%H:%M:%SZ")
