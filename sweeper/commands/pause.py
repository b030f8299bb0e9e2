"""`sweeper pause`: starts nothing new of a sweep for a while."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.commands.selection import only, open_registry
from sweeper.launcher.pausing import pause
from sweeper.sweep.hint import hint
from sweeper.terminal import say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper pause`."""
    shared.sweep(verb, "the only one, or the only one at work")
    shared.group(verb, "what to pause").add_argument(
        "--runs",
        action="store_true",
        help="also stop running jobs, after a checkpoint where possible",
    )
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Request the pause."""
    name = arguments.sweep or only(open_registry(arguments), at_work=True)
    done = pause(name, root=arguments.root, runs=arguments.runs)
    if arguments.json:
        return print_steered(done, runs=arguments.runs)
    runs = "running jobs are stopped" if arguments.runs else "running jobs continue"
    also = "" if done.launcher else "; no launcher is at work"
    say(f"{done.sweep}: paused: nothing new is started, {runs}{also}")
    say(f"`{hint('resume', done.sweep, root=arguments.root)}` continues it")
    return 0
