"""`sweeper stop`: ends the launcher of a sweep, but none of its runs."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.commands.selection import only, open_registry
from sweeper.launcher.pausing import stop
from sweeper.sweep.hint import hint
from sweeper.terminal import say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper stop`."""
    shared.sweep(verb, "the only one, or the only one at work")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Ask the launcher to end, and wait until it has ended."""
    name = arguments.sweep or only(open_registry(arguments), at_work=True)
    done = stop(name, root=arguments.root, tell=warn)
    if arguments.json:
        return print_steered(done)
    if not done.changed:
        say(f"{done.sweep}: no launcher is at work")
        return 0
    say(f"{done.sweep}: its launcher has ended; running jobs continue, and nothing new is started")
    say(f"`{hint('resume', done.sweep, root=arguments.root)}` starts one again")
    return 0
