"""The type of a plan's options for Beaker (`launch.beaker`), and how they are merged."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast

APART = ("image", "docker_image"), ("min_runtime", "preemptible")
"""Pairs of fields that exclude each other."""


class Options(TypedDict, total=False):
    """The section with its defaults; times in seconds. `secrets` maps variables to the names of
    secrets. `datasets` and `weka` map paths in the container to their content."""

    image: str
    docker_image: str
    secrets: Mapping[str, str]
    workspace: str
    budget: str
    clusters: list[str]
    hostnames: list[str]
    priority: str
    preemptible: bool
    min_runtime_s: float
    python: Required[str]
    cpus: Required[float]
    memory: Required[str]
    gpus: int
    shared_memory: str
    datasets: Mapping[str, str]
    weka: Mapping[str, str]
    timeout_s: float


def merged(before: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Merge `given` over other options. A given field also removes those that it excludes."""
    keys = {key.removesuffix("_s") for key in given}
    gone = {key for pair in APART if not keys.isdisjoint(pair) for key in pair}
    return {k: v for k, v in before.items() if k.removesuffix("_s") not in gone} | dict(given)


def asked_of(whole: Options, resources: Mapping[str, object]) -> Options:
    """Return the options of one run, whose plan has `resources` over the common options."""
    return cast(Options, merged(whole, resources))
