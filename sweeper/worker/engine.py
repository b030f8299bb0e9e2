"""Checks whether an attempt failed because its engine went away. The engine holds the state of the
training clients, so such a failure is not the recipe's fault."""

from sweeper.sweep.job import Job
from sweeper.sweep.states import Event
from sweeper.worker.outcome import Judged

_REASONS = frozenset({"error", "incomplete", "timeout"})
_ASK_SECONDS = 5.0


def blame(job: Job, outcome: Judged) -> Judged:
    """Correct a failed attempt's outcome. If its engine has gone or has been restarted since the
    attempt began, the reason becomes `service`."""
    began = job.engine
    if began is None or outcome["event"] is not Event.FAILED or outcome["reason"] not in _REASONS:
        return outcome
    from sweeper.engine.lifecycle import knock  # not needed by most workers

    url = began.url
    started = knock(url, _ASK_SECONDS)
    if started == began.started:
        return outcome
    how = "does not answer any more" if started is None else "was started again meanwhile"
    return {**outcome, "reason": "service", "detail": f"the engine at {url} {how}"}
