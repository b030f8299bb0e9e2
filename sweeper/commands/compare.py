"""`sweeper compare`: shows how runs differ, compares two sweeps cell by cell or two cells seed by
seed, or shows the answers of checkpoints to the same prompts."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_named, open_registry
from sweeper.errors import NotFound, UsageError
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_json


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper compare`."""
    shared.roots(verb)
    shared.json(verb)
    verb.add_argument(
        "runs",
        nargs="*",
        default=[],
        metavar="NAME",
        help="two sweeps, two cells (sweep/cell), or runs: names, globs, ids, a sweep for its runs",
    )
    shared.judge(verb.add_argument_group("two sweeps, two cells"))
    differences = verb.add_argument_group("runs")
    shared.select(differences)
    differences.add_argument("--all", action="store_true", help="also show what is the same in all")
    group = verb.add_argument_group("checkpoints side by side")
    group.add_argument(
        "--checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="runs, their folders, tinker:// addresses, or base; the others are compared with "
        "the first",
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
    """Show how runs differ, compare two sweeps or two cells, or checkpoints side by side."""
    if arguments.checkpoints:
        from sweeper.commands.compare_checkpoints import run_checkpoints

        if arguments.runs:
            raise UsageError("compare: give names of runs, cells or sweeps, or --checkpoints")
        return run_checkpoints(arguments)
    if not (arguments.runs or arguments.where or arguments.state):
        raise UsageError("compare: name two sweeps, two cells or some runs, or use --checkpoints")
    if _are_runs(arguments):
        from sweeper.commands.compare_runs import compare_runs

        return compare_runs(open_registry(arguments), arguments)
    from sweeper import analysis

    registry, (a, b) = open_named(arguments.root, arguments.runs)
    comparison = analysis.versus(
        registry, a, b, metric=arguments.metric, goal=arguments.goal, at=arguments.at
    )
    if arguments.json:
        print_json(comparison.document)
    else:
        print(comparison.text)
    return tell_problems(registry.problems)


def _are_runs(arguments: Namespace) -> bool:
    """Return whether the arguments name runs: other than two names, selected ones, or two names of
    one run each. A test needs a sweep or a cell."""
    if len(arguments.runs) != 2 or arguments.where or arguments.state or arguments.all:
        return True
    if arguments.metric or arguments.goal or arguments.at:
        return False
    registry = open_registry(arguments)
    try:
        return all(len(registry.choose([name])) == 1 for name in arguments.runs)
    except NotFound:
        return False
