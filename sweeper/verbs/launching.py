"""Starting a sweep, going to where it runs, and the engine that runs may need."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from sweeper.errors import NotFound, UsageError
from sweeper.states import State, fold, is_finished
from sweeper.store.files import default_root, open_store
from sweeper.terminal import say, shortened, warn

if TYPE_CHECKING:
    from sweeper.planner.plan import Plan

__all__ = ["attach", "engine", "launch"]


def launch(arguments: Namespace) -> int:
    """Start a grid, or go on with it."""
    from sweeper.launcher import start
    from sweeper.launcher.planning import planned_by
    from sweeper.launcher.progress import exit_code
    from sweeper.verbs.trusting import agreeing
    from sweeper.verbs.viewing import showing

    planned = planned_by(arguments)
    for warning in planned.warnings:
        warn(f"warning: {warning}")
    begun, idle = _before(planned, arguments.root or default_root())
    say(f"{planned.name}: {len(planned.runs)} runs of {shortened(planned.recipe.reference)}{begun}")
    flags: dict[str, Any] = {"smoke": arguments.smoke, "live": arguments.live}
    flags["agree"] = agreeing(arguments)
    where = f"{planned.name} --root {arguments.root}" if arguments.root else planned.name
    if not arguments.wait:
        launched = start.launch(planned, arguments.root, wait=False, tell=warn, **flags)
        _tell_failed(_left_alone(launched.root, planned), where)
        if idle:
            say(f"nothing to start; `sweeper status {where}` shows what there is")
            return 0
        attach = f" or `sweeper attach {where}`" if planned.launch.backend == "tmux" else ""
        say(f"launched; watch it with `sweeper watch {where}`{attach}")
        return 0
    if planned.launch.backend == "tmux":
        say(f"watch it with `sweeper attach {where}` from another terminal", flush=True)
    root = arguments.root or default_root()
    try:
        with showing(planned.name, root, plain=arguments.plain) as notify:
            launched = start.launch(
                planned, arguments.root, wait=True, notify=notify, tell=warn, **flags
            )
    except KeyboardInterrupt:
        again = f"{arguments.grid} --root {arguments.root}" if arguments.root else arguments.grid
        warn(f"interrupted; what runs goes on, `sweeper launch {again}` takes up the rest")
        return 130
    if launched.summary is None:
        return 4
    _tell_failed(launched.summary.counts[State.FAILED], where)
    return exit_code(launched.summary)


def _before(planned: "Plan", root: str) -> tuple[str, bool]:
    """What an earlier launch has left to do (`: 2 to start, 16 succeeded`), nothing without one;
    and whether that is nothing at all."""
    from sweeper.launcher.planning import counts, survey
    from sweeper.states import OPEN

    found = survey(planned, open_store(root))
    if not any(fate.state.opened for fate in found.fates):
        return "", False
    return f": {counts(found)}", not any(f.attempt or f.state.state in OPEN for f in found.fates)


def _left_alone(root: str, planned: "Plan") -> int:
    """How many runs have failed before and have no retry left."""
    from sweeper.store.sweeps import read_events

    try:
        events = read_events(open_store(root), planned.name)
    except NotFound:
        return 0  # it was never launched
    return sum(
        fold(events[run.id]).state is State.FAILED
        and is_finished(events[run.id], planned.launch.retries)
        for run in planned.runs
        if run.id in events
    )


def _tell_failed(count: int, where: str) -> None:
    """A failed run is not started again by launching once more, which is easily expected."""
    if count:
        warn(
            f"{count} failed: `sweeper logs {where} --state failed` shows what they printed, "
            f"`sweeper retry {where}` starts them again"
        )


def attach(arguments: Namespace) -> int:
    """Become a tmux client that shows a sweep's windows."""
    from sweeper.backends.tmux.backend import TmuxServer, socket_name
    from sweeper.registry import Registry

    registry = Registry(arguments.root or default_root())
    found = registry.sweep_records()
    names = [s["sweep"] for s in sorted(found, key=lambda s: s["created"] or "")]
    if not names:
        raise NotFound(f"no sweep in {arguments.root or default_root()}")
    name = arguments.sweep or names[-1]
    sweep = registry.sweep(name)
    server = TmuxServer()
    server.check()
    session = server.session(f"{sweep.root}/{sweep.name}")
    if session is None:
        raise NotFound(
            f"{name!r} has no tmux session: its windows were closed, or it ran elsewhere"
        )
    if not sys.stdout.isatty():
        raise UsageError("attach needs a terminal")
    sys.stdout.flush()
    command = ["tmux", "-L", socket_name()]
    environment = dict(os.environ)
    if server.is_around_us():  # in a window of the same server: this client goes there
        command += ["switch-client", "-t", session]
    else:
        command += ["attach", "-t", session]
        if environment.pop("TMUX", None):  # it would refuse to run in another tmux, which is fine
            said = "in another tmux: type the prefix twice to reach this one (C-b C-b d leaves it)"
            command += [";", "display-message", "-d", "4000", said]
    os.execvpe(command[0], command, environment)


def engine(arguments: Namespace) -> int:
    """Serve, look for, or stop the local engine."""
    from sweeper.engine.__main__ import main
    from sweeper.launcher.environment import users

    return main(arguments.rest, users)
