"""Use of the Tinker service by a run, by model: tokens by kind, requests and steps."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common.document_reader import Part

KINDS = ("prefill", "cached", "sample", "train")
"""The kinds of tokens, each with its own price."""


class Counts(NamedTuple):
    """Counts of one model. `prefill` are tokens of prompts, read once for each request, without
    the `cached` ones. `sample` were sampled, `train` went through forward and backward. `steps`
    are the optimizer's."""

    prefill: int = 0
    cached: int = 0
    sample: int = 0
    train: int = 0
    requests: int = 0
    steps: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all kinds."""
        return self.prefill + self.cached + self.sample + self.train

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum, kind by kind."""
        return Counts(*map(sum, zip(self, other, strict=True)))


class Usage(NamedTuple):
    """`models` has the counts by the name of the base model. `unknown` says what was not counted
    and why (an unexpected SDK); None if everything was counted."""

    models: Mapping[str, Counts] = MappingProxyType({})
    unknown: str | None = None

    @property
    def counts(self) -> Counts:
        """The counts of all models together."""
        total = Counts()
        for counts in self.models.values():
            total = total.plus(counts)
        return total

    def document(self) -> dict[str, object]:
        """Return the value in its stored form."""
        models: dict[str, object] = {name: counts._asdict() for name, counts in self.models.items()}
        return {"models": models, **({"unknown": self.unknown} if self.unknown else {})}


class SweepUsage(NamedTuple):
    """What all runs of a sweep had `used` at a `time`, and the estimate `to_come` for those not
    finished. `untold` is the number of runs about which nothing is known."""

    used: Usage
    to_come: Usage
    untold: int = 0
    time: str | None = None

    def document(self) -> dict[str, object]:
        """Return the value in its stored form."""
        document = {"used": self.used.document(), "to_come": self.to_come.document()}
        return {**document, "untold": self.untold, "time": self.time}


NO_USAGE = Usage()
"""The usage of a run that has used nothing, or about which nothing is known."""


def read(body: Part | None) -> Usage:
    """Read the form of `Usage.document`. Raises `StoreError`."""
    if body is None:
        return NO_USAGE
    models = {
        name: Counts(*(max(0, one.integer_or(key, 0)) for key in Counts._fields))
        for name, one in body.parts_by_key("models").items()
    }
    return Usage(models, body.text_or("unknown", None))


def read_of_sweep(body: Part | None) -> SweepUsage | None:
    """Read the form of `SweepUsage.document`. Raises `StoreError`."""
    if body is None:
        return None
    used, to_come = read(body.part_or_none("used")), read(body.part_or_none("to_come"))
    return SweepUsage(used, to_come, body.integer_or("untold", 0), body.text_or("time", None))


def beyond(usage: Usage, known: Usage) -> Usage:
    """Return the part of `usage` that is not in `known`."""
    excess: dict[str, Counts] = {}
    for name, counts in usage.models.items():
        before = known.models.get(name, Counts())
        more = Counts(*(max(0, now - then) for now, then in zip(counts, before, strict=True)))
        if any(more):
            excess[name] = more
    return Usage(excess, usage.unknown)


def total(several: Iterable[Usage]) -> Usage:
    """Return the sum of all."""
    models: dict[str, Counts] = {}
    unknown: str | None = None
    for usage in several:
        unknown = unknown or usage.unknown
        for name, counts in usage.models.items():
            models[name] = models.get(name, Counts()).plus(counts)
    return Usage(models, unknown)
