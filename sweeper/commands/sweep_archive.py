"""`sweeper sweep archive`: archives sweeps, so that they are left out where no sweep is named."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.launcher.annotations import archive
from sweeper.terminal import print_json, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep archive`."""
    which = shared.group(verb, "which sweeps")
    which.add_argument("sweeps", nargs="+", metavar="SWEEP", help="a sweep")
    which.add_argument("--undo", action="store_true", help="show them in lists again")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Archive sweeps, or undo that."""
    on = not arguments.undo
    changed = {name: archive(name, root=arguments.root, on=on) for name in arguments.sweeps}
    if arguments.json:
        records = [{"sweep": name, "archived": on, "changed": did} for name, did in changed.items()]
        return print_json({"schema": 1, "sweeps": records})
    for name, did in changed.items():
        shown = "archived: hidden from lists, still found by name"
        message = shown if on else "not archived any more"
        say(f"{name}: {message}" if did else f"{name}: was {'' if on else 'not '}archived before")
    return 0
