"""The child process of sandbox.py: `python -I sandboxed.py score.py name megabytes [seconds]`
calls one function for requests on standard input. It uses only the standard library, since it is
executed outside the package."""

# Each input line is a JSON list of arguments, each output line {"value": ...} or {"error": "..."}.
# The first output line says whether the file could be loaded, with its EXAMPLES. Output of the
# function is dropped.

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

_NEW_NETWORK, _NEW_USERS = 0x40000000, 0x10000000
_LONGEST = 400


def confine(megabytes: int) -> None:
    """Limit the memory and the open files of this process, forbid writing to files, and disconnect
    the network if the kernel allows it."""
    size = megabytes << 20
    for kind, most in (
        (resource.RLIMIT_AS, size),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, most if hard < 0 else min(most, hard)))
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_NETWORK) != 0:
            libc.unshare(_NEW_USERS | _NEW_NETWORK)


def load(path: str, name: str) -> tuple[Any, Any]:
    """Return the function `name` of a file, and the file's EXAMPLES (None without EXAMPLES)."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("sandboxed_function", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"it has no function {name!r}")
    return function, getattr(module, "EXAMPLES", None)


def error_text(error: BaseException, path: str) -> str:
    """Describe an error in one line, with a line number in the user's file if known."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    place = f" (line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())[:_LONGEST]
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


class TooLong(BaseException):
    """Raised if a call exceeds its time. It is not an `Exception`, because user code may catch
    every `Exception`."""


def limit_time(seconds: float) -> Callable[[Any], Any]:
    """Return a decorator that limits the time of a function's calls. A longer call raises TooLong.
    If the call still runs a second later, the process ends."""
    fired = [0]

    def ring(*_: Any) -> None:
        fired[0] += 1
        if fired[0] > 1:
            os._exit(124)
        raise TooLong(f"it took longer than {seconds:g} s")

    def limited(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            fired[0] = 0
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            try:
                return function(*arguments)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        return call

    signal.signal(signal.SIGALRM, ring)
    return limited


def number(value: Any) -> float:
    """Convert a score to float. Raises TypeError if `value` is neither a number nor a truth value,
    and ValueError if the number is not finite."""
    if not isinstance(value, int | float):
        raise TypeError(f"the function returned {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"the function returned {value}")
    return float(value)


def main() -> None:
    """Answer requests until standard input ends."""
    path, name, megabytes, *seconds = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    confine(int(megabytes))
    try:
        function, examples = load(path, name)
        if seconds:
            function = limit_time(float(seconds[0]))(function)
        say({"value": examples})
    except BaseException as error:  # noqa: BLE001  the user's file may raise anything
        say({"error": error_text(error, path)})
        return
    for line in sys.stdin:
        try:
            say({"value": number(function(*json.loads(line)))})
        except TooLong as error:
            say({"error": str(error)})
        except MemoryError:
            say({"error": f"MemoryError: it needs more than {megabytes} MB"})
        except BaseException as error:  # noqa: BLE001  likewise
            say({"error": error_text(error, path)})


if __name__ == "__main__":
    main()
