"""Describes a job as a Job of Kubernetes. The Job's name contains a hash of the sweep's folder and
the token. The Job's only pod is never restarted: the launcher submits the next attempt as another
Job."""

import math
from collections.abc import Mapping
from typing import cast

from sweeper.backends.base import JobSpec
from sweeper.backends.identity import Identity
from sweeper.backends.kubernetes.objects import Job
from sweeper.backends.kubernetes.options import Options

SWEEP, TOKEN, SUBMISSION = "sweeper/sweep", "sweeper/token", "sweeper/submission"
IDENTITY = "sweeper/identity"
_MARGIN_SECONDS = 20
"""Seconds after the recipe's grace in which the worker records the last metrics and how the recipe
ended."""
_GPU = "nvidia.com/gpu"


class Names:
    """The names and labels of the Jobs of the sweep in `folder`."""

    def __init__(self, sweep: str, folder: str) -> None:
        self.sweep, self.identity = sweep, Identity(folder)
        self.folder_hash = self.identity.folder_hash

    @property
    def selector(self) -> str:
        """The label selector for the Jobs of this sweep, without Jobs of earlier sweeps in the
        folder."""
        return f"{SWEEP}={self.folder_hash},{IDENTITY}={self.identity.current()}"

    def is_ours(self, job: Job) -> bool:
        """Return whether a Job has the sweep's identity."""
        return job["metadata"]["labels"].get(IDENTITY) == self.identity.current()

    def name(self, token: str) -> str:
        return f"sweeper-{self.folder_hash}-{token}"


def manifest(job: JobSpec, options: Options, names: Names, submission: str) -> dict[str, object]:
    """Return the Job to create for `job`. `options` are the job's options. `submission` identifies
    the call of `submit`."""
    own_labels = {
        "app.kubernetes.io/managed-by": "sweeper",
        SWEEP: names.folder_hash,
        TOKEN: job.token,
    }
    labels = {**options.labels, **own_labels, IDENTITY: names.identity.current()}
    queue = options.queue
    spec: dict[str, object] = {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                }
            ]
        },
        "ttlSecondsAfterFinished": round(options.ttl_s),
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(job, options)},
    }
    if timeout := options.timeout_s:
        spec["activeDeadlineSeconds"] = math.ceil(timeout)
    if queue:
        spec["suspend"] = True  # Kueue admits the Job later.
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.name(job.token),
            "labels": labels | ({"kueue.x-k8s.io/queue-name": queue} if queue else {}),
            "annotations": {
                "sweeper/name": names.sweep,
                "sweeper/run": job.title,
                SUBMISSION: submission,
            },
        },
        "spec": spec,
    }


def pod_spec(job: JobSpec, options: Options) -> dict[str, object]:
    more = dict(options.pod)
    of_container = cast(Mapping[str, object] | None, more.pop("container", None))
    container: dict[str, object] = {
        "name": "run",
        "image": options.image,
        # Kubernetes replaces `$(NAME)` in a command, unless it is written `$$(NAME)`.
        "command": [argument.replace("$", "$$") for argument in job.argv],
        "env": [_secret(*pair) for pair in sorted(options.secrets.items())],
        "resources": _resources(options),
        **(of_container or {}),
    }
    pod: dict[str, object] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.grace_s) + _MARGIN_SECONDS,
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        "containers": [container],
    }
    optional = {
        "nodeSelector": options.node_selector,
        "tolerations": [_toleration(text) for text in options.tolerations],
        "priorityClassName": options.priority_class,
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
    }
    return {**pod, **{key: value for key, value in optional.items() if value}, **more}


def _secret(variable: str, reference: str) -> dict[str, object]:
    name, _, key = reference.partition("/")
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def _resources(options: Options) -> dict[str, object]:
    """Return requests and limits. CPUs have no limit, so that a job can use idle CPUs."""
    limits = {"memory": options.memory, **options.resources}
    if gpus := options.gpus:
        limits[_GPU] = str(gpus)
    return {"requests": {"cpu": f"{options.cpus:g}", **limits}, "limits": limits}


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    toleration = {"key": key, "operator": "Equal" if equals else "Exists"}
    return (
        toleration | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})
    )
