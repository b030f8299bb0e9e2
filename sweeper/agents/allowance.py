"""The allowance of agents: what they may launch in a root, and what they have launched. Each
launch is recorded in `.agents/` before it starts, so restarting a server does not reset the
allowance."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.common import codec
from sweeper.common.codec import SCHEMA
from sweeper.errors import NotFound, UsageError
from sweeper.store.base import Store
from sweeper.store.documents import encode, read_as, timestamp
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.sweep_requests import user

LIMITS = ("runs", "tokens", "usd", "hours")
_FOLDER = ".agents"


class Limits(NamedTuple):
    """The limits on what all agents together may launch (None: no limit). `hours` is the total time
    of all runs."""

    runs: float | None = None
    tokens: float | None = None
    usd: float | None = None
    hours: float | None = None

    @property
    def allows_any(self) -> bool:
        """Whether at least one limit is set. If no limit is set, agents may launch nothing."""
        return any(limit is not None for limit in self)


class Used(NamedTuple):
    """The used part of the agents' limits: the runs that agents have launched, and the tokens,
    dollars and hours that these runs have used or may still use."""

    runs: int = 0
    tokens: float = 0.0
    usd: float = 0.0
    hours: float = 0.0

    def left(self, limits: Limits) -> dict[str, float]:
        """Return the unused part of each limit. Limits that are None are left out."""
        pairs = zip(LIMITS, limits, self, strict=True)
        return {name: max(0, most - now) for name, most, now in pairs if most is not None}


class Entry(NamedTuple):
    """A recorded launch or retry. `runs` has an id for each run that counts against the agents'
    limit: the ids of new runs, and invented ids for retries and for runs that a stage or a race
    will add. `budget` is the budget of the whole sweep (empty for retries).

    `life` is the random text that identifies the sweep, also among removed sweeps of the same name.
    Before this text exists, `life` is the `path` of this entry; older versions wrote "". `agent` is
    the name that `sweeper agent start` gave the agent ("" for other agents).
    """

    path: str
    sweep: str
    runs: tuple[str, ...]
    budget: Mapping[str, float]
    life: str = ""
    agent: str = ""


class _Record(NamedTuple):
    sweep: str
    runs: tuple[str, ...] = ()
    budget: Limits = Limits()
    life: str = ""
    agent: str = ""


def read_limits(text: str | None) -> Limits:
    """Parse the value of `--budget`, such as `runs=50,usd=20` (None: no value). Raises
    `UsageError`."""
    limits: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name.strip() not in LIMITS:
            raise UsageError(
                f"--budget {part.strip()}: use {', '.join(LIMITS)}, as in runs=50,usd=20"
            )
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e15:
            raise UsageError(f"--budget {part.strip()}: the value must be a number of 0 or more")
        limits[name.strip()] = number
    return Limits(**limits)


def reserve(
    folder: SweepFolder,
    runs: Sequence[str],
    budget: Mapping[str, float],
    life: str | None = None,
    agent: str = "",
) -> Entry:
    """Record a launch before it starts. `life` identifies the sweep, as in `Entry` (None: a new
    sweep). Raises `StoreError`."""
    path = f"{_FOLDER}/{time.time_ns():019}-{os.urandom(4).hex()}.json"
    entry = Entry(path, folder.name, tuple(runs), budget, life or path, agent)
    folder.store.create(path, _encoded(entry))
    return entry


def confirm(store: Store, entry: Entry, life: str) -> None:
    """Set the `life` of a recorded launch. Raises `StoreError`."""
    store.replace(entry.path, _encoded(entry._replace(life=life)))


def _encoded(entry: Entry) -> bytes:
    about = {"by": user(), "time": timestamp(), "sweep": entry.sweep, "runs": list(entry.runs)}
    more = {"budget": dict(entry.budget), "life": entry.life, "agent": entry.agent}
    return encode({"schema": SCHEMA, **about, **more})


def retract(store: Store, entry: Entry) -> None:
    """Remove the record of a launch that started nothing. Raises `StoreError`."""
    store.remove([entry.path])


def entries(store: Store) -> list[Entry]:
    """Return all recorded launches, oldest first. Raises `StoreError` if an entry is damaged or
    cannot be read."""
    recorded: list[Entry] = []
    for path in sorted(store.names(_FOLDER)):

        def read(document: object, place: str, path: str = path) -> Entry:
            record = codec.read(_Record, document, place)
            budget = {k: v for k, v in record.budget._asdict().items() if v is not None}
            return Entry(path, record.sweep, record.runs, budget, record.life, record.agent)

        try:
            recorded.append(read_as(store, path, read))
        except NotFound:
            continue  # the file was removed after it was listed
    return recorded


def of_sweep(store: Store, recorded: Sequence[Entry], sweep: str) -> list[Entry]:
    """Return the entries in `recorded` that belong to the existing sweep, without entries of
    removed sweeps of the same name. Return an empty list if no such sweep exists. Raises
    `StoreError`."""
    folder = SweepFolder(store, sweep)
    if not store.exists(folder.plan):
        return []
    launches = [entry for entry in recorded if entry.sweep == sweep]
    now = folder.read_identity()
    if now is not None and any(entry.life == now for entry in launches):
        return [entry for entry in launches if entry.life == now]
    # The server was killed before it could confirm its last launch.
    return [entry for entry in launches if not entry.life or entry.life == launches[-1].path]


def used(store: Store, recorded: Sequence[Entry]) -> Used:
    """Return how much of the allowance the recorded launches use in total. Raises `StoreError`."""
    runs = 0
    sums = {"tokens": 0.0, "usd": 0.0, "hours": 0.0}
    for sweep in dict.fromkeys(entry.sweep for entry in recorded):
        now = of_sweep(store, recorded, sweep)
        removed: dict[str, list[Entry]] = {}
        for entry in recorded:
            if entry.sweep == sweep and entry not in now:
                removed.setdefault(entry.life, []).append(entry)
        for entries in filter(None, (now, *removed.values())):
            runs += len({run for entry in entries for run in entry.runs})
            caps = {key: max(entry.budget.get(key, 0.0) for entry in entries) for key in sums}
            spent, over = dict[str, float | None](dict.fromkeys(sums, 0.0)), False
            if entries is now:
                spent, over = _spent(SweepFolder(store, sweep))
            for key in sums:
                amount = spent[key]
                # Without prices, the sweep counts as having used its whole budget.
                if amount is None:
                    sums[key] += caps[key]
                else:
                    sums[key] += amount if over else max(amount, caps[key])
    return Used(runs, **sums)


def _spent(folder: SweepFolder) -> tuple[dict[str, float | None], bool]:
    """Return the tokens, dollars and hours that a sweep has used, and whether the sweep is
    finished. The dollars are None if a price is unknown."""
    from sweeper.money import prices
    from sweeper.money.costs import spent, together
    from sweeper.results.status import read_status
    from sweeper.results.sweeps import Sweep

    try:
        opened = Sweep(folder)
    except NotFound:
        return {"tokens": 0.0, "usd": 0.0, "hours": 0.0}, False
    table = prices.load()
    whole = together((spent(run, table) for run in opened.runs if run.attempts), table)
    hours = sum(run.times["wall_s"] or 0.0 for run in opened.runs if run.attempts) / 3600
    spent_amounts: dict[str, float | None] = {
        "tokens": float(whole.usage.counts.tokens),
        "usd": None if whole.amount.unpriced else whole.amount.usd,
    }
    status = read_status(opened)
    return {**spent_amounts, "hours": hours}, status.finished and not status.at_work
