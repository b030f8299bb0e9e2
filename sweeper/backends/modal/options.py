"""What a plan says of Modal (`launch.modal`), as the fields of its section read it."""

from collections.abc import Mapping
from typing import Required, TypedDict, cast

__all__ = ["Options", "asked_of"]


class Options(TypedDict, total=False):
    """The section with its defaults: `memory` in MiB, `timeout_s` in seconds. `secrets` maps
    variables to the names of secrets. `image` lacks only where no launch is meant."""

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
    """Those of one run, whose plan says `resources` beside the whole."""
    return cast(Options, {**whole, **resources})
