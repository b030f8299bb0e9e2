"""Calls a function of a file in a bubblewrap sandbox, in which the function sees only its own file.
`python -m sweeper.recipes.isolated path/to/file.py:score` tries the function on the file's
EXAMPLES."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sweeper import sandbox
from sweeper.sandbox import Died, Limits, Made, NotThere, Result

from .sandbox import Function, Scored, find_function
from .service import RecipeError, errors_in_one_line

_PROGRAM, _FILE, _CALLS = "/app/sandboxed.py", "/app/function.py", "/app/asked"
_MORE_SECONDS, _MORE_MEGABYTES = 30.0, 64
"""Seconds and megabytes that are added to the function's limits for the interpreter."""
_KEEP, _KEEP_EACH = 1 << 20, 4096
Call = tuple[str, str, str]


@cache
def missing() -> str | None:
    """Return why this machine cannot isolate functions, and the remedy; None if it can."""
    return sandbox.missing("bubblewrap")


class IsolatedFunction(Function):
    """A user function in a sandbox. `begin` queues a call. When a caller waits for a score, all
    queued calls are made together."""

    def __init__(self, function: str, seconds: float = 5.0, megabytes: int = 512) -> None:
        """`function` is `path/to/file.py:name`. Raises RecipeError if the environment cannot be
        opened, or if the function cannot be loaded."""
        self.function, self._seconds, self._megabytes = function, seconds, megabytes
        path, self._name = find_function(function)
        with open(path, "rb") as file:
            self._text = file.read()
        self._begun: list[tuple[Call, list[Scored]]] = []
        limits = Limits(megabytes + _MORE_MEGABYTES, storage_mb=64, processes=16, files=1000)
        self._place = sandbox.open_environment("bubblewrap", Made(limits=limits))
        try:
            self._open()
            self.examples = self._call([])[0].get("value")
        except (NotThere, Died, OSError) as error:
            self.close()
            raise RecipeError(f"{function}: cannot be isolated: {error}") from None
        except RecipeError:
            self.close()
            raise

    def _open(self) -> None:
        """Start the environment and put the program and the function into it."""
        self._place.start()
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandboxed.py")
        with open(here, "rb") as file:
            self._place.put({_PROGRAM: file.read(), _FILE: self._text})
        if self._place.exec("command -v python3", _MORE_SECONDS).code != 0:
            raise RecipeError(
                f"{self.function}: the environment has no python3, which must be in /usr "
                "(Debian: apt-get install python3)"
            )

    def begin(self, question: str, response: str, answer: str) -> Callable[[], Scored]:
        """Queue a call. The returned function waits for the score."""
        into: list[Scored] = []
        self._begun.append(((question, response, answer), into))

        def score() -> Scored:
            if not into:
                begun, self._begun = self._begun, []
                for (_, place), scored in zip(
                    begun, self._score([b[0] for b in begun]), strict=True
                ):
                    place.append(scored)
            return into[0]

        return score

    def __call__(self, question: str, response: str, answer: str) -> Scored:
        return self._score([(question, response, answer)])[0]

    def _score(self, questions: Sequence[Call]) -> list[Scored]:
        """Return the score of each call. If a call ends the process, only this call fails."""
        scores: list[Scored] = []
        while len(scores) < len(questions):
            remaining = questions[len(scores) :]
            try:
                replies = self._call(remaining)
            # The file was loaded successfully before, so this is not a mistake in the settings.
            except RecipeError as error:
                return [*scores, *(Scored(None, str(error)) for _ in remaining)]
            answers = replies[1:]
            scores += [Scored(reply.get("value"), reply.get("error")) for reply in answers]
            if len(answers) < len(remaining):
                scores.append(Scored(None, replies[0]["ended"]))
        return scores

    def _call(self, questions: Sequence[Call]) -> list[dict[str, Any]]:
        """Start a process and make the calls. Return the result of loading the file, followed by
        the results of the calls. If the process ends early, the remaining calls have no result.
        Raises RecipeError if the file cannot be loaded."""
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        limits = f"{self._megabytes} {self._seconds}"
        command = f"python3 -I {_PROGRAM} {_FILE} {self._name} {limits} <{_CALLS} 2>/dev/null"
        seconds = _MORE_SECONDS + (self._seconds + 1.0) * len(questions)
        keep = _KEEP + _KEEP_EACH * len(questions)
        try:
            self._place.put({_CALLS: lines.encode()})
            result = self._place.exec(command, seconds, keep)
        except (Died, OSError):
            result = self._again()
        answers: list[dict[str, Any]] = []
        for line in result.text.split("\n")[:-1]:
            try:
                answer = json.loads(line)
            except ValueError:
                break
            if not isinstance(answer, dict) or len(answers) > len(questions):
                break
            answers.append(answer)
        ended = _ended(result)
        if not answers or "error" in answers[0]:
            raise RecipeError(f"{self.function}: {answers[0]['error'] if answers else ended}")
        return [answers[0] | {"ended": ended}, *answers[1:]]

    def _again(self) -> Result:
        """Replace an environment that a function has ended. Return a result as of a process that
        ended in its first call."""
        self._place.stop()
        try:
            self._open()
        except (Died, NotThere, OSError) as error:
            raise RecipeError(
                f"its environment has ended, and no new one can be opened: {error}"
            ) from None
        return Result(None, b'{"value": null}\n', ended="shell")

    def close(self) -> None:
        self._place.stop()


def _ended(result: Result) -> str:
    if result.ended == "memory":
        return "it took more memory than its environment has"
    if result.ended:
        return "its environment has ended"
    return (
        "it took too long" if result.code == 124 else f"its process ended (exit code {result.code})"
    )


def main(function: str) -> None:
    """Try a function on its own examples. An error is printed in one line, with exit code 1."""
    with errors_in_one_line():
        tried = IsolatedFunction(function)
        try:
            tried.check([])
        finally:
            tried.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
