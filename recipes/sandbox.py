"""Calls a user function, such as `score(question: str, response: str, answer: str) -> float`, in a
separate process with limits. The limits do not stop a malicious function (isolated.py does)."""

import ast
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from .service import RecipeError

_LOADED_SECONDS = 30.0
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PIECE = 65536


class Scored(NamedTuple):
    """The result of a call: a score, or the reason why there is no score."""

    value: float | None
    error: str | None = None


class Function(ABC):
    """A user function. `function` is `path/to/file.py:name`. `examples` is the value of EXAMPLES
    in the file; None without EXAMPLES."""

    function: str
    examples: Any = None

    def begin(self, question: str, response: str, answer: str) -> Callable[[], Scored]:
        """Begin a call. The returned function waits for the score."""
        scored = self(question, response, answer)
        return lambda: scored

    @abstractmethod
    def __call__(self, question: str, response: str, answer: str) -> Scored:
        """Call the function. A call that exceeds the time limit is ended, and has no score."""

    @abstractmethod
    def close(self) -> None:
        """End the process and its child processes."""

    def check(self, examples: Sequence[tuple[str, str, str]]) -> None:
        """Call the function on `examples`, which are (question, response, answer), and on the
        file's EXAMPLES, which are (question, response, answer, score). Raises RecipeError if a
        call fails, or if a score differs from the score in EXAMPLES."""
        for question, response, answer in examples:
            scored = self(question, response, answer)
            if scored.error is not None:
                arguments = f"question={question!r}, response={response!r}"[:_LONGEST_SHOWN]
                raise RecipeError(f"{self.function} fails on {arguments}: {scored.error}")
        for number, example in enumerate(self._own_examples()):
            *arguments, expected = example
            scored = self(*arguments)
            if scored.error is not None:
                raise RecipeError(f"{self.function} fails on EXAMPLES[{number}]: {scored.error}")
            if scored.value is None or abs(scored.value - expected) > _CLOSE:
                raise RecipeError(
                    f"{self.function} gives {scored.value} for EXAMPLES[{number}], not {expected}"
                )

    def _own_examples(self) -> list[tuple[str, str, str, float]]:
        examples: Any = [] if self.examples is None else self.examples
        if not isinstance(examples, list) or not all(map(_is_example, examples)):
            raise RecipeError(
                f"{self.function}: EXAMPLES must be a list of (question, response, answer, score)"
            )
        return [tuple(example) for example in examples]


def find_function(function: str) -> tuple[str, str]:
    """Return the absolute path of the file in `path/to/file.py:name`, and the name of the
    function. Raises RecipeError if `function` has another form, or if the file is missing."""
    path, _, name = function.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise RecipeError(f"{function!r} is not a function of a file: write path/to/file.py:name")
    if not os.path.isfile(path):
        raise RecipeError(f"{function}: no file {path}")
    return os.path.abspath(path), name


def check_source(function: str) -> None:
    """Raise RecipeError if the file of `path/to/file.py:name` is missing, is not Python, or never
    mentions the name. The file is not executed."""
    path, name = find_function(function)
    try:
        with open(path, "rb") as file:
            source = file.read()
        ast.parse(source)
    except OSError as error:
        raise RecipeError(f"{function}: cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = "" if line is None else f" (line {line})"
        reason = getattr(error, "msg", None) or error
        raise RecipeError(f"{function}: not valid Python{place}: {reason}") from None
    if name.encode() not in source:
        raise RecipeError(f"{function}: the file has no function {name!r}")


class _Child(NamedTuple):
    process: subprocess.Popen[bytes]
    asks: IO[bytes]
    answers: IO[bytes]


class Sandbox(Function):
    """A process that calls the function. If a call takes too long or ends the process, the next
    call starts a new process."""

    def __init__(self, function: str, seconds: float = 5.0, megabytes: int = 512) -> None:
        """`function` is `path/to/file.py:name`. Raises RecipeError if the function cannot be
        loaded."""
        self.function, self._seconds, self._megabytes = function, seconds, megabytes
        self._path, self._name = find_function(function)
        self._child: _Child | None = None
        self._rest = b""
        loaded = self._start()
        if loaded is not None:
            self.close()
            raise RecipeError(f"{function}: {loaded}")

    def __call__(self, question: str, response: str, answer: str) -> Scored:
        if self._child is None and (failed := self._start()) is not None:
            return Scored(None, failed)
        line = json.dumps([question, response, answer]) + "\n"
        with suppress(OSError):  # the process has died, which the missing answer reports
            if self._child is not None:
                self._child.asks.write(line.encode())
                self._child.asks.flush()
        reply = self._answer(self._seconds)
        return Scored(None, reply) if isinstance(reply, str) else Scored(reply.get("value"))

    def _start(self) -> str | None:
        """Start the process and load the file. Return the error, or None if the file was loaded."""
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandboxed.py")
        self._rest = b""
        process = subprocess.Popen(
            [sys.executable, "-I", here, self._path, self._name, str(self._megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.path.dirname(self._path),
            env={key: os.environ[key] for key in _PASSED_ON if key in os.environ},
            start_new_session=True,
        )
        if process.stdin is not None and process.stdout is not None:  # always true: both are pipes
            self._child = _Child(process, process.stdin, process.stdout)
        answer = self._answer(_LOADED_SECONDS)
        if isinstance(answer, str):
            return answer
        self.examples = answer.get("value")
        return None

    def _answer(self, seconds: float) -> dict[str, Any] | str:
        """Return the next answer of the process, or an error message. If the process does not
        answer within `seconds`, end it."""
        line = self._line(time.monotonic() + seconds)
        if line is None:
            self.close()
            return f"it took longer than {seconds:g} s"
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            return f"its process ended ({self._ended()})"
        return str(answer["error"]) if "error" in answer else answer

    def _line(self, deadline: float) -> bytes | None:
        """Return a line of the process's output; b"" if the process has ended, None after the
        deadline."""
        if self._child is None:
            return b""
        out = self._child.answers.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    return None
                piece = os.read(out, _PIECE)
                if not piece:
                    return b""
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ended(self) -> str:
        child = self._child
        self.close()
        code = child.process.returncode if child is not None else 0
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"exit code {code}"

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(OSError):
            child.asks.close()
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(0.05)
        with suppress(OSError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        child.answers.close()


_CLOSE = 1e-6
_LONGEST_SHOWN = 200


def _is_example(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(text, str) for text in value[:3])
        and isinstance(value[3], int | float)
    )
