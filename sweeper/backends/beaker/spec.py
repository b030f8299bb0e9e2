"""Describes a job as a Beaker experiment. The experiment's name contains a hash of the sweep's
folder and the token, so Beaker refuses to create the experiment twice. Beaker must not restart the
job: the launcher submits the next attempt as another experiment."""

import re

from sweeper.backends.base import JobSpec
from sweeper.backends.beaker.options import Options
from sweeper.backends.identity import Identity

_SWEEP = re.compile(r"sweeper ([0-9a-f]{16}): ")


class Names:
    """Names and descriptions of the experiments of the sweep in `folder`."""

    def __init__(self, sweep: str, folder: str) -> None:
        self.sweep, self.identity = sweep, Identity(folder)
        self.prefix = f"sweeper-{self.identity.folder_hash}-"

    def name(self, token: str) -> str:
        return self.prefix + token

    def description(self, title: str) -> str:
        """Return the description of a run's experiment, with the sweep's identity and name."""
        return f"sweeper {self.identity.current()}: {self.sweep}: {title}"[:500]

    def is_ours(self, description: str) -> bool:
        """Return False if the description contains the identity of another sweep. Return True for
        any other description, since users may change descriptions."""
        match = _SWEEP.match(description)
        return match is None or match[1] == self.identity.current()


def spec(job: JobSpec, options: Options, names: Names) -> dict[str, object]:
    """Return the spec of a job's experiment. `options` are the job's options."""
    secrets, timeout = sorted(options.secrets.items()), options.timeout_s
    task = {
        "name": "run",
        "image": _given(beaker=options.image, docker=options.docker_image),
        "command": list(job.argv),
        "envVars": [{"name": variable, "secret": name} for variable, name in secrets],
        "datasets": _mounts(options),
        "resources": _given(
            cpuCount=options.cpus,
            memory=options.memory,
            gpuCount=options.gpus,
            sharedMemory=options.shared_memory,
        ),
        "constraints": _given(cluster=list(options.clusters), hostname=list(options.hostnames)),
        "context": _given(priority=options.priority) | _preemption(options),
        "timeout": _nanoseconds(timeout) if timeout else None,
    }
    return _given(
        version="v2",
        description=names.description(job.title),
        budget=options.budget,
        retry={"allowedTaskRetries": 0},
        tasks=[_given(**task)],
    )


def _mounts(options: Options) -> list[dict[str, object]]:
    return [
        {"mountPath": path, "source": {source: name}}
        for source, mounts in (("beaker", options.datasets), ("weka", options.weka))
        for path, name in sorted(mounts.items())
    ]


def _preemption(options: Options) -> dict[str, object]:
    """Return the settings of preemption. Beaker does not accept `preemptible` together with
    `minRuntime` and `autoResume`."""
    if options.preemptible is False:
        return {"preemptible": False}
    return {"minRuntime": _nanoseconds(options.min_runtime_s or 0), "autoResume": False}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _given(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value not in (None, [], {})}
