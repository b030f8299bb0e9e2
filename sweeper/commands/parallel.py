"""`sweeper parallel`: changes how many jobs of a sweep run at once."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.launcher.pausing import parallel
from sweeper.terminal import say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper parallel`."""
    shared.one_sweep(verb)
    shared.group(verb, "how many").add_argument(
        "jobs", metavar="JOBS", type=int, help="most jobs at once, until it is launched again"
    )
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Request so many jobs at once."""
    done = parallel(arguments.sweep, arguments.jobs, root=arguments.root)
    if arguments.json:
        return print_steered(done, jobs=arguments.jobs)
    when = "" if done.launcher else "; no launcher is at work: it counts for the next"
    say(f"{done.sweep}: at most {arguments.jobs} at once{when}")
    return 0
