"""The usage of the Tinker service by a run, for each model: tokens by kind, requests and steps."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from sweeper.common.codec import Clamp, Default, Sparse, written

Count = Annotated[int, Clamp(0)]

KINDS = ("prefill", "cached", "sample", "train")
"""The kinds of tokens, each with its own price."""


class Counts(NamedTuple):
    """The usage of one model. `cached` counts cached prompt tokens. `prefill` counts other prompt
    tokens, and tokens in forward passes without a backward pass. Each request counts its prompt
    once. `sample` counts sampled tokens, `train` counts tokens in forward and backward passes, and
    `steps` counts the optimizer's steps."""

    prefill: Count = 0
    cached: Count = 0
    sample: Count = 0
    train: Count = 0
    requests: Count = 0
    steps: Count = 0

    @property
    def tokens(self) -> int:
        """The number of tokens of all kinds."""
        return self.prefill + self.cached + self.sample + self.train

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum, field by field."""
        return Counts(*map(sum, zip(self, other, strict=True)))


class Usage(NamedTuple):
    """The usage of a run. `models` maps the names of base models to counts. `unknown` says what
    was not counted and why (an unexpected SDK), or is None."""

    models: Mapping[str, Counts] = MappingProxyType({})
    unknown: Sparse[str | None] = None

    @property
    def counts(self) -> Counts:
        """The counts of all models together."""
        total = Counts()
        for counts in self.models.values():
            total = total.plus(counts)
        return total

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return written(self)


class SweepUsage(NamedTuple):
    """The usage of a sweep at a `time`. `used` is the usage of all runs so far, and `to_come` is
    the estimate of what unfinished runs will still use. `untold` is the number of runs whose usage
    is unknown."""

    used: Annotated[Usage, Default(Usage())]
    to_come: Annotated[Usage, Default(Usage())]
    untold: int = 0
    time: str | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return written(self)


NO_USAGE = Usage()
"""The usage of a run that has used nothing, or whose usage is unknown."""


def beyond(usage: Usage, counted: Usage) -> Usage:
    """Return the part of `usage` that is not in `counted`."""
    excess: dict[str, Counts] = {}
    for name, counts in usage.models.items():
        before = counted.models.get(name, Counts())
        more = Counts(*(max(0, now - then) for now, then in zip(counts, before, strict=True)))
        if any(more):
            excess[name] = more
    return Usage(excess, usage.unknown)


def total(several: Iterable[Usage]) -> Usage:
    """Return the sum of all usages."""
    models: dict[str, Counts] = {}
    unknown: str | None = None
    for usage in several:
        unknown = unknown or usage.unknown
        for name, counts in usage.models.items():
            models[name] = models.get(name, Counts()).plus(counts)
    return Usage(models, unknown)
