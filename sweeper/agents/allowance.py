"""How much agents may launch in a root, as the person who started their server has said, and how
much they have.

    .agents/<nanoseconds since 1970>-<random>.json     a launch, on record before it happens

All that agents have ever launched in the root counts, whichever server they used: one that is
killed and started again gives them nothing more. Of a sweep that is not over counts what it may
use, else what it has used. Two who launch at once both put theirs on record and then look: at worst
both are refused.
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
    """The most that agents may launch; None for what has no limit. `hours`: of all runs."""

    runs: float | None = None
    tokens: float | None = None
    usd: float | None = None
    hours: float | None = None

    @property
    def allows_any(self) -> bool:
        """Whether a person has set any limit: without one nothing is launched."""
        return any(limit is not None for limit in self)


class Used(NamedTuple):
    """What agents have launched: the runs, and what these have used or may still use."""

    runs: int = 0
    tokens: float = 0.0
    usd: float = 0.0
    hours: float = 0.0

    def left(self, limits: Limits) -> dict[str, float]:
        """What is left of each limit that there is."""
        pairs = zip(LIMITS, limits, self, strict=True)
        return {name: max(0, most - now) for name, most, now in pairs if most is not None}


class Entry(NamedTuple):
    """A launch: the runs (ids) of a sweep that it started, and the budget that the sweep was given
    with it, for all that it ever uses."""

    path: str
    sweep: str
    runs: tuple[str, ...]
    budget: Mapping[str, float]


def read_limits(text: str | None) -> Limits:
    """What `--budget runs=50,usd=20` says. Raises `UsageError`."""
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
    """Put a launch on record that is about to happen. Raises `StoreError`."""
    path = f"{_FOLDER}/{time.time_ns():019}-{os.urandom(4).hex()}.json"
    about = {"by": user(), "time": timestamp(), "sweep": sweep, "runs": list(runs)}
    store.create(path, encode({"schema": SCHEMA, **about, "budget": dict(budget)}))
    return Entry(path, sweep, tuple(runs), budget)


def retract(store: Store, entry: Entry) -> None:
    """Take it back: nothing was started. Raises `StoreError`."""
    store.remove([entry.path])


def entries(store: Store) -> list[Entry]:
    """All launches on record, oldest first. Raises `StoreError`: also where one is damaged, since
    nobody knows then what is left."""
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
            continue  # just taken back
    return found


def used(store: Store, recorded: Sequence[Entry]) -> Used:
    """What these launches come to, beside each other. Raises `StoreError`."""
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
    """What a sweep has used, and whether it uses no more."""
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
