"""Runs jobs as panes of sweeper's own tmux server, with a session for each sweep. A job is
identified by its token, the last argument of its program. tmux's exit codes are not used."""

import hashlib
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from sweeper.backends.base import Backend, JobSpec, JobState, JobStatus
from sweeper.backends.gpu_room import GpuRoom
from sweeper.backends.live_workers import Workers
from sweeper.backends.tmux.server import (
    Pane,
    Refusal,
    TmuxServer,
    argument,
    as_shown,
)
from sweeper.common.sweeper_argv import self_command
from sweeper.sweep.launch_settings import MOST_PANES
from sweeper.sweep.states import State

_LEAST_WIDTH, _LEAST_HEIGHT = 26, 5
"""The smallest size of a useful pane, including its border. A window of 40 x 12 characters holds
two panes; the next panes get another window."""

MOST_ENDED = 50
"""Maximum number of panes of ended jobs that stay open. The output of a job whose pane was closed
is in the log of its run."""

_OVER = re.compile("succeeded$|failed|cancelled$|preempted|lost|next attempt")
"""Matches the labels of panes whose jobs have ended."""
_TOKEN = re.compile(r"(?:^|\s)([0-9a-f]+-a[0-9]+)$")


def open_backend(
    sweep: str, folder: str, options: Mapping[str, object] = MappingProxyType({})
) -> "TmuxBackend":
    """Open the tmux backend for one sweep. Raises `EnvironmentFailure` if there is no tmux or its
    socket cannot be created."""
    server = TmuxServer()
    server.check()
    return TmuxBackend(server, sweep, folder, options)


def ensure_view(server: TmuxServer, sweep: str, folder: str) -> str:
    """Ensure that a window of the sweep's session runs `sweeper watch`, and return the session's
    id."""
    command = self_command("watch", sweep, "--root", os.path.dirname(folder), "--until-ended")
    return server.ensure_window(sweep, folder, "sweep", command)


class TmuxBackend(Backend):
    """A backend (see `sweeper.backends.base.Backend`)."""

    name = "tmux"
    shows = True

    def __init__(
        self,
        server: TmuxServer,
        sweep: str,
        folder: str,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._server = server
        self._sweep = sweep
        self._folder = folder
        self._workers = Workers(folder)
        self._gpus = GpuRoom(options, self.name)

    def submit(self, jobs: Sequence[JobSpec]) -> None:
        if not jobs:
            return
        self._gpus.submitted(jobs)
        session = ensure_view(self._server, self._sweep, self._folder)
        lines = [_own_window(session, job) for job in jobs if job.window is None]
        grouped = [job for job in jobs if job.window is not None]
        if grouped:
            lines += _grouped(session, grouped, self._server.panes(session))
        try:
            self._server.source(lines)
        except Refusal:
            # A window had no room or was closed meanwhile. The missing jobs get windows of their
            # own.
            panes = self._panes([job.token for job in jobs])
            missing = [job for job in jobs if job.token not in panes]
            self._server.source([_own_window(session, job) for job in missing])

    def find(self, tokens: Sequence[str]) -> dict[str, str]:
        panes = {token: pane.id for token, pane in self._panes(tokens).items()}
        elsewhere = self._workers.holding(set(tokens) - panes.keys())
        return panes | dict.fromkeys(elsewhere, "no window")

    def poll(self, tokens: Sequence[str]) -> dict[str, JobStatus]:
        panes = self._panes(tokens)
        shown = {token for token, pane in panes.items() if not pane.dead}
        # A worker may outlive its window and its tmux server, or belong to another server.
        alive = shown | self._workers.holding(set(tokens) - shown)
        return {token: _status(token in alive, panes.get(token)) for token in tokens}

    def cancel(self, tokens: Sequence[str]) -> None:
        panes = self._panes(tokens)
        shown = {token: pane.pid for token, pane in panes.items() if not pane.dead and pane.pid}
        others = self._workers.find(set(tokens) - shown.keys())
        for pid in (*shown.values(), *(process.pid for process in others.values())):
            with suppress(ProcessLookupError):  # The worker ended by itself.
                os.kill(pid, signal.SIGTERM)

    def logs(self, token: str) -> Iterator[str]:
        pane = self._panes([token]).get(token)
        return iter(self._server.capture(pane.id) if pane else ())

    def preflight(self, resources: Sequence[Mapping[str, object]]) -> None:
        self._gpus.check(resources)

    def room(self, resources: Mapping[str, object] | None = None) -> int | None:
        return self._gpus.room(resources)

    def forget(self, tokens: Sequence[str]) -> None:
        """Close the panes of ended jobs. If the session contains no other job, close the
        session."""
        session = self._server.session(self._folder)
        if session is None:
            return
        over = {pane.id for pane in self._panes(tokens).values() if pane.dead}
        jobs = {pane.id for pane in self._server.panes(session) if _TOKEN.search(pane.command)}
        lines = [f"kill-pane -t {pane}" for pane in sorted(over)]
        if jobs == over:
            lines = [f"kill-session -t {argument(session)}"]
        with suppress(Refusal):
            self._server.source(lines)

    def show(self, status: str, words: Mapping[str, str]) -> None:
        """Show the sweep's `status` in tmux's status line. `words` maps a job's token to the label
        in the border of the job's pane. Also close surplus panes of ended jobs (more than
        `MOST_ENDED`)."""
        session = self._server.session(self._folder)
        if session is None:
            return
        name = argument(session + ":")
        lines = [f"set-option -t {name} @sweeper_status {argument(as_shown(status))}"]
        for job, pane in self._panes(list(words)).items():
            word = argument(as_shown(words[job]))
            lines.append(f"set-option -p -t {pane.id} @sweeper_state {word}")
        lines += _closing(self._server.panes(session), MOST_ENDED)
        with suppress(Refusal):  # A user closed a pane meanwhile. The others have their labels.
            self._server.source(lines)

    def _panes(self, tokens: Sequence[str]) -> dict[str, Pane]:
        session = self._server.session(self._folder) if tokens else None
        if session is None:
            return {}
        wanted = set(tokens)
        panes: dict[str, Pane] = {}
        for pane in self._server.panes(session):
            match = _TOKEN.search(pane.command)
            if match and match.group(1) in wanted:
                before = panes.get(match.group(1))
                # Several panes may have the token, for example one of an earlier sweep in the same
                # folder. A pane with a running job counts.
                if before is None or before.dead:
                    panes[match.group(1)] = pane
        return panes


def _closing(panes: Sequence[Pane], most: int) -> list[str]:
    """Return the tmux commands that close surplus panes of ended jobs (more than `most`). Panes of
    successful jobs are closed first, and older panes before newer ones. Panes in the current window
    stay open, since a user may be reading them."""
    over = [pane for pane in panes if pane.dead and _OVER.match(pane.word)]
    over.sort(key=lambda pane: (pane.word != State.SUCCEEDED.value, int(pane.id[1:])))
    surplus = over[: max(0, len(over) - most)]
    return [f"kill-pane -t {pane.id}" for pane in surplus if not pane.current]


def _status(alive: bool, pane: Pane | None) -> JobStatus:
    if alive:
        return JobStatus(JobState.RUNNING)
    return JobStatus(JobState.ABSENT if pane is None else JobState.ENDED)


def _own_window(session: str, job: JobSpec, name: str | None = None) -> str:
    """Return the tmux command that opens a window for a job. The window is called `name`, by
    default the job's title."""
    called = argument(as_shown(job.title) if name is None else name)
    return f"new-window -d -t {argument(session + ':')} -n {called} {_program(job)}"


def _program(job: JobSpec) -> str:
    return f"-c {argument(as_shown(job.cwd))} " + " ".join(map(argument, job.argv))


def _grouped(session: str, jobs: Sequence[JobSpec], panes: Sequence[Pane]) -> list[str]:
    """Return the tmux commands that open a pane for each job in a window for the job's group
    (`JobSpec.window`). Windows with room are filled first, then new windows are opened."""
    lines: list[str] = []
    groups: dict[str, list[JobSpec]] = {}
    for job in jobs:
        groups.setdefault(job.window or "", []).append(job)
    for label, members in groups.items():
        wanted = members[0].window_panes
        group_hash = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        used: dict[str, int] = {}
        room: dict[str, int] = {}
        for pane in panes:
            if pane.group == group_hash:
                used[pane.window] = used.get(pane.window, 0) + 1
                room[pane.window] = panes_in(pane.width, pane.height, wanted)
        remaining = list(members)
        for window, count in used.items():
            free = max(0, room[window] - count)
            for job in remaining[:free]:
                lines += _split(window, job)
            remaining = remaining[free:]
        # A new window is as large as the existing ones.
        most = panes_in(panes[0].width, panes[0].height, wanted) if panes else wanted
        number = len(used)
        while remaining:
            number += 1
            name = label if number == 1 else f"{label}-{number}"
            lines += _new_group(session, group_hash, name, remaining[:most])
            remaining = remaining[most:]
    return lines


def panes_in(width: int, height: int, wanted: int = MOST_PANES) -> int:
    """Return how many panes fit into a window of this size (in characters): at least 1 and at most
    `wanted`."""
    return max(1, min(wanted, (width // _LEAST_WIDTH) * (height // _LEAST_HEIGHT)))


def _new_group(session: str, group_hash: str, name: str, jobs: Sequence[JobSpec]) -> list[str]:
    """Return the tmux commands for a window with a pane for each job. The window is renamed to
    `name` last, since the other commands would misread a dot or a colon in its name."""
    target = f"{session}:={jobs[0].token}"
    lines = [
        _own_window(session, jobs[0], jobs[0].token),
        f"set-option -w -t {argument(target)} @sweeper_group {group_hash}",
        f"set-option -w -t {argument(target)} pane-border-status top",
        f"set-option -p -t {argument(target)} @sweeper_title {argument(as_shown(jobs[0].title))}",
    ]
    for job in jobs[1:]:
        lines += _split(target, job)
    return [*lines, f"rename-window -t {argument(target)} {argument(as_shown(name))}"]


def _split(target: str, job: JobSpec) -> list[str]:
    """Return a line of tmux commands that adds a pane to the window `target`. If there is no room
    for the pane, tmux skips the rest of the line."""
    window = argument(target)
    steps = [
        f"split-window -t {window} {_program(job)}",
        f"set-option -p -t {window} @sweeper_title {argument(as_shown(job.title))}",
        f"select-layout -t {window} tiled",
    ]
    return [" ; ".join(steps)]
