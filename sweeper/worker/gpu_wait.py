"""Waits for the GPUs of a run. Loaded only by workers of runs with `launch.gpus`."""

from collections.abc import Callable

from sweeper.common.gpus import NONE_YET, Gpus, Taken
from sweeper.errors import EnvironmentFailure
from sweeper.sweep.job import Job
from sweeper.worker.heartbeat import Heartbeat
from sweeper.worker.job import Prepared
from sweeper.worker.output import say

_SECONDS = 0.5


def with_gpus(
    job: Job, prepared: Prepared, heartbeat: Heartbeat, rest: Callable[[float], bool]
) -> Taken | None:
    """Wait until the GPUs of the run are free, lock them, and let the recipe see only these. `rest`
    waits, and returns False if the worker is to stop; then this returns None. Raises
    `EnvironmentFailure`."""
    gpus = Gpus(job.settings.gpus, job.settings.per_gpu, prepared.environment)
    try:
        while (taken := gpus.take()) is None:
            if heartbeat.gpus is None:
                say(f"sweeper: waiting until {job.settings.gpus} GPU(s) are free")
                heartbeat.gpus = NONE_YET
                heartbeat.write()
            if not rest(_SECONDS):
                return None
    except LookupError as error:
        raise EnvironmentFailure(str(error)) from error
    say(f"sweeper: on GPU {taken.text}")
    heartbeat.gpus = taken
    prepared.environment.update(taken.environment)
    return taken
