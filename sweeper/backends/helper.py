"""A process that has what a launcher would not have in its own: a platform's client, which takes
long to load, or ends its process when it is cut off.

It reads requests, a line of JSON each, and answers with a line: `{"answer": ...}`, `{"refused":
why}` for what the platform will never do, `{"silent": why}` where it did not answer. The first
opens it (`{"do": "open", ...}`). It ends with its input. `serve` is its side, `Helper` the
launcher's.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from sweeper.backends.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["Helper", "serve"]

_SECONDS = 20.0
"""How long it may take for an answer."""
_AGAIN_SECONDS = 2.0, 30.0
"""When another is started after one that gave none: at first, and at most."""


class Helper:
    """The process that executes `module`, started when it is asked and ended when it does not
    answer. `what` is the platform's name, `opening` what the first request says."""

    def __init__(
        self, what: str, module: str, opening: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        self._what, self._opening = what, {"do": "open", **opening}
        self._argv = [sys.executable, "-P", "-m", module]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(*_AGAIN_SECONDS)
        self._rest = b""

    def ask(self, do: str, **about: object) -> object:
        """Its answer, as JSON has it. Raises `Unreachable` where there is none,
        `EnvironmentFailure` for what the platform refuses for good."""
        if self._process is None:
            self._backoff.check()
            self._start()
        return self._ask({"do": do, **about})

    def end(self) -> None:
        """End it. Jobs go on."""
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
            start_new_session=True,  # Ctrl-C is the launcher's
        )
        try:
            self._ask(self._opening)
        except (EnvironmentFailure, Unreachable) as error:
            self.end()
            where = str(self._opening.get("address", self._what))
            said = str(error).removeprefix(f"{self._what}: ")
            failure = Unreachable(f"{self._what}: nothing answers at {where}: {said}")
            self._backoff.failed(failure)
            raise failure from error

    def _ask(self, request: Mapping[str, object]) -> object:
        try:
            said: dict[str, object] = json.loads(
                self._exchange(json.dumps(request).encode() + b"\n")
            )
        except (OSError, ValueError) as error:
            self.end()
            failure = Unreachable(f"{self._what}: {error}")
            self._backoff.failed(failure)
            raise failure from error
        if "answer" in said:
            self._backoff.succeeded()
            return said["answer"]
        if "refused" in said:
            raise EnvironmentFailure(f"{self._what}: {said['refused']}")
        raise Unreachable(f"{self._what}: {said['silent']}")

    def _exchange(self, line: bytes) -> bytes:
        """A request for an answer. Raises `OSError`."""
        process = self._process
        assert process and process.stdin and process.stdout  # noqa: S101 - it was started
        process.stdin.write(line)
        process.stdin.flush()
        deadline = time.monotonic() + _SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no answer within {_SECONDS:g} s")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    raise ConnectionError("its client was cut off, and has ended")
                self._rest += chunk
        answer, _, self._rest = self._rest.partition(b"\n")
        return answer


def serve(opened: Callable[..., object]) -> None:
    """Be the process: `opened` makes the object whose methods are asked for. Ends with its
    input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the client prints is no answer
    at_work: object = None
    for line in sys.stdin:
        said: dict[str, object]
        try:
            request: dict[str, object] = json.loads(line)
            verb = str(request.pop("do"))
            if verb == "open":
                at_work = opened(**request)
                said = {"answer": None}
            else:
                said = {"answer": getattr(at_work, verb)(**request)}
        except (ValueError, TypeError) as error:
            said = {"refused": _line(error)}
        except Exception as error:  # noqa: BLE001 - of the client's, whose kinds change
            said = {"silent": _line(error)}
        print(json.dumps(said), file=answers, flush=True)
    os._exit(0)  # whatever threads the client has


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
