"""`sweeper retry`: starts runs again."""

from argparse import ArgumentParser, Namespace
from collections import Counter

from sweeper.commands import arguments as shared
from sweeper.commands.output import with_status
from sweeper.commands.selection import open_registry
from sweeper.control import request_retries, take_up, to_retry
from sweeper.labels import plural
from sweeper.model.states import OPEN, State
from sweeper.results.status import read_status
from sweeper.results.sweeps import Sweep
from sweeper.terminal import say, warn

__all__ = ["add_arguments", "run"]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper retry`."""
    shared.root(verb)
    shared.json(verb)
    shared.select(verb)
    shared.runs(verb)
    verb.add_argument("--failed", action="store_true", help="failed runs (the default)")
    shared.wait(verb)
    verb.description = (
        f"{verb.description or ''}\n\n"
        "A retry runs the code of the last launch, so after a change of the code launch the grid\n"
        "first. Finished runs start again, from nothing, only with `--state succeeded`; their\n"
        "earlier attempts stay on record."
    )


def run(arguments: Namespace) -> int:
    """Start runs again."""
    return with_status(_run, arguments)


def _run(arguments: Namespace) -> int:
    from sweeper.commands.live_view import showing
    from sweeper.commands.trust_prompt import agreeing
    from sweeper.launcher.launching import resume
    from sweeper.scheduler.progress import exit_code

    sweep = open_registry(arguments).sweep(arguments.sweep)
    which = arguments.runs, arguments.state, arguments.where
    runs = to_retry(sweep, *which, failed=arguments.failed)
    succeeded = State.SUCCEEDED in (arguments.state or ())
    ids = [run.id for run in runs]
    asked = request_retries(sweep, ids, agreeing(arguments), succeeded=succeeded)
    told = [request.why for request in asked.done if not request.asked or request.waits]
    for why, count in Counter(told).items():
        warn(f"{count} {why}")
    say(f"{sweep.name}: {plural(asked.again, 'run')} to start again", flush=True)
    if not asked.again:
        if not runs:
            _tell_none(sweep)
        return 0
    if take_up(sweep, warn):
        say("the launcher at work on the sweep takes them up")
        return 0
    try:
        with showing(sweep.name, sweep.root, plain=arguments.plain or arguments.json) as notify:
            wait, known = arguments.wait, asked.ready
            launched = resume(
                sweep.store, sweep.name, wait=wait, notify=notify, known=known, tell=warn
            )
    except KeyboardInterrupt:
        warn("interrupted; what runs goes on")
        return 130
    if launched.summary is None:
        say(f"launched; watch it with `sweeper watch {sweep.name}`")
        return 0
    return exit_code(launched.summary)


def _tell_none(sweep: Sweep) -> None:
    """Suggest what to do when there is nothing to start again."""
    waiting = sum(not (run.is_finished or run.retired or run.state in OPEN) for run in sweep.runs)
    warn("none has failed; what was cancelled is named, or chosen by --state cancelled")
    if waiting and not read_status(sweep).launcher:
        warn(f"{waiting} wait to be started: `sweeper resume {sweep.name}` goes on with them")
