"""`sweeper compare`: two sweeps cell by cell, or two cells seed by seed."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_named
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_json

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper compare`."""
    shared.root(verb)
    shared.json(verb)
    shared.judge(verb)
    verb.add_argument("a", help="a sweep, or sweep/cell")
    verb.add_argument("b", help="another")


def run(arguments: Namespace) -> int:
    """Two sweeps cell by cell, or two cells seed by seed."""
    from sweeper import analysis

    registry, (a, b) = open_named(arguments.root, [arguments.a, arguments.b])
    found = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(found.document)
    else:
        print(found.text)
    return tell_problems(registry.problems)
