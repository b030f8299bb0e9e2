"""`sweeper status`: prints the states of all sweeps, or of the runs of one."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import open_registry
from sweeper.commands.status_table import counted, print_status
from sweeper.errors import UsageError
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.status import check_service, read_status
from sweeper.store.opening import default_root
from sweeper.sweep.labels import shown_marks
from sweeper.terminal import print_table, shortened

_RECIPE = 40
"""The most characters of a recipe, which may be a long command, in a table of sweeps."""


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper status`."""
    shared.root(verb)
    shared.json(verb)
    shared.select(verb)
    verb.add_argument("sweep", nargs="?", help="a sweep (default: a line for each)")
    verb.add_argument("--archived", action="store_true", help="without a sweep: archived ones too")
    verb.add_argument(
        "--follow", action="store_true", help="keep updating until the sweep has ended"
    )


def run(arguments: Namespace) -> int:
    """Print the states of all sweeps, or of the runs of one."""
    if arguments.sweep is None:
        for option in ("follow", "state", "where"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} is for one sweep: `sweeper status SWEEP --{option}`")
        return _status_of_all(arguments)
    if arguments.follow:
        from sweeper.commands.status_follow import follow

        return follow(arguments)
    root = arguments.root or default_root()
    # For a remote root, ended runs come from the cache; on a local disk reading them anew is
    # faster.
    registry = Registry(root, cache="://" in root)
    sweep = registry.sweep(arguments.sweep)
    seen = read_status(sweep)
    check_service(sweep)
    print_status(sweep, seen, arguments, problems=registry.problems)
    unread = tell_problems(registry.problems, told=arguments.json)
    return unread or seen.exit_code


def _status_of_all(arguments: Namespace) -> int:
    registry = open_registry(arguments, cache=False)
    records = registry.sweep_records("*" if arguments.archived else None)
    records.sort(key=lambda sweep: sweep["created"] or "")  # the newest last, beside the prompt
    if arguments.json:
        return print_json_answer({"schema": 1, "sweeps": records}, registry.problems)
    columns = ["sweep", "recipe", "runs", "states", "created"]
    rows = [
        [s["sweep"], shortened(s["recipe"], _RECIPE), s["runs"], counted(s["states"]), s["created"]]
        for s in records
    ]
    noted = [shown_marks(s["tags"], starred=s["starred"], archived=s["archived"]) for s in records]
    if any(noted):
        columns.append("noted")
        rows = [[*row, note] for row, note in zip(rows, noted, strict=True)]
    print_table(columns, rows)
    return tell_problems(registry.problems)
