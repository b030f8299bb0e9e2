"""`sweeper analyze`: writes the report of a sweep and prints the verdict."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_named
from sweeper.model.metric import FAILED
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_json, say

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper analyze`."""
    shared.root(verb)
    shared.json(verb)
    shared.judge(verb)
    verb.add_argument("sweeps", nargs="+", metavar="SWEEP", help="a sweep, or a sweep's folder")
    verb.add_argument("--out", help="folder for the report (default: the sweep's report/)")
    verb.add_argument(
        "--prices", help="dollars per million tokens: train=0.4,sample=0.8,prefill=0.1"
    )
    verb.add_argument(
        "--noise",
        help="whose noise between seeds counts: auto, pooled, own, or from=SWEEP,... for that of "
        "earlier sweeps as well (default: the grid's)",
    )
    verb.add_argument(
        "--failed",
        choices=FAILED,
        help="what a failed run counts as: a bound, the worst value, or nothing (default: the "
        "grid's)",
    )
    verb.add_argument(
        "--by",
        metavar="SETTING",
        help="judge each value of a setting by itself, as each model (default: the grid's, or one "
        "on which the best value of another is told to depend)",
    )
    verb.add_argument("--no-pictures", action="store_true", help="no report.md with its PNGs")


def run(arguments: Namespace) -> int:
    """Write the report, print the verdict."""
    from sweeper import analysis

    registry, names = open_named(arguments.root, arguments.sweeps)
    report = analysis.analyze(
        registry,
        names,
        metric=arguments.metric,
        goal=arguments.goal,
        at=arguments.at,
        noise=arguments.noise,
        failed=arguments.failed,
        by=arguments.by,
        out=arguments.out,
        prices=arguments.prices,
        pictures=not arguments.no_pictures,
    )
    if arguments.json:
        print_json(report.document)
    else:
        print(report.verdict)
        print()
        say(f"report: {report.html_path}")
    return tell_problems(registry.problems)
