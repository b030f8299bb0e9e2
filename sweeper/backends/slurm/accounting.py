"""Reads the outcomes of old jobs from Slurm's accounting database."""

import time
from collections.abc import Callable, Set

from sweeper.backends.base import JobState
from sweeper.backends.slurm.commands import Job, Slurm, status_of
from sweeper.common.backoff import Backoff
from sweeper.errors import EnvironmentFailure, Unreachable

_AGAIN_SECONDS = 60.0
"""Seconds that an answer of the database stays valid."""
_DAYS = 30


def forgets(slurm: Slurm) -> str | None:
    """Return why accounting cannot be used; None if it can."""
    configuration = slurm.configuration()
    if configuration.get("AccountingStorageType", "none").endswith(("none", "(null)")):
        return "accounting is off"
    flags = configuration.get("AccountingStoreFlags", "")
    if (
        "job_comment" not in flags
        and configuration.get("AccountingStoreJobComment", "").lower() != "yes"
    ):
        return (
            "the accounting database stores no job comments, which sweeper needs to "
            "identify jobs (AccountingStoreFlags=job_comment)"
        )
    return None


class Accounting:
    """The sweep's ended jobs, from sacct."""

    def __init__(
        self, slurm: Slurm, folder_hash: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slurm = slurm
        self._folder_hash = folder_hash
        self._clock = clock
        self._jobs: list[Job] = []
        self._queried = 0.0
        self._missed: set[str] = set()
        self._backoff = Backoff(5.0, 60.0, clock)

    def over(self, missed: Set[str]) -> list[Job]:
        """Return the sweep's ended jobs in the accounting database, or [] if accounting cannot be
        used. `missed` are tokens that are not in the queue. Query the database only if a token is
        newly missing or the last answer is older than `_AGAIN_SECONDS`. Raises `Unreachable` if the
        database does not answer."""
        now = self._clock()
        if missed <= self._missed and now - self._queried <= _AGAIN_SECONDS:
            return self._jobs
        if forgets(self._slurm):
            return []
        self._backoff.check()
        try:
            jobs = self._slurm.accounted(self._folder_hash, _DAYS)
        except Unreachable as error:
            self._backoff.failed(error)
            raise
        except EnvironmentFailure:
            return []  # There is no sacct on this machine.
        self._backoff.succeeded()
        # Skip a job that runs according to the database. slurmctld does not know it, so its end was
        # not recorded.
        self._jobs = [job for job in jobs if status_of(job).state is JobState.ENDED]
        self._queried = now
        self._missed |= missed
        return self._jobs

    def note_present(self, tokens: Set[str]) -> None:
        """Note that these tokens are in the queue or were just submitted. If one of them is missing
        later, `over` queries the database again."""
        self._missed.difference_update(tokens)
