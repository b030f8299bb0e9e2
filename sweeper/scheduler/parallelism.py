"""Decides how many jobs of a sweep may run: the number asked for, or less if the account's quota or
this machine requires it."""

import hashlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from sweeper.backends import capabilities_together
from sweeper.errors import EnvironmentFailure, StoreError, Unreachable
from sweeper.fields import config_file
from sweeper.fields.kinds import Integer, Text
from sweeper.fields.sections import Field, Section
from sweeper.paths import home
from sweeper.scheduler.account import AccountRecord, Limiter, Load, PrivateRecord, StoredRecord
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import Governor, Jobs
from sweeper.store.opening import open_store
from sweeper.store.writable import check_root
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Plan
from sweeper.sweep.process import this_process
from sweeper.sweep.quota import Learned, Member
from sweeper.worker.job import read_environment

PLACE = "SWEEPER_QUOTA"
"""The variable with the folder, or the address of a store, in which launchers share quotas."""
_CONFIG = "XDG_CONFIG_HOME"
_KEY, _ADDRESS = "TINKER_API_KEY", "TINKER_BASE_URL"

_SECTION = Section(
    Field("place", Text(), "A folder, or a store that all launchers reach (s3://bucket/quota)."),
    Field("slots", Integer(1), "What the service takes at once, where that is known."),
    Field("account", Text(), "A name for the account, where launchers do not see the same key."),
)


class Quota(NamedTuple):
    """The quota settings of the user's configuration: where quotas are shared, and how large they
    are."""

    place: str
    slots: int | None = None
    account: str | None = None


def quota_settings() -> Quota:
    """Reads the settings. Raises `EnvironmentFailure` for mistakes in the configuration file."""
    node, problems = config_file.table("quota")
    found = _SECTION.read(node, "quota", problems).values
    config_file.refuse(problems)
    if chosen := os.environ.get(PLACE):
        place = _absolute(chosen, os.getcwd())
    elif found.get("place"):
        place = _absolute(str(found["place"]), os.path.dirname(config_file.file()))
    else:
        place = os.path.join(home(), "quota")
    return Quota(place, found.get("slots"), found.get("account"))


def handed_on() -> dict[str, str]:
    """The variables that give a launcher elsewhere on this machine the same settings."""
    found = {name: os.environ[name] for name in (PLACE, _CONFIG) if os.environ.get(name)}
    return {name: _absolute(value, os.getcwd()) for name, value in found.items()}


def _absolute(place: str, base: str) -> str:
    """A folder as an absolute path, relative to `base` if needed; the address of a store is
    unchanged."""
    if "://" in place:
        return place
    return os.path.normpath(os.path.join(base, os.path.expanduser(place)))


def check_place(plan: Plan) -> None:
    """Checks that a launch of this plan can share its quota and its account's budget. Raises
    `EnvironmentFailure`."""
    if plan.service == "none":
        return
    settings = quota_settings()
    try:
        check_root(open_store(settings.place))
    except StoreError as error:
        raise EnvironmentFailure(
            f"quotas are shared in {settings.place} ({_source()}): {error}"
        ) from error


def _source() -> str:
    """Names, for people, the setting that says where quotas are shared."""
    if os.environ.get(PLACE):
        return f"${PLACE}"
    return f"quota.place in {config_file.file()}, or else in sweeper's home"


def account_of(plan: Plan, service: Service, settings: Quota) -> str | None:
    """The account of a plan's runs: 16 hexadecimal digits, or None without a known service."""
    if plan.service == "none":
        return None
    if settings.account is not None:
        return _hash("named", settings.account)
    given = {**_kept(service), **plan.launch.env}
    capabilities = capabilities_together(plan.launch)
    if plan.service == "local" and _ADDRESS not in plan.launch.env and capabilities.here:
        # The engine's address changes when it is started again.
        return _hash("engine", service.home or home())
    address = service.engine or given.get(_ADDRESS, "")
    return _hash(given.get(_KEY) or _handed_over(plan), address.rstrip("/"))


def _kept(service: Service) -> Mapping[str, str]:
    try:
        return read_environment(service.env_file)
    except EnvironmentFailure:
        return {}  # the runs cannot read it either


def _handed_over(plan: Plan) -> str:
    """Where jobs find the key, for a backend that hands it to them."""
    for options in plan.launch.options.values():
        secrets = options.get("secrets")
        if isinstance(secrets, Mapping) and _KEY in secrets:
            return str(secrets[_KEY])  # pyright: ignore[reportUnknownArgumentType]
    return ""


def _hash(key: str, address: str) -> str:
    return hashlib.sha256(f"{key}\n{address}".encode()).hexdigest()[:16]


def governor_of(context: Context, service: Service) -> Governor:
    """Makes the governor of a sweep's launcher. Raises `EnvironmentFailure`, `StoreError`."""
    plan = context.plan
    settings = Quota("") if plan.service == "none" else quota_settings()
    account = account_of(plan, service, settings)
    record: AccountRecord = PrivateRecord()
    if account is not None:
        record = StoredRecord(open_store(settings.place), account)
    own = Member(
        context.store.root,
        context.sweep,
        this_process(),
        plan.launch.priority,
        id="" if account is None else context.folder.ensure_identity(),
    )
    return Governor(record, own, clock=context.clock, most=settings.slots)


class Lowered(NamedTuple):
    """`limit` jobs at once are fewer than were asked for. `why` is a key of `labels.LOWERED`."""

    limit: int
    why: str


class Parallelism:
    """The limits of one launcher. `most` is what the plan or a later request asks for. `needed`:
    whether the launcher starts anything; if not, it takes no slots."""

    def __init__(self, context: Context, service: Service, *, needed: bool) -> None:
        self._planned = self.most = context.plan.launch.max_parallel
        self._governor = governor_of(context, service) if needed else None
        self._machine = Limiter(context.clock)
        self._borne = Learned()
        self._slots = 0
        self.lowered: Lowered | None = None

    @property
    def here(self) -> int:
        """How many jobs this launcher would run, regardless of the quota."""
        return self.most if self._borne.limit is None else min(self.most, self._borne.limit)

    @property
    def jobs(self) -> int:
        """How many jobs may run, as of the last look."""
        return min(self.here, self._slots)

    def ask(self, most: int | None) -> None:
        """Sets the number of jobs at once; None means the number in the plan."""
        self.most = self._planned if most is None else most

    def look(
        self, busy: int, startable: int, *, paused: int = 0, refused: str | None = None
    ) -> None:
        """Adapts to the load: `busy` jobs run, the service holds back `paused` of them, and
        `startable` more could start. `refused` is what rejected a job: the service or the
        machine. Raises `Unreachable` if the place of the quota does not answer; then nothing more
        may start."""
        crowded = "machine" if refused == "machine" else None
        self._borne = self._machine.see(self._borne, Load(busy, 0, startable, crowded))
        if self._borne.limit is not None and self._borne.limit >= self.most:
            self._borne = self._borne._replace(limit=None, step=1)
        self.lowered = None
        if self.here != self._planned:
            self.lowered = Lowered(self.here, "machine" if self.here < self.most else "asked")
        if self._governor is None:
            return
        self._slots = busy
        wanted = max(0, min(startable, self.here - busy))
        try:
            share = self._governor.look(
                Jobs(busy, wanted, self.most, paused, refused=refused == "service")
            )
        except StoreError as error:
            raise Unreachable(f"the quota's place: {error}") from error
        self._slots = share.slots
        if share.share < self.here:
            self.lowered = Lowered(share.share, share.why)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keeps the slots meanwhile, however long a step takes."""
        with nullcontext() if self._governor is None else self._governor.kept():
            yield

    def leave(self) -> None:
        """Gives the slots back when nothing of the sweep is running."""
        if self._governor is not None:
            self._governor.leave()
