"""`sweeper retry`: starts runs again."""

from argparse import ArgumentParser, Namespace
from collections import Counter

from sweeper.commands import arguments as shared
from sweeper.commands.output import with_status
from sweeper.commands.selection import only, open_registry, split_sweep
from sweeper.launcher.control import request_retries, take_up, to_retry
from sweeper.results.status import read_status
from sweeper.results.sweeps import Sweep
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.states import OPEN, State
from sweeper.terminal import say, warn


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper retry`."""
    shared.some_of_its_runs(verb, "the only one")
    shared.select(verb)
    shared.group(verb, shared.RUNS).add_argument(
        "--failed", action="store_true", help="failed runs (the default)"
    )
    shared.wait(verb)
    shared.root(verb)
    shared.json(verb)
    verb.description = (
        f"{verb.description or ''}\n\n"
        "A retry runs the code of the last launch: after a change of the code, launch\n"
        "the grid first. Finished runs start again, from nothing, only with `--state\n"
        "succeeded`; their earlier attempts stay on record."
    )


def run(arguments: Namespace) -> int:
    """Start runs again."""
    shared.set_log_level(arguments)
    return with_status(_run, arguments)


def _run(arguments: Namespace) -> int:
    from sweeper.commands.live_view import showing
    from sweeper.commands.trust_prompt import agreeing
    from sweeper.commands.waiting import follow, tell_end, tell_interrupted
    from sweeper.launcher.launching import resume
    from sweeper.scheduler.progress import exit_code

    registry = open_registry(arguments)
    name, names = split_sweep(arguments)
    sweep = registry.sweep(name or only(registry))
    arguments.sweep = sweep.name
    which = names, arguments.state, arguments.where
    runs = to_retry(sweep, *which, failed=arguments.failed)
    succeeded = State.SUCCEEDED in (arguments.state or ())
    ids = [run.id for run in runs]
    requests = request_retries(sweep, ids, agreeing(arguments), succeeded=succeeded)
    refusals = [request.why for request in requests.done if not request.asked or request.waits]
    for why, count in Counter(refusals).items():
        warn(f"{count} {why}")
    say(f"{sweep.name}: {plural(requests.again, 'run')} to start again", flush=True)
    if not requests.again:
        if not runs:
            _tell_none(sweep)
        return 0
    if take_up(sweep, warn):
        say("the launcher at work on the sweep takes them up", flush=True)
        plain = arguments.plain or arguments.json
        return follow(sweep.plan, sweep.root, plain=plain) if arguments.wait else 0
    try:
        with showing(sweep.name, sweep.root, plain=arguments.plain or arguments.json) as notify:
            wait, known = arguments.wait, requests.ready
            launched = resume(sweep.folder, wait=wait, notify=notify, known=known, tell=warn)
    except KeyboardInterrupt:
        return tell_interrupted(sweep.name, sweep.root)
    if launched.summary is None:
        say(f"launched; watch it with `{hint('watch', sweep.name, root=sweep.root)}`")
        return 0
    tell_end(sweep.plan, sweep.root, launched.summary.counts[State.FAILED])
    return exit_code(launched.summary)


def _tell_none(sweep: Sweep) -> None:
    """Suggest what to do when there is nothing to start again."""
    waiting = sum(not (run.is_finished or run.retired or run.state in OPEN) for run in sweep.runs)
    warn("none has failed; what was cancelled is named, or chosen by --state cancelled")
    if waiting and not read_status(sweep).launcher:
        again = hint("resume", sweep.name, root=sweep.root)
        warn(f"{plural(waiting, 'run')} not started yet: `{again}` starts the rest")
