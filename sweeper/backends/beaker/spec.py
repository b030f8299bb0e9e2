"""A job of ours as an experiment of Beaker's: one task, in the format v2.

Its name is made of the sweep's folder and the token: whoever creates it again is told that it is
there. Its description says which sweep that is, of those that were in the folder. Beaker starts
nothing a second time by itself (`autoResume`, `retry`): it does not tell a job whether it is the
first, so that the next attempt is the launcher's to submit.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from sweeper.backends.base import JobSpec
from sweeper.backends.identity import Identity

__all__ = ["APART", "Names", "merged", "spec"]

APART = ("image", "docker_image"), ("min_runtime", "preemptible")
"""Fields of which one takes the place of the other."""
_SWEEP = re.compile(r"sweeper ([0-9a-f]{16}): ")


class Names:
    """What the experiments of the sweep in `folder` are called, and found by."""

    def __init__(self, sweep: str, folder: str) -> None:
        self.sweep, self.identity = sweep, Identity(folder)
        self.prefix = f"sweeper-{hashlib.sha256(folder.encode()).hexdigest()[:12]}-"

    def name(self, token: str) -> str:
        """That of the experiment with this token."""
        return self.prefix + token

    def description(self, title: str) -> str:
        """That of the experiment of the run with this title, for people, and for `is_ours`."""
        return f"sweeper {self.identity.known()}: {self.sweep}: {title}"[:500]

    def is_ours(self, description: str) -> bool:
        """Whether the experiment so described is of no sweep that was in the folder before. What
        somebody has described otherwise tells nothing, and may be ours."""
        found = _SWEEP.match(description)
        return found is None or found[1] == self.identity.known()


def merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options over others: what is given stands for what it does not go together with, too."""
    keys = {key.removesuffix("_s") for key in given}
    gone = {key for pair in APART if not keys.isdisjoint(pair) for key in pair}
    return {k: v for k, v in before.items() if k.removesuffix("_s") not in gone} | dict(given)


def spec(job: JobSpec, asked: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The experiment. `asked` are the options of this run."""
    secrets, timeout = sorted(asked.get("secrets", {}).items()), asked.get("timeout_s")
    task = {
        "name": "run",
        "image": _given(beaker=asked.get("image"), docker=asked.get("docker_image")),
        "command": list(job.argv),
        "envVars": [{"name": variable, "secret": name} for variable, name in secrets],
        "datasets": _mounts(asked),
        "resources": _given(
            cpuCount=asked["cpus"],
            memory=asked["memory"],
            gpuCount=asked.get("gpus"),
            sharedMemory=asked.get("shared_memory"),
        ),
        "constraints": _given(cluster=asked.get("clusters"), hostname=asked.get("hostnames")),
        "context": _given(priority=asked.get("priority")) | _preemption(asked),
        "timeout": _nanoseconds(timeout) if timeout else None,
    }
    return _given(
        version="v2",
        description=names.description(job.title),
        budget=asked.get("budget"),
        retry={"allowedTaskRetries": 0},
        tasks=[_given(**task)],
    )


def _mounts(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"mountPath": path, "source": {source: name}}
        for source, key in (("beaker", "datasets"), ("weka", "weka"))
        for path, name in sorted(asked.get(key, {}).items())
    ]


def _preemption(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Beaker takes either the one or the others."""
    if asked.get("preemptible") is False:
        return {"preemptible": False}
    return {"minRuntime": _nanoseconds(asked.get("min_runtime_s") or 0), "autoResume": False}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, [], {})}
