"""The quota that the launchers of an account share: one page of the account's record."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from sweeper.common.document_reader import SCHEMA, Part
from sweeper.errors import Damaged
from sweeper.sweep.launcher import Who, read_who


class Learned(NamedTuple):
    """What the service sustains: `limit` jobs at once, None until the service has held a job back.
    The limit grows by `step` next. `cuts` is how often it was lowered, `why` the last reason, a
    key of `labels.LOWERED`."""

    limit: int | None = None
    step: int = 1
    cuts: int = 0
    why: str = "service"


class Member(NamedTuple):
    """A sweep that has or had a launcher: `root` and `sweep` say where it is, `who` is its last
    launcher. It holds `slots` and could use `wants` more; the service holds back `paused` of its
    jobs. `weight` is its priority. `turn` decides who is next if a slot is shared in time. `id`
    distinguishes it from other sweeps of the same name, earlier or elsewhere."""

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
    """All shared knowledge. Each page replaces the one before. `number` is 0 if there is none yet.
    `mark` distinguishes it from any other page."""

    number: int = 0
    learned: Learned = Learned()
    members: Mapping[str, Member] = MappingProxyType({})
    mark: str = ""

    @property
    def held(self) -> int:
        """The slots of all members."""
        return sum(member.slots for member in self.members.values())

    def document(self) -> dict[str, object]:
        """Return the value in its stored form; the number is the file's name."""
        members = {
            name: {**one._asdict(), "who": one.who._asdict()} for name, one in self.members.items()
        }
        head = {"schema": SCHEMA, "mark": self.mark}
        return {**head, "learned": self.learned._asdict(), "members": members}


BLANK = Page()
"""The page of an account that is not used yet."""


def read(document: object, place: str, number: int) -> Page:
    """Read the page in the file `place`, without members that cannot be read: a live launcher
    writes its own again. Raises `Damaged`."""
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
