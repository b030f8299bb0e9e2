"""`sweeper store sync`: uploads files that dead workers left on this machine to the store."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.common.codec import SCHEMA
from sweeper.errors import EnvironmentFailure
from sweeper.paths import home
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.terminal import print_json, say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper store sync`."""
    shared.optional_sweep(verb, "all")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Upload the files that dead workers left on this machine, for one sweep or for all sweeps."""
    from sweeper.worker import spool

    done: list[dict[str, object]] = []
    failures: list[str] = []
    for root, folder, sweeps in spool.spools(home()):
        chosen = [name for name in sweeps if arguments.sweep in (None, name)]
        if chosen and arguments.root in (None, root):
            store = open_store(root)
            for name in chosen:
                count = spool.recover(store, SweepFolder(folder, name), tell=failures.append)
                done.append({"root": root, "sweep": name, "attempts": count})
    for line in failures:
        warn(line)
    code = EnvironmentFailure.exit_code if failures else 0
    if arguments.json:
        return print_json({"schema": SCHEMA, "sweeps": done}) or code
    for row in done:
        say(f"{row['root']}/{row['sweep']}: uploaded to the store (attempts: {row['attempts']})")
    if not done:
        say("nothing to upload")
    return code
