"""Runs a platform's client in a separate process, because some clients load slowly or end the
process that uses them. Requests and answers are lines of JSON."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from sweeper.common.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable

_SECONDS = 20.0
"""Seconds to wait for an answer."""
_AGAIN_SECONDS = 2.0, 30.0
"""Backoff before starting a new process after a missing answer: first and longest wait."""


class Helper:
    """A process that executes `module`. A request starts the process if none is running. A new
    process first gets the request `opening`. The process is killed if it does not answer within
    `seconds`. Error messages begin with `platform`."""

    def __init__(
        self,
        platform: str,
        module: str,
        opening: Mapping[str, object],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = _SECONDS
        self._platform, self._opening = platform, {"do": "open", **opening}
        self._argv = [sys.executable, "-P", "-m", module]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(*_AGAIN_SECONDS, clock)
        self._rest = b""

    def ask(self, do: str, **about: object) -> object:
        """Send the request `do` with the arguments `about`. Return the answer, decoded from JSON.
        Raises `EnvironmentFailure` if the request is refused, and `Unreachable` after any other
        failure."""
        if self._process is None:
            self._backoff.check()
            self._start()
        return self._ask({"do": do, **about})

    def end(self) -> None:
        """End the process. Jobs on the platform continue."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process, self._rest = None, b""

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._argv,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach only the launcher.
        )
        try:
            self._ask(self._opening)
        except (EnvironmentFailure, Unreachable) as error:
            self.end()
            where = str(self._opening.get("address", self._platform))
            message = str(error).removeprefix(f"{self._platform}: ")
            failure = Unreachable(f"{self._platform}: {where} does not answer: {message}")
            self._backoff.failed(failure)
            raise failure from error

    def _ask(self, request: Mapping[str, object]) -> object:
        try:
            answer: dict[str, object] = json.loads(
                self._exchange(json.dumps(request).encode() + b"\n")
            )
        except (OSError, ValueError) as error:
            self.end()
            failure = Unreachable(f"{self._platform}: {error}")
            self._backoff.failed(failure)
            raise failure from error
        if "answer" in answer:
            self._backoff.succeeded()
            return answer["answer"]
        if "refused" in answer:
            raise EnvironmentFailure(f"{self._platform}: {answer['refused']}")
        raise Unreachable(f"{self._platform}: {answer['silent']}")

    def _exchange(self, line: bytes) -> bytes:
        process = self._process
        assert process and process.stdin and process.stdout  # noqa: S101 - it was started
        process.stdin.write(line)
        process.stdin.flush()
        deadline = time.monotonic() + self.seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no answer within {self.seconds:g} s")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise ConnectionError("the client process ended before it answered")
                self._rest += chunk
        answer, _, self._rest = self._rest.partition(b"\n")
        return answer


def serve(opened: Callable[..., object]) -> None:
    """Serve requests until standard input ends, then exit the process. The request `open` calls
    `opened`. Later requests call methods of the object that `opened` has returned."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Output of the client must not mix with the answers.
    at_work: object = None
    for line in sys.stdin:
        answer: dict[str, object]
        try:
            request: dict[str, object] = json.loads(line)
            verb = str(request.pop("do"))
            if verb == "open":
                at_work = opened(**request)
                answer = {"answer": None}
            else:
                answer = {"answer": getattr(at_work, verb)(**request)}
        except (ValueError, TypeError) as error:
            answer = {"refused": _line(error)}
        except Exception as error:  # noqa: BLE001 - the client's error types change between versions
            answer = {"silent": _line(error)}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # Exit even if threads of the client still run.


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
