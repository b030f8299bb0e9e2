"""`sweeper compare`: compares two sweeps cell by cell, two cells seed by seed, or the answers of
checkpoints to the same prompts."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_named
from sweeper.errors import UsageError
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_json


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper compare`."""
    shared.roots(verb)
    shared.json(verb)
    shared.judge(verb)
    verb.add_argument("a", nargs="?", help="a sweep, or sweep/cell")
    verb.add_argument("b", nargs="?", help="another")
    group = verb.add_argument_group("checkpoints side by side")
    group.add_argument(
        "--checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="runs, their folders, tinker:// addresses, or base; the first is compared with",
    )
    group.add_argument("--prompts", metavar="FILE", help="JSONL of prompts, as the eval recipe's")
    group.add_argument("--model", help="the model that `base` stands for")
    group.add_argument("--grader", help="grader of prompts that name none (exact)")
    group.add_argument("--samples", type=int, default=1, help="answers to each prompt (1)")
    group.add_argument("--temperature", type=float, default=0.0, help="sampling temperature (0)")
    group.add_argument("--max-tokens", type=int, default=64, help="most tokens in an answer (64)")
    group.add_argument("-n", "--limit", type=int, default=10, help="how many of each (10); 0: all")
    group.add_argument(
        "--full", action="store_true", help="show all prompts, not only those that differ"
    )
    group.add_argument("--out", metavar="FILE", help="also write an HTML page")


def run(arguments: Namespace) -> int:
    """Compare two sweeps cell by cell, two cells seed by seed, or checkpoints side by side."""
    if arguments.checkpoints:
        from sweeper.commands.compare_checkpoints import run_checkpoints

        if arguments.a is not None:
            raise UsageError("compare: give two sweeps or cells, or --checkpoints")
        return run_checkpoints(arguments)
    if arguments.b is None:
        raise UsageError("compare: give two sweeps or cells, or --checkpoints with --prompts")
    from sweeper import analysis

    registry, (a, b) = open_named(arguments.root, [arguments.a, arguments.b])
    comparison = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(comparison.document)
    else:
        print(comparison.text)
    return tell_problems(registry.problems)
