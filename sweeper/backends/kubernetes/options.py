"""The type of a plan's options for Kubernetes (`launch.kubernetes`)."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast


class Options(TypedDict, total=False):
    """The section with its defaults; times in seconds. `secrets` maps variables to `secret/key`.
    `pod` has further fields of a pod's spec. `image` is missing only if nothing is launched."""

    image: str
    secrets: Mapping[str, str]
    namespace: str
    context: str
    python: Required[str]
    cpus: Required[float]
    memory: Required[str]
    gpus: int
    resources: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: list[str]
    priority_class: str
    service_account: str
    queue: str
    pull_secrets: list[str]
    labels: Mapping[str, str]
    pod: Mapping[str, object]
    timeout_s: float
    ttl_s: Required[float]


def asked_of(whole: Options, resources: Mapping[str, object]) -> Options:
    """Return the options of one run, whose plan has `resources` over the common options."""
    return cast(Options, {**whole, **resources})
