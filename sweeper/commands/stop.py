"""`sweeper stop`: ends the launcher of a sweep, but none of its runs."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.control import stop
from sweeper.terminal import say, warn

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper stop`."""
    shared.root(verb)
    shared.json(verb)
    verb.add_argument("sweep", help="a sweep")


def run(arguments: Namespace) -> int:
    """Ask the launcher to end, and wait until it has ended."""
    done = stop(arguments.sweep, root=arguments.root, tell=warn)
    if arguments.json:
        return print_steered(done)
    if not done.changed:
        say(f"{done.sweep}: no launcher is at work")
        return 0
    say(f"{done.sweep}: its launcher has ended; what runs goes on, and nothing new is started")
    say(f"`sweeper resume {shared.with_root(done.sweep, arguments.root)}` starts one again")
    return 0
