"""`sweeper sweep rename`: gives a sweep another name."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.launcher.annotations import rename
from sweeper.terminal import print_json, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep rename`."""
    shared.one_sweep(verb, "a sweep that is not running")
    shared.group(verb, shared.SWEEP).add_argument("name", metavar="NAME", help="the new name")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Give a sweep another name."""
    rename(arguments.sweep, arguments.name, root=arguments.root)
    if arguments.json:
        return print_json({"schema": 1, "sweep": arguments.name, "was": arguments.sweep})
    say(
        f"{arguments.sweep} is now {arguments.name}; set `name: {arguments.name}` in the grid to "
        "continue it"
    )
    return 0
