"""Errors of a model service get a meaning and advice in a failed run's reason; others do not."""

import signal

import pytest

from sweeper.worker.outcome import Ending, judge

NO_CREDIT, NOT_THERE = "no credit or no valid payment", "no such model or checkpoint"
FAILED, INFINITE = "the service itself failed", "a tensor is not finite"
LONG = "a prompt with its answer is longer than the model's context"
BAD = "tinker.BadRequestError: Error code: 400 - "
ADVICE = {
    "tinker.BillingError: Error code: 402 - {'detail': 'no credit'}": NO_CREDIT,
    "tinker.AuthenticationError: Error code: 401 - {}": "rejects the key",
    "tinker.PermissionDeniedError: Error code: 403 - {}": "may not use the requested resource",
    "tinker._exceptions.NotFoundError: Error code: 404 - {'detail': 'x'}": NOT_THERE,
    "tinker.NotFoundError: no such model": NOT_THERE,
    "tinker.ConflictError: Error code: 409 - {'detail': 'busy'}": "conflicts with another",
    "tinker.RateLimitError: Error code: 429 - {}": "lower `max_parallel`",
    "tinker.InternalServerError: Error code: 503 - upstream": FAILED,
    "httpx.HTTPStatusError: Server error '502 Bad Gateway' for url 'https://tinker.x'": FAILED,
    f"{BAD}{{'detail': 'NaN in tensor advantages'}}": INFINITE,
    "tinker.RequestFailedError: the model's logits are not finite": INFINITE,
    f"{BAD}Prompt length plus max_tokens exceeds the model's context window: 9 + 9 > 16": LONG,
    "tinker.RequestFailedError: the prompt has 99 tokens; the context has room for 64": LONG,
}
OTHERS = (
    "ValueError: expected 404 rows",
    "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
    "mypackage.NotFoundError: no tokenizer",
    "httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://hub.example/m'",
    "AssertionError: loss is nan",
    "RuntimeError: the sentence is too long",
)


def detail(line: str) -> str:
    tail = f"Traceback (most recent call last):\n  File 'x.py', line 1\n{line}\n".encode()
    outcome = judge(Ending(1, None, tail=tail))
    assert outcome["detail"] is not None
    return outcome["detail"]


@pytest.mark.parametrize(("line", "advice"), ADVICE.items())
def test_an_error_of_the_service_gets_advice(line: str, advice: str) -> None:
    assert detail(line).startswith(line[:60]) and advice in detail(line)[len(line[:150]) :]


@pytest.mark.parametrize("line", OTHERS)
def test_other_errors_are_not_changed(line: str) -> None:
    assert detail(line) == line


def test_a_stopped_run_gets_no_advice() -> None:
    outcome = judge(Ending(1, None, stopped=signal.SIGTERM, tail=b"Error code: 503"))
    assert outcome["detail"] is None
