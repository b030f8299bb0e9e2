"""Parts of the poller: the states of runs, their earlier metrics, estimates of the remaining
time, and the `RunView` of a run."""

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import StoreError
from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.rows import Point, numbers
from sweeper.results.sweeps import SweepRun
from sweeper.scheduler.failures import EXCUSED
from sweeper.sweep import labels
from sweeper.sweep.event import Outcome
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.heartbeats import Beat
from sweeper.sweep.marks import Marks
from sweeper.sweep.observation import Kind, Observation
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import (
    OPEN,
    Event,
    RunState,
    State,
    fold,
    parse_name,
    retry_asked,
    wants_attempt,
)
from sweeper.tui.model import (
    Alarm,
    RunView,
    SweepView,
    nearly,
    remaining,
    sweep_remaining,
    total_steps,
)
from sweeper.tui.series import Series

if TYPE_CHECKING:
    from sweeper.results.metrics_reader import Tabulator


_LARGE = 100_000
"""Metrics with more bytes than this are read by `Tabulator`, which has a cache but takes longer
to import."""
_SETTLED = 2
"""A folder counts as unchanged after this many polls with the same timestamp. One such poll is
not enough: two changes within a tick of the kernel's clock have the same timestamp."""


class States:
    """The states of a sweep's runs. `retries` returns how often a failed run may be retried.
    `again` has the runs for which a user has requested another attempt that is not open yet."""

    def __init__(self, folder: SweepFolder, retries: Callable[[str], int] = lambda _: 0) -> None:
        self._store, self._folder, self._retries = folder.store, folder, retries
        self._top = folder.store.local_path(folder.state)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._folded: dict[frozenset[tuple[int, Event]], RunState] = {}
        self.events: dict[str, frozenset[tuple[int, Event]]] = {}
        self.known: dict[str, RunState] = {}
        self.again: set[str] = set()
        self._settled: set[str] = set()

    def wants(self, run: str) -> bool:
        """Return whether a run needs another attempt, or may soon need one."""
        return run not in self._settled

    def check(self, runs: Iterable[str]) -> list[str]:
        """Poll the runs. Return the runs with new events since the last poll."""
        if self._top is None:
            events = self._folder.read_events()
            return [run for run in runs if self._see(run, events.get(run, ()))]
        return [run for run in runs if self._changed(run)]

    def _changed(self, run: str) -> bool:
        folder = f"{self._top}/{run}"
        try:
            stamp = os.stat(folder).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return self._see(run, ())
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error
        before, looks = self._stamps.get(run, (-1, 0))
        if before == stamp and looks >= _SETTLED:
            return False
        self._stamps[run] = (stamp, looks + 1 if before == stamp else 0)
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        return self._see(run, filter(None, map(parse_name, names)))

    def _see(self, run: str, happened: Iterable[tuple[int, Event]]) -> bool:
        events = frozenset(happened)
        if self.events.get(run, frozenset()) == events:
            return False
        if events not in self._folded:
            self._folded[events] = fold(events)
        self.events[run], self.known[run] = events, self._folded[events]
        (self.again.add if retry_asked(events) else self.again.discard)(run)
        wants = wants_attempt(events, self._retries(run)) or self.known[run].unacknowledged
        (self._settled.discard if wants else self._settled.add)(run)
        return True


def past_points(run: SweepRun, key: str, memory: Folder) -> Iterable[Point]:
    """Return the (step, value) points of the metric `key` in all attempts of a run."""
    sources = [run.files.source(path) for path in run.metrics_paths()]
    size = sum(source.stamp.size for source in sources if source is not None)
    if not size:
        return []
    if size < _LARGE and not run.store.is_remote:
        return numbers(run.history.rows, key)
    steps, values = _tables(run.root, memory).curve(run, key)
    return (
        Point(None if math.isnan(step) else step, value)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True)
    )


@functools.lru_cache(maxsize=2)
def _tables(root: str, memory: Folder) -> "Tabulator":
    """Return a reader of the metrics in the store `root`. The reader is cached, because it takes
    time to open."""
    from sweeper.results.metrics_reader import Tabulator
    from sweeper.results.problems import Problems

    return Tabulator({root: memory}, Problems())


_UTC = re.compile(r"\b(?:(\d{4}-\d\d-\d\d)T)?(\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z\b|\+00:00)")


class Timing:
    """Estimates of the progress and the remaining time of a plan's runs. `totals` has the number of
    steps of each run (None if unknown). `clock` returns monotonic seconds."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        takes = [
            {key: about.get("default") for key, about in part.recipe.takes.items()}
            for part in plan.parts
        ]
        parts = zip(plan.parts, takes, strict=True)
        self.totals = {run.id: total_steps(run.config, d) for part, d in parts for run in part.runs}
        self._clock = clock
        self._seen: dict[str, tuple[int, float, float]] = {}

    def fraction(self, run: str, state: RunState, series: Series | None) -> float | None:
        """Return the completed fraction of a run, or None if unknown."""
        if state.state is State.SUCCEEDED:
            return 1.0
        if series is None or series.step is None:
            return None
        if series.done is not None:
            return series.done
        total = self.totals[run]
        return None if total is None else min(1.0, (series.step + 1) / total)

    def left(
        self, run: str, state: RunState, fraction: float | None, began: float | None
    ) -> float | None:
        """Estimate the seconds until a run ends, or return None if unknown. `began` is the time of
        the attempt's start on `clock`."""
        if fraction is None:
            return None
        now = self._clock()
        attempt, at, then = self._seen.get(run, (0, 0.0, 0.0))
        if attempt != state.attempt:
            attempt, at, then = self._seen[run] = (state.attempt, now, fraction)
        # Later attempts may start with completed work.
        since = began if state.attempt == 1 else None
        return nearly(remaining(fraction, (at, then), since, now))


def sweep_left(view: SweepView, durations: Sequence[float]) -> float | None:
    """Estimate the seconds until a sweep ends. `durations` has the durations of succeeded runs.
    Return None if unknown, or if no launcher will start the remaining runs."""
    if not view.launcher or view.held:
        return None
    at_work = [run.eta for run in view.runs if run.state in ("running", "submitted")]
    waiting = sum(run.wants for run in view.runs)
    durations = durations or [
        run.eta / (1.0 - run.fraction)
        for run in view.runs
        if run.eta and run.fraction is not None and run.fraction < 1.0
    ]
    typical = sum(durations) / len(durations) if durations else None
    slots = view.limit or view.parallel
    return nearly(sweep_remaining(at_work, waiting, typical, slots))


def by_our_clock(text: str) -> str:
    """Replace the UTC times in a text by local times: `rate limit since 12:01:03Z` -> `rate limit
    since 14:01`. A date in the text is kept unless it is today's date."""
    return _UTC.sub(_here, text)


def _here(match: re.Match[str]) -> str:
    now = datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(f"{match[1] or now.date()}T{match[2]}+00:00").astimezone()
    except (ValueError, OverflowError):
        return match[0]
    same = match[1] is None or moment.date() == now.astimezone().date()
    return moment.strftime("%H:%M" if same else "%Y-%m-%d %H:%M")


class RunFacts(NamedTuple):
    """The facts that determine a run's view. `again`: a user has requested to start the run again.
    `body` is the content of the last event. `backend` is the run's backend if the sweep has
    several. `last_line` is the last output line of a failed run. `version` is the version of the
    run's `Series`. `beat` is the number of seconds since the last heartbeat, rounded to the
    displayed precision. `late`: the last heartbeat is too old."""

    state: RunState
    observed: Observation | None
    again: bool
    wants: bool
    waits: str
    alarms: tuple[Alarm, ...]
    marks: Marks
    body: Outcome
    backend: str
    last_line: str
    version: int
    beat: float | None
    late: bool


def run_view(
    planned: Run, facts: RunFacts, series: Series | None, timing: Timing, began: float | None
) -> RunView:
    """Make the view of a run. `began` is the time of the attempt's start on the clock of
    `timing`."""
    identity = planned.id
    state, body = facts.state, facts.body
    is_open = state.state in OPEN
    step = None if series is None else series.step
    fraction = timing.fraction(identity, state, series)
    stalled = is_open and is_kind(facts.observed, Kind.STALLED)
    eta = None
    if is_open and not (facts.waits or stalled or facts.late):
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
        wants=facts.wants,
        waits=facts.waits,
        observed="" if over or stalled else _words(facts.observed, again=facts.again),
        silent=is_open and facts.late,
        stalled=stalled,
        reason="" if is_open else body.reason or "",
        last_line="" if is_open else facts.last_line,
        step=step,
        total=timing.totals[identity],
        fraction=fraction,
        eta=eta,
        curve=() if series is None else series.curve,
        value=None if series is None else series.value,
        diverged=series is not None and series.diverged,
        beat=facts.beat,
        alarms=facts.alarms,
        marks=facts.marks,
        backend=facts.backend,
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
    """Return the reason why the service delays a run, or "". If a job of the run may be running,
    the run's worker or the launcher reports the reason. If the service ended the last attempt
    (exhausted quota, lost engine) and the run will be tried again, return why the attempt ended."""
    if state.state in OPEN:
        # Prefer the worker's heartbeat, since it is more recent than what the launcher publishes.
        # Of a remote store, only the launcher reads all heartbeats.
        if beat is not None and beat.body.paused is not None:
            paused = beat.body.paused
            return by_our_clock(labels.pause_of(paused.reason, paused.since))
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
