"""The record that the launchers of an account share. It consists of numbered pages; only the
newest counts.

<account>/pages/<number>.json created exclusively: if two launchers write a page, one comes first,
and the other reads it and decides again <account>/beats/<member> replaced every few seconds by
each launcher

Each page is made from the one before it, so the newest is correct whoever was killed meanwhile,
in a folder as well as on S3. Older pages are removed except for a few: somebody may be reading
them, and if the newest is damaged, the one before it counts.
"""

import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from sweeper.errors import AlreadyExists, Damaged, NotFound, StoreError
from sweeper.store.base import Store
from sweeper.store.documents import encode, place_of, read_json
from sweeper.sweep import quota
from sweeper.sweep.quota import BLANK, Page

_CHANCE = random.SystemRandom()
_TRIES = 20
_KEPT = 20
_PAUSE_SECONDS = 0.02
"""The longest random wait before a page is written again, so that launchers that collided do not
collide again."""


class AccountRecord(Protocol):
    """The place of an account's pages."""

    is_remote: bool
    is_shared: bool

    def look(self) -> Page:
        """The newest page. Raises `StoreError`."""
        ...

    def write(self, change: Callable[[Page], Page]) -> Page:
        """Writes the page that `change` makes of the newest one, if it differs. `change` may be
        called several times. Returns the page that counts now. Raises `StoreError`."""
        ...

    def beat(self, member: str) -> None:
        """Writes a member's heartbeat. Raises `StoreError`."""
        ...

    def forget(self, members: Iterable[str]) -> None:
        """Removes the heartbeats of former members."""
        ...

    def stamps(self) -> dict[str, int]:
        """The stamps of all members' heartbeats at the last look."""
        ...


class PrivateRecord:
    """The record of a launcher that shares its quota with nobody."""

    is_remote = False
    is_shared = False

    def __init__(self) -> None:
        self._page = BLANK

    def look(self) -> Page:
        return self._page

    def write(self, change: Callable[[Page], Page]) -> Page:
        self._page = change(self._page)
        return self._page

    def beat(self, member: str) -> None:
        del member

    def forget(self, members: Iterable[str]) -> None:
        del members

    def stamps(self) -> dict[str, int]:
        return {}


class StoredRecord:
    """The record of an account in a store."""

    is_shared = True

    def __init__(self, store: Store, account: str) -> None:
        self._store = store
        self._pages, self._beats = f"{account}/pages", f"{account}/beats"
        self.is_remote = store.is_remote
        self._page = BLANK
        self._stamps: dict[str, int] = {}
        self._beaten = 0

    def look(self) -> Page:
        beats = self._store.list(self._beats)
        self._stamps = {entry.path.rpartition("/")[2]: entry.stamp for entry in beats}
        numbers = self._numbers()
        if numbers and numbers[-1] != self._page.number:
            with suppress(NotFound):  # it is so old by now that it was removed
                self._page = self._newest(numbers)
        return self._page

    def _numbers(self) -> list[int]:
        """The numbers of all pages, the newest last."""
        names = (path.rpartition("/")[2] for path in self._store.names(self._pages))
        return sorted(filter(None, map(_number, names)))

    def _newest(self, numbers: list[int]) -> Page:
        """The newest readable page, with the number of the newest page: the next page replaces
        all damaged ones. If none is readable, the account starts anew: each launcher adds itself
        again, and the limit is learned again."""
        for number in reversed(numbers):
            if number == self._page.number:
                return self._page._replace(number=numbers[-1])
            with suppress(Damaged):
                return self._read(number)._replace(number=numbers[-1])
        return BLANK._replace(number=numbers[-1])

    def write(self, change: Callable[[Page], Page]) -> Page:
        for number in range(_TRIES):
            if number:
                time.sleep(_CHANCE.uniform(0, _PAUSE_SECONDS))
            known = self.look()
            page = change(known)
            if (page.learned, page.members) == (known.learned, known.members):
                return known
            page = page._replace(number=known.number + 1, mark=os.urandom(8).hex())
            if self._add(page):
                return page
        raise StoreError(f"{place_of(self._store, self._pages)}: too many launchers write at once")

    def _add(self, page: Page) -> bool:
        """Writes the next page. Returns whether it is known to count; if not, the newest page is
        read again."""
        try:
            self._store.create(self._path(page.number), encode(page.document()))
        except AlreadyExists:
            if self._mark_of(page.number) != page.mark:  # else it is ours: the reply was lost
                return False
        # We may have slept so long that the page which had this number was removed meanwhile.
        numbers = self._numbers()
        if numbers and numbers[-1] > page.number:
            return False
        self._page = page
        old = [number for number in numbers if number <= page.number - _KEPT]
        with suppress(StoreError):  # the next page is soon to come
            self._store.remove([self._path(number) for number in old])
        return True

    def _mark_of(self, number: int) -> str | None:
        with suppress(NotFound, Damaged):
            return self._read(number).mark
        return None

    def beat(self, member: str) -> None:
        self._beaten += 1
        text = f"{os.getpid()} {self._beaten}\n".encode()
        self._store.replace(f"{self._beats}/{member}", text, durable=False)

    def forget(self, members: Iterable[str]) -> None:
        self._store.remove([f"{self._beats}/{member}" for member in members])

    def stamps(self) -> dict[str, int]:
        return self._stamps

    def _read(self, number: int) -> Page:
        path = self._path(number)
        document = read_json(self._store, path)
        return quota.read(document, place_of(self._store, path), number)

    def _path(self, number: int) -> str:
        return f"{self._pages}/{number}.json"


def _number(name: str) -> int:
    """The number of a page, from its file name; 0 if it is not a page."""
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "json" and stem.isdecimal() else 0
