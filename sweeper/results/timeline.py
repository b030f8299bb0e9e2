"""Shows a sweep's attempts on a time axis, as trace events for Perfetto and Chrome."""

# The format is Chrome's Trace Event Format: "X" is a span with `ts` and `dur` in microseconds, "M"
# names a process (`pid`, a sweep) or a thread of it (`tid`, a run).

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from sweeper.errors import NotFound
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.event import Paused
from sweeper.sweep.labels import pause_of
from sweeper.sweep.states import Event

TraceEvent = dict[str, object]


def trace_events(runs: Sequence[RecordedRun], now: datetime) -> list[TraceEvent]:
    """Return all attempts of the runs as events of Chrome's trace format. An attempt that has not
    ended lasts until `now`. Runs outside sweeps have no recorded times and are left out."""
    planned = [run for run in runs if isinstance(run, SweepRun)]
    sweeps = {name: number for number, name in enumerate(dict.fromkeys(r.sweep for r in planned))}
    events = [_named("process_name", pid, 0, name) for name, pid in sweeps.items()]
    for tid, run in enumerate(planned, start=1):
        pid = sweeps[run.sweep]
        events.append(_named("thread_name", pid, tid, run.name))
        events += [{"pid": pid, "tid": tid, **span} for span in _spans(run, now)]
    return events


def _named(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _spans(run: SweepRun, now: datetime) -> Iterator[TraceEvent]:
    """Yield the spans of a run. For each attempt these are the wait for a worker, the work, and
    the pauses in which the service delayed the work."""
    for attempt in range(1, run.attempts + 1):
        outcome = run.ended(attempt)
        opened = _opened(run, attempt)
        started = _time(outcome.started or outcome.time)
        if opened is not None:
            # Until a worker claims the attempt, it is in the launcher's queue or in the backend's.
            yield _span("waits to start", opened, started or now, {"attempt": attempt})
        if started is None:
            continue
        ended = _time(outcome.ended)
        facts = {
            "attempt": attempt,
            "state": run.state.value if ended is None or attempt == run.attempts else None,
            "reason": outcome.reason,
            "detail": outcome.detail,
            "host": outcome.host,
            "delayed by the service (s)": outcome.paused_s or None,
        }
        args = {key: value for key, value in facts.items() if value is not None}
        yield _span(f"attempt {attempt}", started, ended or now, args)
        pauses = outcome.pauses if ended else run.heartbeat(attempt).pauses
        yield from _pauses(pauses, started, ended or now)


def _pauses(pauses: Sequence[Paused], started: datetime, ended: datetime) -> Iterator[TraceEvent]:
    """Yield the pauses of an attempt, each shortened to the time between `started` and `ended`."""
    for pause in pauses:
        since = _time(pause.since or None)
        if since is None:
            continue
        last = min(since + timedelta(seconds=pause.for_s), ended)
        name = f"delayed: {pause_of(pause.reason, None)}"
        yield _span(name, max(since, started), last, {"seconds": pause.for_s})


def _opened(run: SweepRun, attempt: int) -> datetime | None:
    """Return when the launcher was about to submit an attempt. None for an attempt that the
    backend itself restarted."""
    with suppress(NotFound):
        return _time(run.sweep_folder.read_event(run.id, attempt, Event.INTENT).time)
    return None


def _span(name: str, start: datetime, end: datetime, args: Mapping[str, object]) -> TraceEvent:
    lasted = max((end - start).total_seconds(), 0.0)
    return {
        "ph": "X",
        "name": name,
        "ts": round(start.timestamp() * 1e6),
        "dur": round(lasted * 1e6),
        "args": args,
    }


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
