"""A clock that the test advances, and a backend that executes nothing."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from sweeper.backends.base import Backend, BackendType, JobSpec, JobState, JobStatus
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["FAKE", "FakeBackend", "FakeClock"]


class FakeClock:
    """Time that passes only in `sleep`. Pass `clock` and `clock.sleep` to a launcher."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds


class FakeBackend(Backend):
    """A backend that executes nothing. Jobs run until the test ends them with `end` or makes the
    backend forget them with `lose`.

    `submitted` lists the tokens of all accepted submissions in order. A job that was submitted
    twice is in it twice. `shown` lists the arguments of the calls of `show`. `not_yet` holds tokens
    that cannot be stopped yet. With `reachable = False`, `submit`, `find`, `poll`, `cancel`, `logs`
    and `show` raise `Unreachable`, but a `poll` of no tokens does not. With `lose_reply = True`,
    the next submission is accepted and then raises `Unreachable`. If `refusal` is set, every
    submission of jobs raises it and starts nothing.
    """

    name = "fake"
    shows = True

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.jobs: dict[str, JobStatus] = {}
        self.shown: list[tuple[str, dict[str, str]]] = []
        self.not_yet: set[str] = set()
        self.reachable = True
        self.lose_reply = False
        self.refusal: EnvironmentFailure | None = None

    def end(self, token: str, code: int | None = 0, reason: str | None = None) -> None:
        """Make the backend report the job as ended."""
        self.jobs[token] = JobStatus(JobState.ENDED, code, reason)

    def lose(self, token: str) -> None:
        """Make the backend forget the job."""
        del self.jobs[token]

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        self._answer()
        if self.refusal is not None and jobs:
            raise self.refusal
        for job in jobs:
            self.submitted.append(job.token)
            self.jobs[job.token] = JobStatus(JobState.RUNNING)
        if self.lose_reply:
            self.lose_reply = False
            raise Unreachable("fake: the reply was lost")

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        self._answer()
        return {token: token for token in tokens if token in self.jobs}

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        if tokens:
            self._answer()
        return {token: self.jobs.get(token, JobStatus(JobState.ABSENT)) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> Collection[str]:
        self._answer()
        self.cancelled.extend(token for token in tokens if token in self.jobs)
        return self.not_yet & {*tokens}

    def logs(self, token: str) -> Iterator[str]:
        self._answer()
        return iter((f"fake log of {token}",) if token in self.jobs else ())

    def show(self, status: str, words: Mapping[str, str]) -> None:
        self._answer()
        self.shown.append((status, dict(words)))

    def _answer(self) -> None:
        if not self.reachable:
            raise Unreachable("fake: no answer")


def _open(sweep: str, folder: str, options: Mapping[str, object]) -> FakeBackend:
    del sweep, folder, options
    return FakeBackend()


FAKE = BackendType("fake", "Executes nothing.", _open)
"""The description of `FakeBackend`. A test offers it with `sweeper.backends.registered`."""
