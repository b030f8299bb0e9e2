"""Makes the `RunView` of a run from what is known of it. Pure: no clock and no store."""

from typing import NamedTuple

from sweeper.scheduler.failures import EXCUSED
from sweeper.sweep import labels
from sweeper.sweep.event import Outcome
from sweeper.sweep.heartbeats import Beat
from sweeper.sweep.mark import Marks
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Run
from sweeper.sweep.states import OPEN, RunState, State
from sweeper.tui.eta import Timing, by_our_clock
from sweeper.tui.model import Alarm, RunView
from sweeper.tui.series import Series


class Known(NamedTuple):
    """The changing facts about a run. `again`: a user has asked for it to be started again. `body`
    is its last event, `backend` its backend if there are several, `said` the last line of a failed
    run, `version` that of its series. `beat` has the seconds since its heartbeat, rounded to the
    displayed precision; `late` says whether that is too long."""

    state: RunState
    observed: Observation | None
    again: bool
    wants: bool
    waits: str
    alarms: tuple[Alarm, ...]
    marks: Marks
    body: Outcome
    backend: str
    said: str
    version: int
    beat: float | None
    late: bool


def run_view(
    planned: Run, known: Known, series: Series | None, timing: Timing, began: float | None
) -> RunView:
    """Make the run as the screen shows it; its attempt began at `began` by the clock of
    `timing`."""
    identity = planned.id
    state, body = known.state, known.body
    is_open = state.state in OPEN
    step = None if series is None else series.step
    fraction = timing.fraction(identity, state, series)
    stalled = is_open and is_kind(known.observed, Kind.STALLED)
    eta = None
    if is_open and not (known.waits or stalled or known.late):
        eta = timing.left(identity, state, fraction, began)
    over = state.state is State.SUCCEEDED
    return RunView(
        id=identity,
        name=planned.name,
        cell=planned.cell,
        seed=planned.seed,
        config=planned.config,
        state=state.state.value,
        attempt=state.opened,
        wants=known.wants,
        waits=known.waits,
        observed="" if over or stalled else _words(known.observed, again=known.again),
        silent=is_open and known.late,
        stalled=stalled,
        reason="" if is_open else body.reason or "",
        said="" if is_open else known.said,
        step=step,
        total=timing.totals[identity],
        fraction=fraction,
        eta=eta,
        curve=() if series is None else series.curve,
        value=None if series is None else series.value,
        diverged=series is not None and series.diverged,
        beat=known.beat,
        alarms=known.alarms,
        marks=known.marks,
        backend=known.backend,
    )


def why_waits(
    state: RunState,
    observed: Observation | None,
    beat: Beat | None,
    body: Outcome,
    *,
    again: bool,
    wants: bool,
) -> str:
    """Return why the service holds a run back: the worker says so; or the quota, or an engine that
    went away, has ended its last attempt and there will be another."""
    if state.state in OPEN:
        # The launcher publishes less often than a worker beats, but sees the heartbeats of all
        # stores.
        if beat is not None and beat.body.paused is not None:
            return by_our_clock(labels.pause_of(*beat.body.paused))
        if observed is None or observed.kind is not Kind.PAUSED:
            return ""
        return by_our_clock(labels.pause_of(observed.reason, observed.time))
    if body.reason not in EXCUSED or not wants:
        return ""
    return ": ".join(filter(None, (by_our_clock(body.reason), _words(observed, again=again))))


def is_kind(observed: Observation | None, kind: Kind) -> bool:
    """Return whether the launcher's observation of a run is of this kind."""
    return observed is not None and observed.kind is kind


def _words(observed: Observation | None, *, again: bool) -> str:
    if observed is not None:
        return by_our_clock(labels.observed(observed))
    return "to start again" if again else ""
