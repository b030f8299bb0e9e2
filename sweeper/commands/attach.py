"""`sweeper attach`: shows a sweep's tmux windows."""

import os
import sys
from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.selection import newest, open_registry
from sweeper.errors import NotFound, UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper attach`."""
    shared.root(verb)
    verb.add_argument("sweep", nargs="?", help="a sweep (default: the newest)")


def run(arguments: Namespace) -> int:
    """Become a tmux client that shows a sweep's windows."""
    from sweeper.backends.tmux.backend import TmuxServer, socket_name

    registry = open_registry(arguments)
    name = arguments.sweep or newest(registry)
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
    if server.is_around_us():  # in a window of the same server: switch this client
        command += ["switch-client", "-t", session]
    else:
        command += ["attach", "-t", session]
        if environment.pop("TMUX", None):  # tmux refuses to nest if TMUX is set, but nesting works
            said = "in another tmux: type the prefix twice to reach this one (C-b C-b d leaves it)"
            command += [";", "display-message", "-d", "4000", said]
    os.execvpe(command[0], command, environment)
