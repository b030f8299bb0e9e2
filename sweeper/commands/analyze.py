"""`sweeper analyze`: writes the report of a sweep and prints the verdict."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.commands.selection import newest, open_named, open_registry
from sweeper.errors import NotFound, StoreError
from sweeper.results.problems import tell_problems
from sweeper.sweep.metric import FAILED
from sweeper.terminal import print_json, print_table, say, warn

if TYPE_CHECKING:
    from sweeper.analysis.page.notebook import WrittenNotes
    from sweeper.analysis.page.report import Report
    from sweeper.results.registry import Registry


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper analyze`."""
    shared.group(verb, "which sweeps").add_argument(
        "sweeps",
        nargs="*",
        metavar="SWEEP",
        help="a sweep, or a sweep's folder (default: the newest)",
    )
    shared.judge(verb)
    compare = shared.group(verb, shared.COMPARE)
    compare.add_argument(
        "--noise",
        help="how the noise between seeds is estimated: auto, pooled, own, or from=SWEEP,SWEEP to "
        "include earlier sweeps (default: the grid's)",
    )
    compare.add_argument(
        "--failed",
        choices=FAILED,
        help="how failed runs count: worst (each has the sweep's worst value), drop (not at "
        "all), or bound (a cell is best only if it is also best when its failed runs have the "
        "sweep's worst value) (default: the grid's)",
    )
    compare.add_argument(
        "--by",
        metavar="SETTING,...",
        action=_OneSetting,
        help="compare within each value of a setting, such as each model, or within each "
        "combination of several (default: the grid's `by`, else a setting whose value changes "
        "which value of another setting is best)",
    )
    _add_output_arguments(verb)
    shared.roots(verb)
    shared.json(verb)


def _add_output_arguments(verb: ArgumentParser) -> None:
    folders = shared.group(verb, "runs in plain folders")
    folders.add_argument(
        "--ignore",
        metavar="KEY",
        action="append",
        default=[],
        help="a configuration key to ignore; repeatable",
    )
    folders.add_argument(
        "--seed",
        metavar="KEY",
        action="append",
        default=[],
        help="the configuration key that holds the seed; repeatable",
    )
    report = shared.group(verb, "the report")
    report.add_argument("--out", help="folder for the report (default: the sweep's report/)")
    report.add_argument(
        "--notes",
        metavar="FOLDER",
        help="write the results to SWEEP.md in this folder, and judge the criterion in the "
        "folder's plan.md (default: notes/, if it exists)",
    )
    report.add_argument(
        "--prices", help="dollars per million tokens, as in train=0.4,sample=0.8,prefill=0.1"
    )
    shared.flag(report, "--power", "print the smallest lead that each number of seeds can detect")
    shared.flag(report, "--no-pictures", "do not write report.md and its PNGs")


class _OneSetting(shared.Once):
    """The argparse action of `--by`, which may be given only once."""

    refusal = (
        "--by may be given only once: use --by {first},{second} to compare within each "
        "combination, or write one report for each setting, with --out"
    )


def run(arguments: Namespace) -> int:
    """Write the report and print the verdict."""
    wanted = arguments.sweeps or [newest(open_registry(arguments, snapshot=True))]
    registry, names = open_named(arguments.root, wanted)
    stages = _stages(registry, names) if len(names) == 1 else []
    if not stages:
        report = _report(arguments, registry, names, arguments.out)
        _print(arguments, report, _keep(arguments, registry, report))
        return tell_problems(registry.problems)
    reports = {
        name: _report(arguments, registry, [name], out and os.path.join(out, name.split("/")[-1]))
        for name, out in ((stage, arguments.out) for stage in stages)
    }
    notebooks = {name: _keep(arguments, registry, report) for name, report in reports.items()}
    page = _of_all(arguments, registry, names[0], reports)
    if arguments.json:
        print_json({"schema": 1, "stages": [report.document for report in reports.values()]})
    else:
        for name, report in reports.items():
            _print(arguments, report, notebooks[name])
            print()
        say(f"all stages: {page}")
    return tell_problems(registry.problems)


def _of_all(
    arguments: Namespace, registry: "Registry", name: str, reports: "dict[str, Report]"
) -> str:
    """Write the page about all stages of the sweep `name`, and return the page's path."""
    from sweeper.analysis.page.pipeline import pipeline, write

    sweep = registry.sweep(name)
    by_stage = {name.partition("/")[2]: report for name, report in reports.items()}
    pages = pipeline(sweep, by_stage)
    return write(pages, sweep, arguments.out, markdown=not arguments.no_pictures)


def _stages(registry: "Registry", names: Sequence[str]) -> list[str]:
    """Return the names, such as `sweep/stage`, of the stages of `names[0]` that have a metric and a
    started run. Return [] if the sweep cannot be read."""
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
        ignore=arguments.ignore,
        seed=arguments.seed,
        out=out,
        prices=arguments.prices,
        pictures=not arguments.no_pictures,
    )


def _keep(arguments: Namespace, registry: "Registry", report: "Report") -> "WrittenNotes | None":
    """Write notes about the report to the folder of `--notes`, or else to notes/. Return None if
    the user gave no folder and notes/ does not exist."""
    from sweeper.analysis.page.notebook import FOLDER, keep

    folder = arguments.notes or (FOLDER if os.path.isdir(FOLDER) else None)
    if folder is None:
        return None
    notebook = keep(registry, report, folder, _cost(registry, report))
    if arguments.json:
        for line in notebook.messages:
            warn(line)
    return notebook


def _cost(registry: "Registry", report: "Report") -> str | None:
    """Describe the tokens and dollars that a report's runs used. None if no tokens were counted."""
    from sweeper.money import prices
    from sweeper.money.costs import spent, together

    table = prices.load()
    wanted = {row["run"] for row in report.document["runs"]}
    sweeps = [name.partition("/")[0] for name in report.document["sweep"].split(" + ")]
    recorded = [name for name in dict.fromkeys(sweeps) if registry.has_sweep(name)]
    runs = [run for run in registry.handles_of(recorded) if run.id in wanted] if recorded else []
    whole = together((spent(run, table) for run in runs), table)
    tokens = whole.usage.counts.tokens
    if not tokens:
        return None
    unpriced = ", ".join(whole.amount.unpriced)
    if unpriced and not whole.amount.usd:
        return f"{tokens:,} tokens; no price known for {unpriced}"
    without = f", without {unpriced} (no price known)" if unpriced else ""
    dollars = f"{prices.money(whole.amount.usd)} dollars at {whole.amount.basis}"
    return f"{tokens:,} tokens, {dollars}{without}"


def _print_power(report: "Report") -> None:
    """Print the smallest detectable lead of the best cell for each number of seeds per cell."""
    rows = report.document["verdict"]["power"]
    if not rows:
        print(
            "The noise between seeds is unknown, so the leads that a sweep can detect cannot be "
            "computed.\n"
        )
        return
    print(
        "For each number of seeds per cell, the smallest lead of the best cell over all others "
        "that 4 of 5 sweeps would detect:"
    )
    print_table(["seeds", "lead"], [[row["seeds"], row["text"]] for row in rows])
    print()


def _print(arguments: Namespace, report: "Report", notebook: "WrittenNotes | None") -> None:
    if arguments.json:
        print_json(report.document)
        return
    print(report.verdict)
    print()
    if arguments.power:
        _print_power(report)
    if notebook is not None:
        for line in notebook.messages:
            say(line)
        if notebook.path is not None:
            say(f"notes: {notebook.path}")
    say(f"report: {report.html_path}")
    if "://" in report.html_path:
        say("to open the report in a browser, write it to a local folder with --out FOLDER")
