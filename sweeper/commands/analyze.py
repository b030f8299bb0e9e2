"""`sweeper analyze`: writes the report of a sweep and prints the verdict."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_named
from sweeper.errors import NotFound, StoreError
from sweeper.model.metric import FAILED
from sweeper.results.problems import tell_problems
from sweeper.terminal import print_json, say

if TYPE_CHECKING:
    from sweeper.analysis.report import Report
    from sweeper.results.registry import Registry

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
    registry, names = open_named(arguments.root, arguments.sweeps)
    stages = _stages(registry, names) if len(names) == 1 else []
    if not stages:
        _print(arguments, _report(arguments, registry, names, arguments.out))
        return tell_problems(registry.problems)
    found = {
        name: _report(arguments, registry, [name], out and os.path.join(out, name.split("/")[-1]))
        for name, out in ((stage, arguments.out) for stage in stages)
    }
    if arguments.json:
        print_json({"schema": 1, "stages": [report.document for report in found.values()]})
    else:
        for report in found.values():
            _print(arguments, report)
            print()
    return tell_problems(registry.problems)


def _stages(registry: "Registry", names: Sequence[str]) -> list[str]:
    """The stages of a sweep that have anything to compare."""
    try:
        sweep = registry.sweep(names[0])
    except (NotFound, StoreError):
        return []
    begun = {run.stage for run in sweep.runs if run.attempts}
    return [
        f"{sweep.name}/{stage.name}"
        for stage in sweep.plan.stages
        if stage.name in begun and stage.metric is not None
    ]


def _report(
    arguments: Namespace, registry: "Registry", names: Sequence[str], out: str | None
) -> "Report":
    from sweeper import analysis

    return analysis.analyze(
        registry,
        names,
        metric=arguments.metric,
        goal=arguments.goal,
        at=arguments.at,
        noise=arguments.noise,
        failed=arguments.failed,
        by=arguments.by,
        out=out,
        prices=arguments.prices,
        pictures=not arguments.no_pictures,
    )


def _print(arguments: Namespace, report: "Report") -> None:
    if arguments.json:
        print_json(report.document)
        return
    print(report.verdict)
    print()
    say(f"report: {report.html_path}")
