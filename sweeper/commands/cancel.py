"""`sweeper cancel`: stops runs for good."""

from argparse import ArgumentParser, Namespace
from collections import Counter

from sweeper.commands import arguments as shared
from sweeper.commands.selection import open_registry
from sweeper.common.codec import SCHEMA
from sweeper.launcher.control import cancel_runs
from sweeper.results.selectors import pick
from sweeper.sweep.states import fold
from sweeper.terminal import print_json, say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper cancel`."""
    shared.runs(verb)
    shared.select(verb)
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Stop runs for good, and print how many."""
    sweep = open_registry(arguments).sweep(arguments.sweep)
    runs = pick(sweep.runs, arguments.runs, arguments.state, arguments.where)
    names = {run.id: run.name for run in sweep.runs}
    whole = not (arguments.runs or arguments.state or arguments.where)
    ids = [run.id for run in runs]
    done = cancel_runs(sweep.folder, ids, whole=whole, tell=warn)
    states = {run: fold(events) for run, events in sweep.folder.read_events().items()}
    if arguments.json:
        requests = [
            {
                "id": request.run,
                "name": names.get(request.run, request.run),
                "state": states[request.run].state.value if request.run in states else "planned",
                "asked": request.asked,
                "why": request.why,
            }
            for request in done
        ]
        return print_json({"schema": SCHEMA, "sweep": sweep.name, "runs": requests})
    to_report = [request for request in done if request.asked] or done
    counts = Counter(request.why for request in to_report)
    none = f"none of its {len(sweep.runs)} runs is among those that you chose"
    say(f"{sweep.name}: {', '.join(f'{n} {why}' for why, n in counts.items()) or none}")
    return 0
