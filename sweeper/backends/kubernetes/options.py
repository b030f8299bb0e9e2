"""What a plan says of Kubernetes (`launch.kubernetes`), as the fields of its section read it."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast

__all__ = ["Options", "asked_of"]


class Options(TypedDict, total=False):
    """The section with its defaults: times in seconds. `secrets` maps variables to `secret/key`,
    `pod` is more of a pod's spec. `image` lacks only where no launch is meant."""

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
    """Those of one run, whose plan says `resources` beside the whole."""
    return cast(Options, {**whole, **resources})
