"""Rewards of answers: by comparison with the right answer, by a user function, or by a
preference model. All answers of a batch are submitted before the first result is awaited."""

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from . import chat, rollouts, samplers
from .rollouts import Problem
from .rundir import RunDirectory
from .sandbox import Function
from .service import RecipeError, Service

JUDGE = "Is this answer good?"
VERDICT = "yes"
"""`JUDGE` is the question that a preference model reads after an answer. `VERDICT` is the model's
reply if the answer is good."""


FAILURES = "reward_failures.jsonl"
"""The end of the name of a step's file with the answers that could not be judged."""


class Failure(NamedTuple):
    """An answer that could not be judged. Its reward is 0."""

    error: str
    question: str
    response: str


class JudgeFailed(RecipeError):
    """Raised if no answer of a step could be judged."""


class Judging(NamedTuple):
    """The number of a step's answers, and the number of answers that could not be judged.
    If no answer could be judged, `broken` is the reason, else None."""

    failed: int
    answers: int
    broken: str | None = None

    @property
    def share(self) -> float:
        """The share of answers that could not be judged."""
        return self.failed / max(self.answers, 1)

    def metrics(self, kind: str) -> dict[str, float]:
        """Return the number and the share of failures as metrics. `kind` is `reward` or
        `verifier`."""
        return {f"env/all/{kind}_failures": self.failed, f"env/all/frac_{kind}_failed": self.share}

    def check(self) -> None:
        """Raise JudgeFailed if no answer could be judged."""
        if self.broken is not None:
            raise JudgeFailed(self.broken)


def judging(
    run: RunDirectory, step: int, judge: str, failures: Sequence[Failure], answers: int, name: str
) -> Judging:
    """Write the failures of a step to a file whose name begins with `name`, and print the first
    failure. Return the number of answers and of failures. `judge` is a phrase for the judge, such
    as "the verifier"."""
    if not failures:
        return Judging(0, answers)
    file = f"{name}{FAILURES}"
    lines = "".join(json.dumps(failure._asdict()) + "\n" for failure in failures)
    run.write_iteration(step, file, lines)
    count = f"all {answers}" if len(failures) == answers else f"{len(failures)} of {answers}"
    reason = " ".join(failures[0].error.split())
    text = f"{judge} failed on {count} answers of step {step}: {reason}"
    print(f"{text} (iteration_{step:06d}/{file})", flush=True)
    return Judging(len(failures), answers, text if len(failures) == answers else None)


class Reward(Protocol):
    """The interface of all rewards."""

    failures: list[Failure]
    """The failures since the caller last emptied the list."""

    def begin(self, problem: Problem, text: str, ended: bool) -> Callable[[], float]:
        """Begin to judge an answer. The returned function waits for the reward."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class TextReward:
    """A reward by comparison with the right answer: 1 for the exact text and 0 otherwise. If
    `dense`, the share of right characters (`rollouts.share_right`)."""

    def __init__(self, dense: bool) -> None:
        self._measure = rollouts.share_right if dense else rollouts.exact
        self.failures: list[Failure] = []

    def begin(self, problem: Problem, text: str, ended: bool) -> Callable[[], float]:
        """Judge the answer immediately."""
        reward = float(self._measure(problem.answer, text, ended))
        return lambda: reward

    def close(self) -> None:
        """Do nothing."""


class FunctionReward:
    """A reward by the function `score(question, response, answer)` of a file, called in a
    separate process; see sandbox.py and isolated.py."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.failures: list[Failure] = []

    def begin(self, problem: Problem, text: str, ended: bool) -> Callable[[], float]:
        """Begin a call. If the function fails, the reward is 0, and the failure is added to
        `failures`."""
        del ended
        question = problem.messages[-1]["content"]
        scored = self.function.begin(question, text, problem.written)

        def reward() -> float:
            value, error = scored()
            if error is not None or value is None:
                self.failures.append(Failure(error or "no score", question, text))
            return value or 0.0

        return reward

    def check(self, problems: list[Problem]) -> None:
        """Call the function on the problems' right answers and on the EXAMPLES of its file. Raises
        RecipeError if a call fails, or if a score differs from the score in EXAMPLES."""
        examples = [(p.messages[-1]["content"], p.answer, p.written) for p in problems]
        self.function.check(examples)

    def close(self) -> None:
        """End the process."""
        self.function.close()


class ModelReward:
    """A reward by a preference model (reward.py): the probability that the model prefers the answer
    over the right answer. The right answer itself gets 0.5.

    A score alone has no meaning, because the model was trained only on differences between scores.
    So the score of the right answer is subtracted. Ouyang et al. 2022 (arXiv:2203.02155, section
    3.5) subtract the mean score of demonstrations instead.
    """

    def __init__(
        self, connection: Service, tokenizer: Any, model_name: str, checkpoint: str
    ) -> None:
        self._connection, self._tokenizer = connection, tokenizer
        self._sampler = samplers.open_sampler(connection, model_name, checkpoint)
        self._zeros: dict[tuple[int, ...], Callable[[], float]] = {}
        self.failures: list[Failure] = []

    def begin(self, problem: Problem, text: str, ended: bool) -> Callable[[], float]:
        """Request the scores of the answer and of the right answer. An answer that was cut off gets
        the reward 0, because the model was only trained on whole answers."""
        if not ended:
            return lambda: 0.0
        if text == problem.answer:
            return lambda: 0.5
        score, zero = self._begin_score(problem, text), self._begin_zero(problem)
        return lambda: _chance(score() - zero())

    def _begin_zero(self, problem: Problem) -> Callable[[], float]:
        """Request the score of the right answer, only once for each question."""
        key = tuple(problem.prompt)
        if key not in self._zeros:
            self._zeros[key] = cache(self._begin_score(problem, problem.answer))
        return self._zeros[key]

    def _begin_score(self, problem: Problem, text: str) -> Callable[[], float]:
        """Request an answer's score: the logprob of `VERDICT` after the answer and `JUDGE`."""
        example = judged(self._tokenizer, problem.messages, text)
        logprobs = samplers.begin_answer_logprobs(self._connection, self._sampler, example)
        return lambda: sum(logprobs())

    def close(self) -> None:
        """Do nothing."""


def _chance(ahead: float) -> float:
    """Return 1 / (1 + e^-ahead), the probability that an answer is preferred if its score is
    higher by `ahead` (Bradley and Terry)."""
    return 1 / (1 + math.exp(-ahead)) if ahead >= 0 else math.exp(ahead) / (1 + math.exp(ahead))


def judged(tokenizer: Any, prompt: list[dict[str, str]], answer: str) -> chat.Example:
    """Render a conversation of `prompt`, the answer, `JUDGE` and `VERDICT`. Only `VERDICT` has
    weight."""
    messages = [{"role": "assistant", "content": answer}, {"role": "user", "content": JUDGE}]
    return chat.render_answer(tokenizer, [*prompt, *messages], VERDICT)
