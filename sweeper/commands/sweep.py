"""`sweeper sweep`: archives, renames or deletes a sweep."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import Verb
from sweeper.commands import arguments as shared
from sweeper.commands.output import confirmed
from sweeper.errors import UsageError
from sweeper.results.annotations import archive, delete, rename, size_of
from sweeper.sweep.labels import plural
from sweeper.terminal import is_screen, print_json, say


def _add_archive(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep archive`."""
    options = shared.group(verb, "which sweeps")
    options.add_argument("sweeps", nargs="+", metavar="SWEEP", help="a sweep")
    shared.flag(options, "--undo", "show them in lists again")
    shared.root(verb)
    shared.json(verb)


def _archive(arguments: Namespace) -> int:
    """Archive sweeps, or show them in lists again."""
    on = not arguments.undo
    changed = {name: archive(name, root=arguments.root, on=on) for name in arguments.sweeps}
    if arguments.json:
        records = [{"sweep": name, "archived": on, "changed": did} for name, did in changed.items()]
        return print_json({"schema": 1, "sweeps": records})
    for name, did in changed.items():
        shown = "archived: hidden from lists, still found by name"
        message = shown if on else "shown in lists again"
        say(f"{name}: {message}" if did else f"{name}: was {'already' if on else 'not'} archived")
    return 0


def _add_rename(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep rename`."""
    shared.required_sweep(verb, "a sweep that is not running")
    shared.group(verb, shared.SWEEP).add_argument("name", metavar="NAME", help="the new name")
    shared.root(verb)
    shared.json(verb)


def _rename(arguments: Namespace) -> int:
    """Rename a sweep."""
    rename(arguments.sweep, arguments.name, root=arguments.root)
    if arguments.json:
        return print_json({"schema": 1, "sweep": arguments.name, "was": arguments.sweep})
    say(
        f"{arguments.sweep} is now {arguments.name}; set `name: {arguments.name}` in the grid to "
        "continue it"
    )
    return 0


def _add_delete(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper sweep delete`."""
    shared.required_sweep(verb, "a sweep that is not running")
    shared.flag(shared.group(verb, shared.SWEEP), "--yes", "do not ask")
    shared.root(verb)
    shared.json(verb)


def _delete(arguments: Namespace) -> int:
    """Delete a sweep. Raises `UsageError` if the user does not confirm, or if there is no
    terminal."""
    sweep = arguments.sweep
    runs, size = size_of(sweep, root=arguments.root)
    contents = (
        f"{sweep}: {plural(runs, 'run that has', 'runs that have')} begun, {size / 1e6:,.1f} MB"
    )
    if not arguments.yes:
        if arguments.json or not is_screen():
            raise UsageError(
                f"{contents}: to delete all of this, add --yes; to only hide the sweep, use "
                "`sweeper sweep archive`"
            )
        if not confirmed(f"{contents}: delete, for good?"):
            raise UsageError("nothing was deleted")
    delete(sweep, root=arguments.root)
    if arguments.json:
        return print_json({"schema": 1, "sweep": sweep, "runs": runs, "bytes": size})
    say(f"{contents}: deleted; the service still keeps the checkpoints of its runs")
    return 0


VERBS = {
    "sweep archive": Verb(_add_archive, _archive),
    "sweep rename": Verb(_add_rename, _rename),
    "sweep delete": Verb(_add_delete, _delete),
}
