"""What the launchers of an account know of its quota together: one page of the account's record."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from sweeper.errors import Damaged
from sweeper.model.document_reader import SCHEMA, Part
from sweeper.model.launcher import Who, read_who

__all__ = ["BLANK", "Learned", "Member", "Page", "read"]


class Learned(NamedTuple):
    """What the service bears: `limit` jobs at once, None while it has held nothing back. `step`: by
    how many the limit grows next; `cuts`: how often it was lowered; `why` it was, at last, a key of
    `labels.LOWERED`."""

    limit: int | None = None
    step: int = 1
    cuts: int = 0
    why: str = "service"


class Member(NamedTuple):
    """A sweep that has a launcher, or has had one: `root` and `sweep` say where it is, `who` is its
    last launcher. It holds `slots`, and could use `wants` more; `paused` of its jobs are held back
    by the service. `weight` is its priority, `turn` whose turn it is where a slot has to be shared
    in time. `id` tells it from a sweep that was, or elsewhere is, called the same."""

    root: str
    sweep: str
    who: Who
    weight: float = 1.0
    slots: int = 0
    wants: int = 0
    paused: int = 0
    turn: float = 0.0
    id: str = ""


class Page(NamedTuple):
    """All that is known: the next page replaces it. `number` is 0 where there is none yet. `mark`
    tells it from any other page."""

    number: int = 0
    learned: Learned = Learned()
    members: Mapping[str, Member] = MappingProxyType({})
    mark: str = ""

    @property
    def held(self) -> int:
        """Slots of all members."""
        return sum(member.slots for member in self.members.values())

    def document(self) -> dict[str, object]:
        """As it is stored; the number is the file's name."""
        members = {
            name: {**one._asdict(), "who": one.who._asdict()} for name, one in self.members.items()
        }
        head = {"schema": SCHEMA, "mark": self.mark}
        return {**head, "learned": self.learned._asdict(), "members": members}


BLANK = Page()
"""Of an account that nobody has used yet."""


def read(document: object, place: str, number: int) -> Page:
    """The page in the file `place`, without members that cannot be read: a launcher that lives will
    write its own anew. Raises `Damaged`."""
    top = Part(document, place)
    learned = top.part("learned")
    limit = learned.integer_or("limit", None)
    return Page(
        number,
        Learned(
            limit=None if limit is None else max(1, limit),
            step=max(1, learned.integer_or("step", 1)),
            cuts=learned.integer_or("cuts", 0),
            why=learned.text_or("why", "service"),
        ),
        dict(_members(top.part_or_none("members"))),
        mark=top.text("mark"),
    )


def _members(part: Part | None) -> Iterator[tuple[str, Member]]:
    if part is None:
        return
    for name in part.document:
        with suppress(Damaged):
            yield name, _member(part.part(name))


def _member(part: Part) -> Member:
    counts = {key: max(0, part.integer_or(key, 0)) for key in ("slots", "wants", "paused")}
    weight = part.number_or("weight", 1.0)
    return Member(
        root=part.text("root"),
        sweep=part.text("sweep"),
        who=read_who(part.part("who").document, part.place),
        weight=weight if weight > 0 else 1.0,
        turn=part.number_or("turn", 0.0),
        id=part.text_or("id", ""),
        **counts,
    )
