"""The record that the launchers of an account share: the learned limit on parallel jobs, and the
number of slots (parallel jobs) that each sweep holds. The record consists of numbered pages.
Each page is made from the page before it and created exclusively. Only the newest page counts."""

import hashlib
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from sweeper.backends import capabilities_together
from sweeper.errors import AlreadyExists, Damaged, EnvironmentFailure, NotFound, StoreError
from sweeper.fields import config_file
from sweeper.fields.kinds import Integer, Text
from sweeper.fields.sections import Field, Section
from sweeper.paths import home
from sweeper.store.base import Store
from sweeper.store.documents import encode, place_of, read_json
from sweeper.store.opening import open_store
from sweeper.store.writable import check_root
from sweeper.sweep import quota
from sweeper.sweep.environment_file import read_environment
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Plan
from sweeper.sweep.quota import BLANK, Learned, Page

PLACE = "SWEEPER_QUOTA"
"""The environment variable that names the folder or store where launchers share quotas."""
_CONFIG = "XDG_CONFIG_HOME"
_KEY, _ADDRESS = "TINKER_API_KEY", "TINKER_BASE_URL"

_SECTION = Section(
    Field("place", Text(), ("A folder or store that all launchers can reach (s3://bucket/quota).")),
    Field("slots", Integer(1), "How many jobs the service runs at once, if you know the number."),
    Field("account", Text(), ("A name for the account, if its launchers use different API keys.")),
)


class Quota(NamedTuple):
    """The user's quota settings. `place` is the folder or store where launchers share quotas.
    `slots` is the number of jobs that the service runs at the same time (None: unknown)."""

    place: str
    slots: int | None = None
    account: str | None = None


def quota_settings() -> Quota:
    """Read the quota settings. Raises `EnvironmentFailure` for mistakes in the configuration
    file."""
    node, problems = config_file.table("quota")
    values = _SECTION.read(node, "quota", problems).values
    config_file.refuse(problems)
    if chosen := os.environ.get(PLACE):
        place = _absolute(chosen, os.getcwd())
    elif values.get("place"):
        place = _absolute(str(values["place"]), os.path.dirname(config_file.file()))
    else:
        place = os.path.join(home(), "quota")
    return Quota(place, values.get("slots"), values.get("account"))


def handed_on() -> dict[str, str]:
    """Return the environment variables with the quota settings, for a launcher that this process
    starts."""
    variables = {name: os.environ[name] for name in (PLACE, _CONFIG) if os.environ.get(name)}
    return {name: _absolute(value, os.getcwd()) for name, value in variables.items()}


def _absolute(place: str, base: str) -> str:
    """Return the absolute path of a folder. A relative path starts at `base`. The address of a
    store is returned unchanged."""
    if "://" in place:
        return place
    return os.path.normpath(os.path.join(base, os.path.expanduser(place)))


def check_place(plan: Plan) -> None:
    """Raise `EnvironmentFailure` if a plan's runs use a service and the folder or store with the
    quotas cannot be read."""
    if plan.service == "none":
        return
    settings = quota_settings()
    try:
        check_root(open_store(settings.place))
    except StoreError as error:
        raise EnvironmentFailure(
            f"cannot read the account's quota at {settings.place} (set by {_source()}): {error}"
        ) from error


def _source() -> str:
    if os.environ.get(PLACE):
        return f"${PLACE}"
    return f"quota.place in {config_file.file()}; default: sweeper's home"


def account_of(plan: Plan, service: Service, settings: Quota) -> str | None:
    """Return the id (16 hexadecimal digits) of the account that a plan's runs use; None if the runs
    use no service."""
    if plan.service == "none":
        return None
    if settings.account is not None:
        return _hash("named", settings.account)
    variables = {**_environment_of(service), **plan.launch.env}
    capabilities = capabilities_together(plan.launch)
    if plan.service == "local" and _ADDRESS not in plan.launch.env and capabilities.here:
        # An engine gets another address when it is restarted, so its home identifies it.
        return _hash("engine", service.home or home())
    address = service.engine or variables.get(_ADDRESS, "")
    return _hash(variables.get(_KEY) or _handed_over(plan), address.rstrip("/"))


def _environment_of(service: Service) -> Mapping[str, str]:
    try:
        return read_environment(service.env_file)
    except EnvironmentFailure:
        return {}  # The runs cannot read the environment either.


def _handed_over(plan: Plan) -> str:
    """Return the reference by which a backend's option `secrets` provides the API key; "" if none
    does."""
    for options in plan.launch.options.values():
        secrets = options.get("secrets")
        if isinstance(secrets, Mapping) and _KEY in secrets:
            return str(secrets[_KEY])  # pyright: ignore[reportUnknownArgumentType]
    return ""


def _hash(key: str, address: str) -> str:
    return hashlib.sha256(f"{key}\n{address}".encode()).hexdigest()[:16]


_WINDOW_SECONDS = 15.0
"""Seconds after which the effect of a changed limit is known: three heartbeats of a worker."""


class Load(NamedTuple):
    """The observed load: `busy` jobs run, the service delays `paused` of them, and `wanted`
    more could start. `refused` is the reason why a job was rejected, a key of `labels.LOWERED`;
    None if no job was rejected."""

    busy: int
    paused: int = 0
    wanted: int = 0
    refused: str | None = None


class Limiter:
    """The rules by which a launcher learns its limit on parallel jobs. `clock` returns monotonic
    seconds.

    When the service pauses recipes, the limit falls to the number of running jobs that are not
    paused, but not below half of the running jobs. When a job is rejected, the limit falls to half
    of the running jobs. (A job is rejected if its run fails because of the service's quota, or if
    the machine cannot start its process.) The limit falls at most once in a window of 15 seconds.
    Running jobs are not stopped, so jobs beyond the new limit may stay paused. Such paused jobs do
    not lower the limit again. If no job was paused or rejected during a window and more jobs are
    wanted, the limit grows by 1, then by 2, 4 and so on, until a job is paused or rejected again.
    If the real limit is constant, the learned limit stays within one or two of the real limit. Chiu
    and Jain (1989, "Analysis of the increase and decrease algorithms for congestion avoidance in
    computer networks") explain why several limiters converge to equal shares.

    Launchers may share the learned state. Each launcher measures windows by its own clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: Learned | None = None
        self._cut_at = -math.inf
        self._quiet_since = clock()

    def see(self, learned: Learned, load: Load) -> Learned:
        """Return the learned state after an observation. Pass this state to the next call."""
        now = self._clock()
        self._note(learned, now)
        if load.paused or load.refused is not None:
            self._quiet_since = now
            return _cut(learned, load) if now - self._cut_at >= _WINDOW_SECONDS else learned
        limit = learned.limit
        if limit is None or not load.wanted or load.busy < limit:
            return learned  # No job waits because of the limit.
        if now - self._quiet_since < _WINDOW_SECONDS:
            return learned
        step = min(learned.step, limit)
        return learned._replace(limit=limit + step, step=2 * step)

    def _note(self, learned: Learned, now: float) -> None:
        before, self._seen = self._seen, learned
        if before is None or before == learned:
            return
        self._quiet_since = now
        if before.cuts != learned.cuts:
            self._cut_at = now


def _cut(learned: Learned, load: Load) -> Learned:
    """Return the learned state after jobs were paused or rejected. Jobs beyond the limit are
    expected to be paused, and do not lower the limit again."""
    limit = max(1, load.busy) if learned.limit is None else learned.limit
    half = max(1, min(limit, load.busy) // 2)
    expected = max(0, load.busy - limit)
    if load.refused is not None:
        return Learned(min(limit, half), 1, learned.cuts + 1, load.refused)
    if load.paused <= expected:
        return learned
    return Learned(max(half, min(limit, load.busy) - (load.paused - expected)), 1, learned.cuts + 1)


_ALMOST = 1e-9


class Claim(NamedTuple):
    """The need of one member (a sweep of the account) for slots. The sweep holds `held` slots and
    could use `wants` more. `weight` is its priority. `turn` is its position in the rotation (see
    `grant`)."""

    weight: float
    held: int
    wants: int
    turn: float = 0.0


class Grant(NamedTuple):
    """The number of slots that a member may take now, and the member's new turn."""

    slots: int
    turn: float


def shares(limit: float, claims: Mapping[str, Claim]) -> dict[str, float]:
    """Return each member's share of `limit` slots. The sum does not exceed `limit`."""
    shared: dict[str, float] = dict.fromkeys(claims, 0.0)
    remaining = dict(claims)
    while remaining and limit > _ALMOST:
        each = limit / sum(claim.weight for claim in remaining.values())
        full = [
            name for name, c in remaining.items() if c.held + c.wants <= each * c.weight + _ALMOST
        ]
        if not full:
            return shared | {name: each * claim.weight for name, claim in remaining.items()}
        for name in full:
            claim = remaining.pop(name)
            shared[name] = float(claim.held + claim.wants)
            limit -= shared[name]
    return shared


def grant(limit: int | None, claims: Mapping[str, Claim], member: str) -> Grant:
    """Return how many of `limit` slots (None: unlimited) the member `member` may take now.

    Shares are weighted max-min fair. Each member gets its share, rounded down. The remaining slots
    rotate: the member with the lowest `turn` gets the next slot, and its `turn` rises by 1 / f,
    where f is the rounded-off fraction of its share (stride scheduling, Waldspurger 1995). On
    average over time, each member gets its exact share.
    """
    claimed = claims[member]
    if limit is None:
        return Grant(claimed.wants, claimed.turn)
    parts = shares(limit, claims)
    whole = {name: int(part + _ALMOST) for name, part in parts.items()}
    free = limit - sum(claim.held for claim in claims.values())
    may = max(0, whole[member] - claimed.held)
    turn = claimed.turn
    if member in _in_turn(parts, whole, claims):
        may += 1
        turn += 1.0 / (parts[member] - whole[member])
    taken = max(0, min(may, claimed.wants, free))
    return Grant(taken, turn if taken and claimed.held + taken > whole[member] else claimed.turn)


def _in_turn(
    parts: Mapping[str, float], whole: Mapping[str, int], claims: Mapping[str, Claim]
) -> list[str]:
    """Return the members that may take one slot more than their rounded-down share, in the order of
    their turns."""
    over = sum(min(1, max(0, c.held - whole[name])) for name, c in claims.items())
    free = round(sum(parts.values()) + _ALMOST) - sum(whole.values()) - over
    wait = [
        name
        for name, claim in claims.items()
        if parts[name] - whole[name] > _ALMOST and claim.held <= whole[name] and claim.wants
    ]
    wait.sort(key=lambda name: (claims[name].turn, name))
    return wait[: max(0, free)]


_CHANCE = random.SystemRandom()
_TRIES = 20
_RECENT_PAGES = 20
_PAUSE_SECONDS = 0.02
"""The longest random wait, in seconds, before a page is written again, so that launchers that
collided do not collide again."""


class AccountRecord(Protocol):
    """A record of an account's quota (interface). Each page is one version of the quota."""

    is_remote: bool
    is_shared: bool

    def check(self) -> Page:
        """Return the newest page. Raises `StoreError`."""
        ...

    def write(self, change: Callable[[Page], Page]) -> Page:
        """Apply `change` to the newest page. If the result differs, write the result as the next
        page. `change` may be called several times. Return the newest page. Raises `StoreError`."""
        ...

    def beat(self, member: str) -> None:
        """Write a member's heartbeat. Raises `StoreError`."""
        ...

    def forget(self, members: Iterable[str]) -> None:
        """Remove the heartbeats of former members."""
        ...

    def stamps(self) -> dict[str, int]:
        """Return a dict from each member to a number that changes with each heartbeat, as of the
        last `check`."""
        ...


class PrivateRecord:
    """The record of a launcher that shares its quota with no other launcher."""

    is_remote = False
    is_shared = False

    def __init__(self) -> None:
        self._page = BLANK

    def check(self) -> Page:
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

    def check(self) -> Page:
        beats = self._store.list(self._beats)
        self._stamps = {entry.path.rpartition("/")[2]: entry.stamp for entry in beats}
        numbers = self._numbers()
        if numbers and numbers[-1] != self._page.number:
            with suppress(NotFound):  # The page is so old that it was removed.
                self._page = self._newest(numbers)
        return self._page

    def _numbers(self) -> list[int]:
        """Return the numbers of all pages, newest last."""
        names = (path.rpartition("/")[2] for path in self._store.names(self._pages))
        return sorted(filter(None, map(_number, names)))

    def _newest(self, numbers: list[int]) -> Page:
        """Return the newest readable page, or a blank page if no page is readable. The result gets
        the number of the newest page, so that the next page also supersedes damaged pages."""
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
            newest = self.check()
            page = change(newest)
            if (page.learned, page.members) == (newest.learned, newest.members):
                return newest
            page = page._replace(number=newest.number + 1, mark=os.urandom(8).hex())
            if self._add(page):
                return page
        raise StoreError(
            f"{place_of(self._store, self._pages)}: too many launchers write here at once; "
            "this launcher tries again later"
        )

    def _add(self, page: Page) -> bool:
        """Write the next page. Return False if another launcher may have written a page with the
        same number."""
        try:
            self._store.create(self._path(page.number), encode(page.document()))
        except AlreadyExists:
            # If the marks are equal, the page is ours and only the reply was lost.
            if self._mark_of(page.number) != page.mark:
                return False
        # If this process slept for long, the page with this number may have been removed.
        numbers = self._numbers()
        if numbers and numbers[-1] > page.number:
            return False
        self._page = page
        old = [number for number in numbers if number <= page.number - _RECENT_PAGES]
        with suppress(StoreError):  # The next page removes what remains.
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
    """Return the number of a page from its file name; 0 if the file is not a page."""
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "json" and stem.isdecimal() else 0
