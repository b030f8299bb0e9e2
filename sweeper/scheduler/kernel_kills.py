"""Tells which jobs the kernel killed for want of memory. A launcher can count the kills in its own
control group, in which the jobs of this machine usually are."""

import signal
from collections.abc import Mapping

from sweeper.backends.base import JobState, JobStatus
from sweeper.worker.outcome import MemoryKills

__all__ = ["KernelKills"]

_SIGKILL = (-signal.SIGKILL, 128 + signal.SIGKILL)


class KernelKills:
    """Remembers which jobs ended at the moment in which the kernel killed a process of our
    group."""

    def __init__(self) -> None:
        self._counter = MemoryKills()
        self._counts = (0, 0)  # of the last two looks: a job ends a moment after its kill
        self._ended: dict[str, bool] = {}

    def look(self, statuses: Mapping[str, JobStatus]) -> None:
        """Note the jobs that have ended since the last look, as the backend says."""
        count = self._counter.count()
        ended = {job: s for job, s in statuses.items() if s.state is JobState.ENDED}
        for job, status in ended.items():
            killed = count > self._counts[0] and status.code in _SIGKILL
            self._ended[job] = self._ended.get(job, False) or killed
        self._ended = {job: killed for job, killed in self._ended.items() if job in ended}
        self._counts = (self._counts[1], count)

    def killed(self, job: str) -> bool:
        """Whether the kernel has killed the job, which has ended."""
        return self._ended.get(job, False)
