"""The verbs that change what a sweep does: cancel and retry.

Both put a request on record for every run that is meant, and then see that it is done: by the
launcher that is at work on the sweep, else by one of their own. A request is a file that is created
once, so a verb that was killed is simply typed again.
"""

import getpass
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sweeper.errors import (
    AlreadyExists,
    AnotherLauncher,
    EnvironmentFailure,
    NotFound,
    UsageError,
)
from sweeper.states import OPEN, Event, State, cancel_asked, fold, retry_asked, wants_attempt
from sweeper.store.documents import SCHEMA, encode, timestamp
from sweeper.store.files import Store, default_root
from sweeper.store.layout import Layout
from sweeper.store.sweeps import read_events, read_plan
from sweeper.terminal import print_json, warn

if TYPE_CHECKING:
    from sweeper.records.runs import RecordedRun, Sweep

__all__ = ["cancel", "cancel_runs", "request_cancel", "request_retry", "retry"]

_POLL_SECONDS = 0.5
_STOP_SECONDS = 45.0
"""What a launcher takes to notice, and a worker beyond its grace, at most."""
_TAKE_OVER_SECONDS = 3.0

Happened = set[tuple[int, Event]]


class Requested(NamedTuple):
    """What was asked of a run: `asked` is False where there was nothing to ask; `why` says why."""

    run: str
    asked: bool
    why: str


def cancel(arguments: Namespace) -> int:
    """Stop runs, and start them no more."""
    sweep, runs = _chosen(arguments)
    names = {run.id: run.name for run in sweep.runs}
    done = cancel_runs(sweep.store, sweep.name, [run.id for run in runs], tell=warn)
    states = {run: fold(events) for run, events in read_events(sweep.store, sweep.name).items()}
    if arguments.json:
        found = [
            {
                "id": request.run,
                "name": names[request.run],
                "state": states[request.run].state.value if request.run in states else "planned",
                "asked": request.asked,
                "why": request.why,
            }
            for request in done
        ]
        return print_json({"schema": SCHEMA, "sweep": sweep.name, "runs": found})
    told = [request for request in done if request.asked] or done
    counts = Counter(request.why for request in told)
    print(f"{sweep.name}: {', '.join(f'{n} {why}' for why, n in counts.items()) or 'no run'}")
    return 0


def cancel_runs(
    store: Store, sweep: str, runs: Sequence[str], *, tell: Callable[[str], None] = lambda _: None
) -> list[Requested]:
    """Cancel these runs (ids), and wait until none is at work. Raises `EnvironmentFailure` when
    some still are after the time that their `grace` gives them and a little more: the requests stay
    on record."""
    from sweeper.store.lock import holding_sweep, is_held

    launch = read_plan(store, sweep)["launch"]
    retries: int = launch["retries"]
    events = read_events(store, sweep)
    done = {run: request_cancel(store, sweep, run, events.get(run, set()), retries) for run in runs}
    seconds = launch["grace_s"] + _STOP_SECONDS
    deadline = time.monotonic() + seconds
    told = 0
    while left := _unfinished(store, sweep, done, retries):
        if len(left) != told:
            tell(f"waiting for {len(left)} runs to stop")
            told = len(left)
        if time.monotonic() > deadline:
            raise EnvironmentFailure(
                f"{len(left)} runs of {sweep!r} are still at work after {seconds:g} s; they are "
                f"asked to stop: look again with `sweeper status {sweep}`"
            )
        if not is_held(store, sweep):
            with suppress(AnotherLauncher), holding_sweep(store, sweep):
                _stop(store, sweep, done, retries, deadline, tell)
        time.sleep(_POLL_SECONDS)
    if not is_held(store, sweep):
        with suppress(AnotherLauncher), holding_sweep(store, sweep):
            _forget_environment(store, sweep, retries)
    events = read_events(store, sweep)
    return [_outcome(request, events.get(run, set())) for run, request in done.items()]


def _stop(
    store: Store,
    sweep: str,
    runs: Collection[str],
    retries: int,
    deadline: float,
    tell: Callable[[str], None],
) -> None:
    """Be the launcher that stops runs and starts none."""
    from sweeper.backends import open_backend
    from sweeper.launcher.loop import Launcher

    folder = f"{store.root}/{sweep}"
    backend = open_backend(read_plan(store, sweep)["launch"]["backend"], sweep, folder)
    launcher = Launcher(store, sweep, backend, starting=False)
    said: str | None = None
    while time.monotonic() < deadline:
        summary = launcher.step()
        if summary.unreachable is not None and summary.unreachable != said:
            tell(f"waiting: {summary.unreachable}")
        said = summary.unreachable
        if not _unfinished(store, sweep, runs, retries):
            return
        time.sleep(_POLL_SECONDS)


def _forget_environment(store: Store, sweep: str, retries: int) -> None:
    """Remove the environment of runs when no run needs it any more: none is at work, and none is
    to be started by a launcher, which may just be on its way."""
    from sweeper.launcher import environment
    from sweeper.store.documents import read_json

    events = read_events(store, sweep)
    for run in read_plan(store, sweep)["runs"]:
        happened = events.get(run["id"], set())
        state = fold(happened)
        wanted = not run.get("retired") and wants_attempt(happened, retries)
        if wanted or state.state in OPEN or state.unacknowledged:
            return
    with suppress(NotFound):
        path: str | None = read_json(store, Layout(sweep).service)["env_file"]
        if path is not None:
            environment.forget(path)


def _unfinished(store: Store, sweep: str, runs: Iterable[str], retries: int) -> list[str]:
    """Those of `runs` that may be at work. Asks again for what was taken back meanwhile: a launcher
    may have granted another attempt in the moment in which we asked that there be none."""
    events = read_events(store, sweep)
    left: list[str] = []
    for run in runs:
        happened = events.get(run, set())
        request_cancel(store, sweep, run, happened, retries)
        state = fold(happened)
        if state.state in OPEN or state.unacknowledged:
            left.append(run)
    return left


def _outcome(request: Requested, happened: Happened) -> Requested:
    state = fold(happened).state
    if not request.asked:
        return request
    if state is State.CANCELLED:
        return request._replace(why="cancelled")
    return request._replace(why=f"{state.value} before they could be stopped")


def request_cancel(
    store: Store, sweep: str, run: str, happened: Happened, retries: int
) -> Requested:
    """Ask that a run be stopped and not started again, where there is anything to stop."""
    state = fold(happened)
    at_work = state.state in OPEN or state.unacknowledged
    waits = state.state in (State.PLANNED, State.PREEMPTED, State.LOST)
    waits = waits or wants_attempt(happened, retries)
    if cancel_asked(happened) or not (at_work or waits):
        word = "cancelled" if state.state is State.CANCELLED else f"{state.state.value} already"
        return Requested(run, cancel_asked(happened), word)
    attempt = max(state.opened, 1)
    if at_work:
        _request(store, sweep, run, attempt, Event.CANCEL, happened)
    last = max((n for n, event in happened if event is Event.RETRY), default=0)
    if last >= attempt or not at_work:
        # A retry of the same attempt would take the request back: name the attempt after it.
        _request(store, sweep, run, max(attempt, last + 1), Event.CANCEL, happened)
    return Requested(run, True, "cancelled")


def retry(arguments: Namespace) -> int:
    """Start runs again."""
    from sweeper.launcher.progress import exit_code, showing_progress
    from sweeper.launcher.start import go_on

    sweep, runs = _chosen(arguments)
    if not (arguments.runs or arguments.state) or arguments.failed:
        failed = (State.FAILED, State.LOST, State.PREEMPTED)
        runs = [run for run in runs if run.state in failed]
    _refuse(sweep, runs, arguments.runs)
    events = read_events(sweep.store, sweep.name)
    done = [request_retry(sweep.store, sweep.name, r.id, events.get(r.id, set())) for r in runs]
    for why, count in Counter(request.why for request in done if not request.asked).items():
        warn(f"{count} {why}")
    asked = sum(request.asked for request in done)
    print(f"{sweep.name}: {asked} runs to start again", flush=True)
    if not asked:
        if not runs:
            warn("none has failed; what was cancelled is named, or chosen by --state cancelled")
        return 0
    _tell_code(sweep)
    if _taken_up(sweep.store, sweep.name):
        print("the launcher at work on the sweep takes them up")
        return 0
    with showing_progress() as notify:
        try:
            launched = go_on(sweep.store, sweep.name, wait=arguments.wait, notify=notify)
        except KeyboardInterrupt:
            warn("interrupted; what runs goes on")
            return 130
    if launched.summary is None:
        print(f"launched; watch it with `sweeper status {sweep.name} --follow`")
        return 0
    return exit_code(launched.summary)


def _refuse(sweep: "Sweep", runs: "Sequence[RecordedRun]", named: Sequence[str]) -> None:
    """A run that succeeded is never trained again: to name one is a mistake."""
    over = [run for run in runs if run.state is State.SUCCEEDED]
    if over and named:
        raise UsageError(
            f"{over[0].name} of {sweep.name} has succeeded: there is nothing to retry; to train it "
            "once more, launch the grid under another name"
        )


def _tell_code(sweep: "Sweep") -> None:
    """What is retried runs the code of the launch, which may not be what the user has in mind."""
    from sweeper.launcher.recording import hidden_values, secret_names
    from sweeper.provenance import snapshot

    document = sweep.document
    kept = document.get("snapshot")
    if not kept:
        return
    values = hidden_values(secret_names(document["secrets"], document["service"]))
    if snapshot.changed(sweep.store, kept, secrets=values):
        warn(
            "the code has changed since the launch, and what is retried runs it as it was then; "
            "`sweeper launch` of the grid takes the new"
        )
    else:
        snapshot.relink(kept)


def _taken_up(store: Store, sweep: str) -> bool:
    """Whether a launcher is at work that will see the requests, which are on record: one that is
    just about to end may have looked before."""
    from sweeper.store.lock import is_held

    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while time.monotonic() < deadline:
        if not is_held(store, sweep):
            return False
        time.sleep(0.1)
    return True


def request_retry(store: Store, sweep: str, run: str, happened: Happened) -> Requested:
    """Ask for another attempt of a run that has ended without success."""
    state = fold(happened)
    if state.state is State.SUCCEEDED:
        return Requested(run, False, "succeeded already")
    if state.state in OPEN or state.unacknowledged:
        word = "being cancelled: retry them when they have ended"
        return Requested(run, False, word if cancel_asked(happened) else "still at work")
    if retry_asked(happened):
        return Requested(run, True, "asked for already")
    last = max((n for n, event in happened if event is Event.CANCEL), default=0)
    _request(store, sweep, run, max(state.opened, last, 1), Event.RETRY, happened)
    return Requested(run, True, "asked for")


def _chosen(arguments: Namespace) -> "tuple[Sweep, list[RecordedRun]]":
    from sweeper.records.selecting import pick
    from sweeper.registry import Registry

    sweep = Registry(arguments.root or default_root()).sweep(arguments.sweep)
    return sweep, pick(sweep.runs, arguments.runs, arguments.state, arguments.where)


def _request(
    store: Store, sweep: str, run: str, attempt: int, event: Event, happened: Happened
) -> None:
    """Put a request on record; that it is there already is as good."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    body = {"schema": SCHEMA, "time": timestamp(), "by": f"{user}@{os.uname().nodename}"}
    with suppress(AlreadyExists):
        store.create(Layout(sweep).event(run, attempt, event), encode(body))
    happened.add((attempt, event))
