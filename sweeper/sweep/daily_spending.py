"""One sweep's daily usage of an account's budget, stored in a file next to the account's record."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Clamp, Sparse, written
from sweeper.sweep.usage import NO_USAGE, Usage, beyond, total


class Spent(NamedTuple):
    """The tokens that runs used, and the seconds that they worked (pauses excluded)."""

    usage: Usage = NO_USAGE
    seconds: Annotated[float, Clamp(0.0)] = 0.0

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return {**written(self), "seconds": round(self.seconds, 3)}


NOTHING = Spent()
_NO_DAYS: Mapping[str, Spent] = MappingProxyType({})


class SweepSpent(NamedTuple):
    """The usage of one sweep. `counted` is the total since the sweep was `created`. `days` maps
    each day (UTC) to the usage that was added on that day, including usage of earlier sweeps of the
    same name. `identity` stays the same when the sweep's folder is moved."""

    sweep: str
    created: str | None = None
    counted: Spent = NOTHING
    days: Mapping[str, Spent] = _NO_DAYS
    identity: Sparse[str | None] = None

    def plus(self, now: Spent, created: str | None, day: str) -> "SweepSpent":
        """Return a copy with the total usage `now`. The increase is added to `day`. If `created`
        differs from the recorded time, the sweep is new, and the increase is all of `now`."""
        before = self.counted if created == self.created else NOTHING
        more = Spent(beyond(now.usage, before.usage), max(0.0, now.seconds - before.seconds))
        if not more.usage.models and not more.seconds:
            return self
        today = together([self.days.get(day, NOTHING), more])
        counted = together([before, more])
        return self._replace(created=created, counted=counted, days={**self.days, day: today})

    def document(self) -> dict[str, object]:
        """Return the JSON object to store."""
        return {"schema": SCHEMA, **written(self)}


def least(first: Spent, other: Spent) -> Spent:
    """Return the minimum of two usages, field by field."""
    more = beyond(first.usage, other.usage)
    return Spent(beyond(first.usage, more), min(first.seconds, other.seconds))


def together(several: list[Spent]) -> Spent:
    """Return the sum of several usages."""
    return Spent(total(spent.usage for spent in several), sum(spent.seconds for spent in several))


def read(document: object, place: str) -> SweepSpent:
    """Check and convert `document`. `place` is its file, for messages. Raises `StoreError`."""
    return codec.read(SweepSpent, document, place)
