"""Whether the engine that an attempt began with is still there when the attempt has failed. What a
training client holds goes with its engine: then the failure is not the recipe's."""

from typing import Any

from sweeper.model.job import Job
from sweeper.model.states import Event

__all__ = ["blame"]

_REASONS = frozenset({"error", "incomplete", "timeout"})
_ASK_SECONDS = 5.0


def blame(job: Job, outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome of an attempt with this description; where it may have failed because its engine
    went away, or was replaced by another, and that has, the reason is `service`."""
    began = job.engine
    if began is None or outcome["event"] is not Event.FAILED or outcome["reason"] not in _REASONS:
        return outcome
    from sweeper.engine.lifecycle import knock  # most workers never need it

    url = began.url
    started = knock(url, _ASK_SECONDS)
    if started == began.started:
        return outcome
    how = "does not answer any more" if started is None else "was started again meanwhile"
    return outcome | {"reason": "service", "detail": f"the engine at {url} {how}"}
