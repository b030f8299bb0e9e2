"""What Slurm's accounting database remembers of jobs that slurmctld has forgotten."""

import time
from collections.abc import Callable, Set

from sweeper.backends.backoff import Backoff
from sweeper.backends.base import JobState
from sweeper.backends.slurm.commands import Job, Slurm, status_of
from sweeper.errors import EnvironmentFailure, Unreachable

__all__ = ["Accounting", "forgets"]

_AGAIN_SECONDS = 60.0
"""How long the database's word stands: it is asked for what is over."""
_DAYS = 30


def forgets(slurm: Slurm) -> str | None:
    """Why there is nothing to be learned from accounting; None where there is."""
    found = slurm.configuration()
    if found.get("AccountingStorageType", "none").endswith(("none", "(null)")):
        return "there is none"
    kept = found.get("AccountingStoreFlags", "")
    if "job_comment" not in kept and found.get("AccountingStoreJobComment", "").lower() != "yes":
        return "it keeps no comments, by which jobs are known (AccountingStoreFlags=job_comment)"
    return None


class Accounting:
    """The sweep's jobs that are over, by sacct."""

    def __init__(
        self, slurm: Slurm, mark: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slurm = slurm
        self._mark = mark
        self._clock = clock
        self._jobs: list[Job] = []
        self._asked = 0.0
        self._missed: set[str] = set()
        self._backoff = Backoff(5.0, 60.0, clock)

    def over(self, missed: Set[str]) -> list[Job]:
        """What the database has; nothing where there is none. It is asked when one of these tokens
        was not missed from the queue when it was asked last, and else now and then. Raises
        `Unreachable` where it does not answer."""
        now = self._clock()
        if missed <= self._missed and now - self._asked <= _AGAIN_SECONDS:
            return self._jobs
        if forgets(self._slurm):
            return []
        self._backoff.check()
        try:
            found = self._slurm.accounted(self._mark, _DAYS)
        except Unreachable as error:
            self._backoff.failed(error)
            raise
        except EnvironmentFailure:
            return []  # no sacct on this machine
        self._backoff.succeeded()
        # One that it takes to be at work, and slurmctld does not know, ended without its hearing.
        self._jobs = [job for job in found if status_of(job).state is JobState.ENDED]
        self._asked = now
        self._missed |= missed
        return self._jobs

    def there(self, tokens: Set[str]) -> None:
        """These are in the queue, or on their way there: when they are missed from it the database
        may know more of them than it did."""
        self._missed.difference_update(tokens)
