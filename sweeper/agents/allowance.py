"""Tracks how much agents may launch in a root, and how much they have launched.

    .agents/<nanoseconds since 1970>-<random>.json     a launch, recorded before it starts

The person who starts the server sets the limits. Everything that agents have ever launched in the
root counts, through any server: killing and restarting a server gives them nothing more. An
unfinished sweep counts with what it may use, a finished one with what it has used. Of two
concurrent launches, each records itself first and then checks: at worst both are refused.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.errors import NotFound, UsageError
from sweeper.model.document_reader import SCHEMA, Part
from sweeper.storage.base import Store
from sweeper.storage.documents import encode, read_as, timestamp
from sweeper.storage.sweep_requests import user

__all__ = [
    "LIMITS",
    "Entry",
    "Limits",
    "Used",
    "entries",
    "read_limits",
    "reserve",
    "retract",
    "used",
]

LIMITS = ("runs", "tokens", "usd", "hours")
_FOLDER = ".agents"


class Limits(NamedTuple):
    """The most that agents may launch; None for no limit. `hours` is the sum over all runs."""

    runs: float | None = None
    tokens: float | None = None
    usd: float | None = None
    hours: float | None = None

    @property
    def allows_any(self) -> bool:
        """Whether any limit is set: without one nothing is launched."""
        return any(limit is not None for limit in self)


class Used(NamedTuple):
    """The amount that agents have launched: the runs, and what they have used or may still use."""

    runs: int = 0
    tokens: float = 0.0
    usd: float = 0.0
    hours: float = 0.0

    def left(self, limits: Limits) -> dict[str, float]:
        """Return what is left of each limit that is set."""
        pairs = zip(LIMITS, limits, self, strict=True)
        return {name: max(0, most - now) for name, most, now in pairs if most is not None}


class Entry(NamedTuple):
    """A launch: the ids of the runs that it started, and the budget of the sweep for its whole
    life."""

    path: str
    sweep: str
    runs: tuple[str, ...]
    budget: Mapping[str, float]


def read_limits(text: str | None) -> Limits:
    """Parse `--budget runs=50,usd=20`. Raises `UsageError`."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name.strip() not in LIMITS:
            raise UsageError(
                f"--budget {part.strip()}: write {', '.join(LIMITS)}, as runs=50,usd=20"
            )
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e15:
            raise UsageError(f"--budget {part.strip()}: is no number from 0 on")
        found[name.strip()] = number
    return Limits(**found)


def reserve(store: Store, sweep: str, runs: Sequence[str], budget: Mapping[str, float]) -> Entry:
    """Record a launch before it starts. Raises `StoreError`."""
    path = f"{_FOLDER}/{time.time_ns():019}-{os.urandom(4).hex()}.json"
    about = {"by": user(), "time": timestamp(), "sweep": sweep, "runs": list(runs)}
    store.create(path, encode({"schema": SCHEMA, **about, "budget": dict(budget)}))
    return Entry(path, sweep, tuple(runs), budget)


def retract(store: Store, entry: Entry) -> None:
    """Remove the record of a launch that started nothing. Raises `StoreError`."""
    store.remove([entry.path])


def entries(store: Store) -> list[Entry]:
    """Return all recorded launches, oldest first. Raises `StoreError`, also for a damaged record,
    since the amount left is then unknown."""
    found: list[Entry] = []
    for path in sorted(store.names(_FOLDER)):

        def read(document: object, place: str, path: str = path) -> Entry:
            top = Part(document, place)
            budget = top.part_or_none("budget")
            limits: dict[str, float] = {}
            if budget is not None:
                known = {name: budget.number_or(name, None) for name in LIMITS}
                limits = {name: value for name, value in known.items() if value is not None}
            return Entry(path, top.text("sweep"), tuple(top.texts_or("runs", ())), limits)

        try:
            found.append(read_as(store, path, read))
        except NotFound:
            continue  # just removed
    return found


def used(store: Store, recorded: Sequence[Entry]) -> Used:
    """Add up the usage of all these launches. Raises `StoreError`."""
    runs = {(entry.sweep, run) for entry in recorded for run in entry.runs}
    sums = {"tokens": 0.0, "usd": 0.0, "hours": 0.0}
    for sweep in dict.fromkeys(entry.sweep for entry in recorded):
        mine = [entry for entry in recorded if entry.sweep == sweep]
        caps = {key: max(entry.budget.get(key, 0.0) for entry in mine) for key in sums}
        spent, over = _spent(store, sweep)
        for key in sums:
            sums[key] += spent[key] if over else max(spent[key], caps[key])
    return Used(len(runs), **sums)


def _spent(store: Store, sweep: str) -> tuple[dict[str, float], bool]:
    """Return what a sweep has used, and whether it is finished."""
    from sweeper import prices
    from sweeper.results.costs import spent, together
    from sweeper.results.status import read_status
    from sweeper.results.sweeps import Sweep

    try:
        found = Sweep(store, sweep)
    except NotFound:
        return {"tokens": 0.0, "usd": 0.0, "hours": 0.0}, False
    table = prices.load()
    whole = together((spent(run, table) for run in found.runs if run.attempts), table)
    hours = sum(run.times["wall_s"] or 0.0 for run in found.runs if run.attempts) / 3600
    told: dict[str, float] = {"tokens": float(whole.usage.counts.tokens), "usd": whole.amount.usd}
    status = read_status(found)
    return {**told, "hours": hours}, status.finished and not status.at_work
