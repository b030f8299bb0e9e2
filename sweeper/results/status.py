"""Reads how a sweep stands: what is at work on it, what its launcher observes, whether it is
over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sweeper import labels
from sweeper.errors import Damaged, NotFound, StoreError
from sweeper.model.html import table, title
from sweeper.model.launcher import NO_OBSERVATIONS, Observations
from sweeper.model.observation import Kind, Observation
from sweeper.model.request import Asked
from sweeper.model.stage_waits import Fate, halted, told_of, waits
from sweeper.model.states import OPEN, NoState, State
from sweeper.model.usage import SweepUsage
from sweeper.results.selectors import current

if TYPE_CHECKING:
    from sweeper.monitor import Alarm
    from sweeper.results.runs import RecordedRun
    from sweeper.results.sweeps import Sweep

__all__ = ["NOBODY", "Status", "alarms_of", "check_service", "read_status"]

NOBODY = "no launcher is at work: nothing more is started"


class Status(NamedTuple):
    """How a sweep stood when it was read. `counts`: its runs by state. `at_work`: a job or a
    launcher is at work. `finished`: nothing runs, and by the runs' own histories nothing is left to
    start.

    `launcher`: one is at work. Only then is there what it observes of runs (`observed`: id -> in
    words), what does not answer it (`unreachable`), and how many jobs it starts at once if that is
    less than was asked for (`limit`, and why: `limit_why`). `held`: why the last launcher started
    nothing more. `waits`: which runs go on from others that did not succeed, a line for each
    reason; `usage`: what the runs had used when a launcher last summed it up; `to_come`: how many
    runs of each stage are not known yet.
    """

    sweep: str
    counts: Mapping[State | NoState, int]
    at_work: bool
    finished: bool
    launcher: bool
    observed: Mapping[str, str]
    unreachable: str | None
    limit: int | None
    limit_why: str | None
    held: str | None
    waits: tuple[str, ...] = ()
    usage: SweepUsage | None = None
    to_come: Mapping[str, int] = MappingProxyType({})

    @property
    def exit_code(self) -> int:
        """The exit code of `status` and `launch --wait`: 0 if all have succeeded, 3 if all is over
        and some have not, else 4."""
        if not self.finished:
            return 4
        return 0 if all(state is State.SUCCEEDED for state, n in self.counts.items() if n) else 3

    def _repr_html_(self) -> str:
        """In a notebook: how many runs are in each state."""
        told = "finished" if self.finished else "at work" if self.at_work else "not finished"
        rows = [(state.value, count) for state, count in self.counts.items()]
        return title(self.sweep, self.held or told) + table(("state", "runs"), rows)

    def published(self) -> dict[str, object]:
        """What a `--json` document has of it, besides the runs."""
        return {
            "launcher": self.launcher,
            "observed": dict(self.observed),
            "unreachable": self.unreachable,
            "limit": self.limit,
            "limit_why": self.limit_why,
            "held": self.held,
            **({"waits": list(self.waits)} if self.waits else {}),
            **({"to_come": dict(self.to_come)} if self.to_come else {}),
        }


def read_status(sweep: "Sweep") -> Status:
    """Read how a sweep stands, from its runs as they were read with it, and from what its launcher
    has published. Raises `StoreError` where that cannot be read and nobody is to be told."""
    from sweeper.storage.lock import is_held

    runs = current(sweep.runs)
    launcher = is_held(sweep.store, sweep.name)
    told = _observations(sweep)
    usage = told.usage
    held, told = labels.held_of(told), told if launcher else NO_OBSERVATIONS
    over = {run.id for run in sweep.runs if run.state in (State.SUCCEEDED, State.CANCELLED)}
    orphans, waiting = _waits(sweep)
    lowered = labels.LOWERED.get(told.limit_by or "", labels.LOWERED["service"])
    return Status(
        sweep=sweep.name,
        counts=Counter(run.state for run in runs),
        at_work=launcher or any(run.state in OPEN for run in runs),
        finished=all(run.is_finished for run in runs) and not sweep.plan.unknown,
        launcher=launcher,
        observed={
            run: labels.observed(one)
            for run, one in {**orphans, **told.observed}.items()
            if run not in over
        },
        unreachable=told.unreachable,
        limit=told.limit,
        limit_why=None if told.limit is None else lowered,
        held=held,
        waits=waiting,
        usage=usage,
        to_come=sweep.plan.unknown,
    )


def _waits(sweep: "Sweep") -> tuple[dict[str, Observation], tuple[str, ...]]:
    """The runs that wait for others, as a launcher would observe them; and for people, which wait
    in vain."""
    if not sweep.plan.stages:
        return {}, ()
    by_id = {run.id: run for run in sweep.runs}

    def fate(name: str) -> Fate:
        run = by_id[name]
        if run.state is State.SUCCEEDED:
            return "succeeded"
        if not run.is_finished:
            return "open"
        return "cancelled" if run.state is State.CANCELLED else "failed"

    runs, stages = waits(sweep.plan, fate, halted(sweep.plan, _cancelled(sweep)))
    found = {
        run: Observation(Kind.ORPHAN if wait.vain else Kind.PARENT, wait.on)
        for run, wait in runs.items()
    }
    return found, told_of(sweep.plan, runs, stages)


def _cancelled(sweep: "Sweep") -> Asked | None:
    from sweeper.storage.sweep_requests import asked_cancel

    try:
        return asked_cancel(sweep.store, sweep.name)
    except StoreError as error:
        sweep.unreadable(error)
        return None


def _observations(sweep: "Sweep") -> Observations:
    from sweeper.storage.sweeps import read_observations

    try:
        return read_observations(sweep.store, sweep.name)
    except StoreError as error:
        sweep.unreadable(error)
        return NO_OBSERVATIONS


def check_service(sweep: "Sweep") -> None:
    """See that the record of the sweep's last launch is not damaged. Nothing is shown of it: a
    store that does not answer hides nothing."""
    from sweeper.storage.sweeps import service_of

    try:
        service_of(sweep.store, sweep.name)
    except Damaged as error:
        sweep.unreadable(error)
    except (NotFound, StoreError):
        pass


def alarms_of(sweep: "Sweep", runs: Sequence["RecordedRun"]) -> list["Alarm"]:
    """The alarms of the newest attempts of these runs, oldest first."""
    from sweeper.monitor import read

    attempts = {run.id: run.attempts for run in runs}
    found = read(sweep.store, sweep.layout, told=sweep.unreadable)
    return [alarm for alarm in found if attempts.get(alarm.run) == alarm.attempt]
