"""The ledger: a record of the work that was done, written outside the program, and the checks
against it.

A line is `run attempt step`, appended with one `O_APPEND` write and synced. The checks read only
the ledger and the events in the store.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event, State, fold

Row = tuple[str, int, int]
"""Run, attempt, step."""


def read_ledger(path: Path) -> list[Row]:
    """Return every row, in the order of writing."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows: list[Row] = []
    for line in lines:
        run, attempt, step = line.split(" ")
        rows.append((run, int(attempt), int(step)))
    return rows


def write_row(path: str, row: Row) -> None:
    """Append a row, durably and whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, "{} {} {}\n".format(*row).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Verdict(NamedTuple):
    """Errors of a sweep that has ended; empty if it went well.

    `lost`: runs that are not in their expected final state. `doubled`: steps of one attempt that
    happened twice, and attempts of a run that had succeeded. `wrong`: states that the ledger
    contradicts."""

    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def judge(
    store: Store,
    sweep: str,
    rows: Iterable[Row],
    steps: int,
    *,
    expected: Mapping[str, State] | None = None,
    once: bool = False,
    resumes: bool = False,
) -> Verdict:
    """Compare a sweep's events with its ledger.

    A run of `steps` steps is done when one attempt has done all of them, or, if the recipe
    `resumes`, when its attempts together have. `expected` are the states that runs should end in,
    SUCCEEDED for the others. `once`: only launchers were disturbed, so that every run has one
    attempt."""
    events = SweepFolder(store, sweep).read_events()
    done: defaultdict[str, defaultdict[int, Counter[int]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    doubled: list[str] = []
    for run, attempt, step in rows:
        done[run][attempt][step] += 1
        if done[run][attempt][step] == 2:
            doubled.append(f"{run}: step {step} of attempt {attempt} happened twice")
    lost: list[str] = []
    wrong: list[str] = []
    planned = [run.id for run in SweepFolder(store, sweep).read_plan().runs if not run.retired]
    for run in planned:
        happened = events.get(run, set())
        state = fold(happened)
        want = (expected or {}).get(run, State.SUCCEEDED)
        if state.state is not want:
            lost.append(f"{run}: {state.state.value}, not {want.value}: {sorted(happened)}")
        through = done[run]
        whole = set(range(steps))
        if resumes:
            complete = {s for counter in through.values() for s in counter} >= whole
        else:
            complete = set(through[state.attempt]) == whole
        if (state.state is State.SUCCEEDED) and not complete:
            wrong.append(f"{run}: succeeded, but the ledger has {dict(through)}")
        claimless = [a for a in sorted(through) if (a, Event.CLAIMED) not in happened]
        wrong += [f"{run}: attempt {attempt} trained without a claim" for attempt in claimless]
        succeeded = [attempt for attempt, event in happened if event is Event.SUCCEEDED]
        if succeeded and max(through, default=0) > min(succeeded):
            doubled.append(f"{run}: trained again after attempt {min(succeeded)} had succeeded")
        if once and state.opened > 1:
            doubled.append(f"{run}: attempt {state.opened} where one was enough: {happened}")
    strangers = sorted(set(done) - set(planned))
    wrong += [f"{run}: in the ledger, but in no plan" for run in strangers if done[run]]
    return Verdict(tuple(lost), tuple(doubled), tuple(wrong))
