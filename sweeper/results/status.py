"""Reads the status of a sweep: the states of its runs, its launcher's observations, and whether it
has ended."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import Damaged, NotFound, StoreError
from sweeper.results.selectors import current
from sweeper.sweep import labels
from sweeper.sweep.launcher import NO_OBSERVATIONS, Observations, held_of
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.states import OPEN, NoState, State
from sweeper.sweep.usage import SweepUsage

if TYPE_CHECKING:
    from sweeper.alarms import Alarm
    from sweeper.results.runs import RecordedRun
    from sweeper.results.sweeps import Sweep
    from sweeper.sweep.request import Request
    from sweeper.sweep.stage_waits import Fate

NOBODY = "no launcher is running: no runs are started until `sweeper resume`"


class Status(NamedTuple):
    """The status of a sweep at one time.

    `counts`: the number of runs in each state. `at_work`: a job or a launcher is running.
    `finished`: every run has ended, and no run is left to start. `launcher`: a launcher is running.
    `held`: the reason why the last launcher started no more runs. `waits`: messages about runs that
    cannot start without a user's action. `usage`: the usage of the runs, as a launcher last
    computed it. `to_come`: stage -> the number of its runs that the plan does not contain yet.
    `observed`: run id -> why the run does not start or progress, such as `queued: Priority`.

    `unreachable`: the error, if a backend or service does not answer a running launcher. `limit`:
    a running launcher's limit on parallel jobs, if the limit was lowered. `limit_why`: the reason.
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
        """The exit code of `status` and `launch --wait`: 0 if all runs succeeded, 3 if all have
        ended and some did not succeed, else 4."""
        if not self.finished:
            return 4
        return 0 if all(state is State.SUCCEEDED for state, n in self.counts.items() if n) else 3

    def _repr_html_(self) -> str:
        """Return the number of runs in each state as HTML for a notebook."""
        from sweeper.common.html import table, title

        words = "finished" if self.finished else "at work" if self.at_work else "not finished"
        rows = [(state.value, count) for state, count in self.counts.items()]
        return title(self.sweep, self.held or words) + table(("state", "runs"), rows)

    def published(self) -> dict[str, object]:
        """Return the status fields of the document that `status --json` prints."""
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
    """Read the status from the runs of a sweep, and from what its launcher has published. Raises
    `StoreError` if a file is unreadable and the sweep has no `on_error`."""
    from sweeper.sweep.lock import is_held

    runs = current(sweep.runs)
    launcher = is_held(sweep.folder)
    observations = _observations(sweep)
    usage = observations.usage
    reasons, observations = (held_of(observations), observations if launcher else NO_OBSERVATIONS)
    counts = Counter(run.state for run in runs)
    orphans, waiting = _waits(sweep)
    observed = {**orphans, **observations.observed}
    over = {
        run.id
        for run in sweep.runs
        if run.id in observed and run.state in (State.SUCCEEDED, State.CANCELLED)
    }
    lowered = labels.LOWERED.get(observations.limit_by or "", labels.LOWERED["service"])
    return Status(
        sweep=sweep.name,
        counts=counts,
        at_work=launcher or any(counts[state] for state in OPEN),
        finished=all(run.is_finished for run in runs) and not sweep.plan.unknown,
        launcher=launcher,
        observed={
            run: labels.observed(observation)
            for run, observation in observed.items()
            if run not in over
        },
        unreachable=observations.unreachable,
        limit=observations.limit,
        limit_why=None if observations.limit is None else lowered,
        held=reasons,
        waits=waiting,
        usage=usage,
        to_come=sweep.plan.unknown,
    )


def stands_still(sweep: "Sweep") -> str | None:
    """Return the reason why no runs of a sweep are started; None if a launcher is starting runs."""
    from sweeper.sweep.lock import is_held

    reasons = held_of(_observations(sweep))
    return reasons or (None if is_held(sweep.folder) else NOBODY)


def _waits(sweep: "Sweep") -> tuple[dict[str, Observation], tuple[str, ...]]:
    """Return a dict from the id of each run that waits for other runs to an observation that says
    so, and messages about runs that cannot start without a user's action."""
    if not sweep.plan.stages:
        return {}, ()
    # Imported late: most sweeps have no stages.
    from sweeper.sweep.stage_waits import halted, told_of, waits

    by_id = {run.id: run for run in sweep.runs}

    def fate(name: str) -> "Fate":
        run = by_id[name]
        if run.state is State.SUCCEEDED:
            return "succeeded"
        if not run.is_finished:
            return "open"
        return "cancelled" if run.state is State.CANCELLED else "failed"

    runs, stages = waits(sweep.plan, fate, halted(sweep.plan, _cancelled(sweep)))
    observations = {
        run: Observation(Kind.ORPHAN if wait.vain else Kind.PARENT, wait.on)
        for run, wait in runs.items()
    }
    return observations, told_of(sweep.plan, runs, stages)


def _cancelled(sweep: "Sweep") -> "Request | None":
    from sweeper.sweep.sweep_requests import asked_cancel

    try:
        return asked_cancel(sweep.folder)
    except StoreError as error:
        sweep.unreadable(error)
        return None


def _observations(sweep: "Sweep") -> Observations:
    try:
        return sweep.folder.read_observations()
    except StoreError as error:
        sweep.unreadable(error)
        return NO_OBSERVATIONS


def check_service(sweep: "Sweep") -> None:
    """Pass the error to `sweep.unreadable` if the content of `service.json` is invalid. Ignore
    all other errors, for example a missing file."""

    try:
        sweep.folder.read_service()
    except Damaged as error:
        sweep.unreadable(error)
    except (NotFound, StoreError):
        pass


def alarms_of(sweep: "Sweep", runs: Sequence["RecordedRun"]) -> list["Alarm"]:
    """Return the alarms of the newest attempts of these runs, oldest first."""
    top = sweep.store.local_path(sweep.folder.alarms)
    if top is not None and not os.path.isdir(top):
        return []  # most sweeps have no alarms: load nothing more
    from sweeper.alarms import read

    attempts = {run.id: run.attempts for run in runs}
    alarms = read(sweep.folder, on_error=sweep.unreadable)
    return [alarm for alarm in alarms if attempts.get(alarm.run) == alarm.attempt]
