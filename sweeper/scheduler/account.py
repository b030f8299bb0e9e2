"""The account whose quota the runs of a sweep use, known by a hash of its key and address; and
the place where its launchers share what they know."""

import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.backends import capabilities_together
from sweeper.errors import EnvironmentFailure, StoreError
from sweeper.fields import config_file
from sweeper.fields.kinds import Integer, Text
from sweeper.fields.sections import Field, Section
from sweeper.paths import home
from sweeper.scheduler.account_record import AccountRecord, PrivateRecord, StoredRecord
from sweeper.scheduler.context import Context
from sweeper.scheduler.governor import Governor
from sweeper.store.opening import open_store
from sweeper.store.writable import check_root
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Plan
from sweeper.sweep.process import this_process
from sweeper.sweep.quota import Member
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
