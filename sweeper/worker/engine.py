"""Finds out whether a failed attempt failed because its engine went away. An engine takes with it
what training clients hold, so that is no fault of the recipe's."""

from sweeper.model.job import Job
from sweeper.model.states import Event
from sweeper.worker.outcome import Judged

__all__ = ["blame"]

_REASONS = frozenset({"error", "incomplete", "timeout"})
_ASK_SECONDS = 5.0


def blame(job: Job, outcome: Judged) -> Judged:
    """Correct a failed attempt's outcome: if its engine has gone away since it began, or was
    started anew, the reason becomes `service`."""
    began = job.engine
    if began is None or outcome["event"] is not Event.FAILED or outcome["reason"] not in _REASONS:
        return outcome
    from sweeper.engine.lifecycle import knock  # most workers never need it

    url = began.url
    started = knock(url, _ASK_SECONDS)
    if started == began.started:
        return outcome
    how = "does not answer any more" if started is None else "was started again meanwhile"
    return {**outcome, "reason": "service", "detail": f"the engine at {url} {how}"}
