"""`sweeper sweep delete`: removes a sweep and all its records, after asking."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import confirmed
from sweeper.errors import UsageError
from sweeper.launcher.annotations import delete, size_of
from sweeper.sweep.labels import plural
from sweeper.terminal import is_screen, print_json, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep delete`."""
    shared.one_sweep(verb, "a sweep that is not running")
    shared.group(verb, shared.SWEEP).add_argument("--yes", action="store_true", help="do not ask")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Remove a sweep. Raises `UsageError` if the user is needed and absent."""
    sweep = arguments.sweep
    runs, size = size_of(sweep, root=arguments.root)
    what = f"{sweep}: {plural(runs, 'run that has', 'runs that have')} begun, {size / 1e6:,.1f} MB"
    if not arguments.yes:
        if arguments.json or not is_screen():
            raise UsageError(
                f"{what}: delete? Then say --yes; `sweeper sweep archive` only hides it"
            )
        if not confirmed(f"{what}: delete, for good?"):
            raise UsageError("nothing was deleted")
    delete(sweep, root=arguments.root)
    if arguments.json:
        return print_json({"schema": 1, "sweep": sweep, "runs": runs, "bytes": size})
    say(f"{what}: deleted; checkpoints of its runs that a service keeps are still there")
    return 0
