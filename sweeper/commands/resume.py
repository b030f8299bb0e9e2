"""`sweeper resume`: continues a sweep that is paused, or has lost its launcher."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.commands.selection import only, open_registry
from sweeper.launcher.pausing import resume
from sweeper.terminal import say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper resume`."""
    shared.sweep(verb, "the only one")
    shared.trust(verb)
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Request that the sweep continue, and start a launcher if none is at work."""
    from sweeper.commands.trust_prompt import agreeing

    name = arguments.sweep or only(open_registry(arguments))
    done = resume(name, root=arguments.root, agree=agreeing(arguments), tell=warn)
    if arguments.json:
        return print_steered(done)
    if not done.launcher:
        say(f"{done.sweep}: nothing is left to do")
    elif done.started:
        say(f"{done.sweep}: goes on, with a launcher that was started for it")
    else:
        say(f"{done.sweep}: {'goes on' if done.changed else 'is not paused'}")
    return 0
