"""`sweeper pause`: starts nothing new of a sweep for a while."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered
from sweeper.control import pause
from sweeper.terminal import say

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper pause`."""
    shared.root(verb)
    shared.json(verb)
    verb.add_argument("sweep", help="a sweep")
    verb.add_argument(
        "--runs",
        action="store_true",
        help="also stop running jobs, after a checkpoint where possible",
    )


def run(arguments: Namespace) -> int:
    """Request the pause."""
    done = pause(arguments.sweep, root=arguments.root, runs=arguments.runs)
    if arguments.json:
        return print_steered(done, runs=arguments.runs)
    runs = "what runs is stopped" if arguments.runs else "what runs goes on"
    also = "" if done.launcher else "; no launcher is at work"
    say(f"{done.sweep}: paused: nothing new is started, {runs}{also}")
    say(f"`sweeper resume {shared.with_root(done.sweep, arguments.root)}` goes on")
    return 0
