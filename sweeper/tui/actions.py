"""The actions that keys run on a sweep: cancel, retry, go to a run's tmux pane. Each function
returns a sentence to show, and raises what the verb of its name raises."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.backends.tmux.server import TmuxServer, socket_name
from sweeper.errors import NotFound
from sweeper.launcher.control import cancel_runs, retry_runs
from sweeper.results.sweeps import Sweep
from sweeper.sweep.folder import token
from sweeper.sweep.requests import Requested


def cancel(sweep: Sweep, runs: Sequence[str]) -> str:
    """Stop runs for good, and wait until they have ended."""
    return f"{_counted(cancel_runs(sweep.folder, runs))}"


def retry(sweep: Sweep, runs: Sequence[str]) -> str:
    """Start runs again."""
    messages: list[str] = []
    done = retry_runs(sweep, runs, tell=messages.append)
    requested = sum(request.asked for request in done)
    sentences = [f"{requested} to start again"] if requested else []
    refused = [request for request in done if not request.asked]
    return "; ".join([*sentences, *([_counted(refused)] if refused else []), *messages])


def _counted(done: Sequence[Requested]) -> str:
    counts = Counter(request.why for request in done)
    return ", ".join(f"{number} {why}" for why, number in counts.items())


class Pane(NamedTuple):
    """A run's pane: tmux's ids of the session, the window and the pane, and the server's
    socket."""

    session: str
    window: str
    id: str
    socket: str


def pane_of(sweep: Sweep, run: str, attempt: int) -> Pane:
    """Find the pane of a run's newest attempt on this machine. Raises `NotFound`."""
    launch = sweep.plan.launch
    if "tmux" not in launch.places:
        raise NotFound(
            f"the backend is {launch.backend}: there are no panes; enter shows the run's log"
        )
    server = TmuxServer()
    session = server.session(f"{sweep.root}/{sweep.name}")
    job = token(run, attempt)
    for pane in server.panes(session) if session is not None else ():
        if pane.command.endswith(job):
            return Pane(session or "", pane.window, pane.id, socket_name())
    raise NotFound("no pane of this run on this machine: it was closed, or has not started")


def go_there(pane: Pane) -> list[str] | None:
    """Bring the pane to the front of its session. Return None when the user sees it now. Returns
    the command that shows it for a user outside of tmux, and [] for one in another tmux server."""
    server = TmuxServer()
    server.source([f"select-window -t {pane.window}", f"select-pane -t {pane.id}"])
    socket, _, rest = os.environ.get("TMUX", "").partition(",")
    if not socket:
        return ["tmux", "-L", pane.socket, "attach-session", "-t", pane.session]
    if os.path.basename(socket) != pane.socket:
        return []
    if f"${rest.rpartition(',')[2]}" != pane.session:
        server.source([f"switch-client -t {pane.session}"])
    return None
