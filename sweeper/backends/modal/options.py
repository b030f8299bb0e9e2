"""The type of a plan's options for Modal (`launch.modal`)."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast


class Options(TypedDict, total=False):
    """The section with its defaults; `memory` in MiB, `timeout_s` in seconds. `secrets` maps
    variables to the names of secrets. `image` is missing only if nothing is launched."""

    image: str
    secrets: Mapping[str, str]
    app: Required[str]
    environment: str
    python: Required[str]
    cpus: Required[float]
    memory: Required[int]
    region: list[str]
    cloud: str
    timeout_s: Required[float]


def asked_of(whole: Options, resources: Mapping[str, object]) -> Options:
    """Return the options of one run, whose plan has `resources` over the common options."""
    return cast(Options, {**whole, **resources})
