"""The quota that an account's launchers share. Numbered files store it: each change writes a new
page."""

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Clamp, Default, Parse, Unstored, value_of, written
from sweeper.sweep.process import Who


class Learned(NamedTuple):
    """The launchers' estimate of a service's capacity. `limit` is the number of jobs that the
    service runs at the same time (None: no limit so far). The next increase adds `step` to `limit`.
    `cuts` counts how often `limit` was lowered, and `why` is the reason for the last time (a key of
    `labels.LOWERED`)."""

    limit: Annotated[int | None, Clamp(1)] = None
    step: Annotated[int, Clamp(1)] = 1
    cuts: int = 0
    why: str = "service"


_Count = Annotated[int, Clamp(0)]


def _weight(value: Any) -> float:
    number = value_of(float, value)
    return number if number > 0 else 1.0


class Member(NamedTuple):
    """A sweep that has or had a launcher. `root` is the sweep's store, `sweep` its name and `who`
    its last launcher. `slots` is the number of jobs that the sweep may run at the same time,
    `wants` how many more it could run, and `paused` how many the service delays. `weight` is the
    sweep's priority. Slots beyond the members' rounded-down shares go to the members with the
    lowest `turn`. `id` distinguishes sweeps with the same name."""

    root: str
    sweep: str
    who: Who
    weight: Annotated[float, Parse(_weight)] = 1.0
    slots: _Count = 0
    wants: _Count = 0
    paused: _Count = 0
    turn: float = 0.0
    id: str = ""


def _readable(value: Any) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for name, member in value_of(dict[str, object], value).items():
        with suppress(codec.Wrong):
            members[name] = value_of(Member, member)
    return members


class Page(NamedTuple):
    """One version of an account's quota. Each change writes a new page. `number` is 0 if there is
    no page yet. `mark` is a random word, by which a launcher recognizes its own page."""

    number: Annotated[Unstored[int], Default(0)]
    learned: Learned
    mark: str
    members: Annotated[Mapping[str, Member], Parse(_readable)] = MappingProxyType({})

    @property
    def held(self) -> int:
        """The sum of all members' `slots`."""
        return sum(member.slots for member in self.members.values())

    def document(self) -> dict[str, object]:
        """Return the JSON object to store. The number of the page is in the file's name."""
        return {"schema": SCHEMA, **written(self)}


BLANK = Page(0, Learned(), "")
"""The page of an account that is not used yet."""


def read(document: object, place: str, number: int) -> Page:
    """Parse `document`, the content of the file `place`, as page `number`. Raises `Damaged`."""
    return codec.read(Page, document, place)._replace(number=number)
