"""A clock that the test advances, and a backend that executes nothing."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from sweeper.backends.base import Backend, BackendType, JobSpec, JobState, JobStatus
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["FAKE", "FakeBackend", "FakeClock"]


class FakeClock:
    """A clock that only `sleep` advances. Calling the clock returns its time in seconds."""

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

    `submitted` lists the tokens of all accepted jobs in order, with repetitions. `shown` lists the
    arguments of each call of `show`. `not_yet` holds tokens of jobs that `cancel` cannot stop. If
    `reachable` is False, `submit`, `find`, `poll` (of at least one token), `cancel`, `logs` and
    `show` raise `Unreachable`. If `lose_reply` is True, the next `submit` accepts the jobs and then
    raises `Unreachable`. If `refusal` is set, `submit` raises this error instead of accepting jobs.
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
        """Make the backend report that the job `token` has ended."""
        self.jobs[token] = JobStatus(JobState.ENDED, code, reason)

    def lose(self, token: str) -> None:
        """Make the backend forget the job `token`."""
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
