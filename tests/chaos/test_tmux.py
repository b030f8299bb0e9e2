"""Effects on a sweep of events in tmux: its server killed, its socket deleted, a window closed;
and a worker that wakes up when a newer attempt has taken its place."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from harness.real import NAME, Sweep, Sweeps, until

from sweeper.backends.tmux.server import TmuxServer
from sweeper.errors import NotFound, Unreachable
from sweeper.store.documents import read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event


def _tmux(socket: str, *arguments: str) -> str:
    command = ["tmux", "-L", socket, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _pids(sweep: Sweep) -> list[int]:
    """Return the pids of the workers that have claimed, as they report them."""
    try:
        happened = SweepFolder(sweep.store, NAME).read_events()
    except NotFound:
        return []  # not yet
    return [
        int(read_json(sweep.store, sweep.sweep_folder.event(run, attempt, Event.CLAIMED))["pid"])
        for run, events in happened.items()
        for attempt, event in events
        if event is Event.CLAIMED
    ]


def _no_session(sweep: Sweep) -> bool:
    try:
        return TmuxServer().session(f"{sweep.store.root}/{NAME}") is None
    except Unreachable:  # the server is about to exit
        return False


def _at_work(sweep: Sweep) -> bool:
    """Return whether two recipes, as many as run at once, have begun. A worker's interpreter that
    is just starting does not ignore a hangup yet."""
    return len({run for run, _, _ in sweep.rows()}) == 2


def _go_on(sweep: Sweep) -> None:
    """Release the waiting recipes: until then no other run is started."""
    Path(f"{sweep.ledger}.go").touch()


def test_the_server_is_killed(make_sweep: Sweeps, tmux_socket: str) -> None:
    """The workers survive the hangup and finish; pending runs get a new server."""
    sweep = make_sweep(backend="tmux", runs=4, mode="waits")
    launching = sweep.start(fork=False)
    until(lambda: _at_work(sweep))
    _tmux(tmux_socket, "kill-server")
    _go_on(sweep)
    sweep.end_well(launching, once=True)


def test_the_server_is_killed_and_so_are_its_jobs(make_sweep: Sweeps, tmux_socket: str) -> None:
    """All jobs are lost after the lease, and started again."""
    sweep = make_sweep(backend="tmux", runs=4, lease=1.0, mode="waits")
    launching = sweep.start(fork=False)
    until(lambda: _at_work(sweep))
    killed = _pids(sweep)
    _tmux(tmux_socket, "kill-server")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    _go_on(sweep)
    sweep.end_well(launching)
    assert (
        sum(
            (1, Event.LOST) in events
            for events in SweepFolder(sweep.store, NAME).read_events().values()
        )
        >= 1
    )


def test_the_socket_is_deleted(make_sweep: Sweeps, tmux_socket: str) -> None:
    """The server lives but is unreachable: its jobs continue to their end."""
    sweep = make_sweep(backend="tmux", runs=4, seconds=1.2)
    launching = sweep.start(fork=False)
    until(lambda: len(sweep.rows()) >= 2)
    server, path = _tmux(tmux_socket, "display-message", "-p", "#{pid} #{socket_path}").split()
    Path(path).unlink()
    try:
        sweep.end_well(launching, once=True)
    finally:
        os.kill(int(server), signal.SIGTERM)


def test_a_window_is_closed_by_the_user(make_sweep: Sweeps, tmux_socket: str) -> None:
    """Closing a window does not cancel: the run continues without it."""
    sweep = make_sweep(backend="tmux", runs=3, mode="waits")
    launching = sweep.start(fork=False)
    until(lambda: _at_work(sweep))
    session = TmuxServer().session(f"{sweep.store.root}/{NAME}")
    assert session is not None
    closed = 0
    listing = _tmux(
        tmux_socket, "list-windows", "-t", session, "-F", "#{window_id}\t#{window_name}"
    )
    for line in listing.splitlines():
        window, _, name = line.partition("\t")
        if name.startswith("x="):
            _tmux(tmux_socket, "kill-window", "-t", window)
            closed += 1
    assert closed >= 1
    _go_on(sweep)
    sweep.end_well(launching, once=True)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        # A worker whose heartbeat was late when tmux died may count as lost, and have ended.
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_stopped_worker_wakes_up_beside_a_newer_attempt(
    make_sweep: Sweeps, tmux_socket: str
) -> None:
    """The worker is hidden, as if it were on another machine. tmux is killed, worker and recipe get
    SIGSTOP: they are lost after the lease, and attempt 2 succeeds. After SIGCONT the old worker
    finds the newer attempt and stops, its outcome overrides nothing, and its late output is in its
    own folder."""
    spec: Any = {"hidden": True}
    # The first attempt waits at step 25, so that it cannot end before this test stops it.
    mode = "first:holds-25"
    sweep = make_sweep(
        backend="tmux", runs=1, steps=30, seconds=4.5, lease=1.0, spec=spec, mode=mode
    )
    launching = sweep.start(fork=False)
    until(lambda: len(sweep.rows()) >= 3)
    (pid,) = _pids(sweep)
    stopped = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    _tmux(tmux_socket, "kill-server")  # first: a hangup continues a stopped process
    until(lambda: _no_session(sweep))
    _signal(stopped, signal.SIGSTOP)
    until(lambda: any(attempt == 2 for _, attempt, _ in sweep.rows()), 60, "no second attempt")
    _signal(stopped, signal.SIGCONT)
    assert launching.wait() == 0, sweep.log.read_text()
    sweep.rest()
    (run,) = sweep.states()
    events = SweepFolder(sweep.store, NAME).read_events()[run]
    assert {(1, Event.LOST), (1, Event.PREEMPTED), (2, Event.SUCCEEDED)} <= events
    body = read_json(sweep.store, sweep.sweep_folder.event(run, 1, Event.PREEMPTED))
    assert body["reason"] == "superseded"
    assert sweep.verdict().good
    second = Path(
        sweep.store.root, sweep.sweep_folder.log_path(run, 2), "metrics.jsonl"
    ).read_bytes()
    assert second.count(b"\n") == 30
