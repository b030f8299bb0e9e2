"""`sweeper attach`: opens a sweep's tmux windows in this terminal."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NoReturn

from sweeper.commands import arguments as shared
from sweeper.commands.selection import newest, open_registry
from sweeper.errors import NotFound, UsageError
from sweeper.results.sweeps import Sweep
from sweeper.sweep.hint import hint


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper attach`."""
    shared.optional_sweep(verb)
    shared.root(verb)


def _why_none(sweep: Sweep) -> str:
    """Explain why a sweep has no tmux windows on this machine."""
    places = sweep.plan.launch.places
    if "tmux" not in places:
        return f"{sweep.name} has no tmux windows: its backend is {', '.join(places)}"
    return f"{sweep.name} has no tmux windows here: they were closed, or are on another machine"


def run(arguments: Namespace) -> NoReturn:
    """Attach this terminal to the tmux windows of a sweep."""
    registry = open_registry(arguments, snapshot=True)
    sweep = registry.sweep(arguments.sweep or newest(registry))
    go(sweep.root, sweep.name, lambda: _why_none(sweep))


def go(root: str, name: str, why_none: Callable[[], str] = str) -> NoReturn:
    """Attach this terminal to the tmux windows of a sweep. Raises `UsageError` if standard
    output is not a terminal. If there are no windows, raises `NotFound` with the text that
    `why_none` returns."""
    from sweeper.backends.tmux.server import TmuxServer, socket_name

    server = TmuxServer()
    server.check()
    session = server.session(f"{root}/{name}")
    if session is None:
        raise NotFound(f"{why_none()}; `{hint('watch', name, root=root)}` shows the sweep")
    if not sys.stdout.isatty():
        raise UsageError("attach needs a terminal")
    sys.stdout.flush()
    command = ["tmux", "-L", socket_name()]
    environment = dict(os.environ)
    if server.is_around_us():  # in a window of the same server: switch this client
        command += ["switch-client", "-t", session]
    else:
        command += ["attach", "-t", session]
        if environment.pop("TMUX", None):  # tmux refuses to nest if TMUX is set, but nesting works
            advice = (
                "tmux inside tmux: press the prefix twice for the inner tmux (C-b C-b d detaches "
                "it)"
            )
            command += [";", "display-message", "-d", "4000", advice]
    os.execvpe(command[0], command, environment)
