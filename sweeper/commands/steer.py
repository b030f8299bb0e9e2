"""The verbs that steer a running sweep: `pause`, `resume`, `parallel`, `cancel`, `retry` and
`stop`."""

from argparse import ArgumentParser, Namespace
from collections import Counter

from sweeper.commands import Verb
from sweeper.commands import arguments as shared
from sweeper.commands.output import print_steered, with_status
from sweeper.commands.selection import only, open_registry, split_sweep
from sweeper.common.codec import SCHEMA
from sweeper.launcher import pausing
from sweeper.launcher.control import cancel_runs, request_retries, take_up, to_retry
from sweeper.results.selectors import pick
from sweeper.results.status import read_status
from sweeper.results.sweeps import Sweep
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.states import OPEN, State, fold
from sweeper.terminal import print_json, say, warn


def _add_pause(verb: ArgumentParser) -> None:
    shared.optional_sweep(verb, "the only sweep, or the only one that is running")
    shared.flag(
        shared.group(verb, "what to pause"),
        "--runs",
        "also stop running jobs, after a checkpoint if the recipe supports it",
    )
    shared.root(verb)
    shared.json(verb)


def _pause(arguments: Namespace) -> int:
    name = arguments.sweep or only(open_registry(arguments, snapshot=True), at_work=True)
    done = pausing.pause(name, root=arguments.root, runs=arguments.runs)
    if arguments.json:
        return print_steered(done, runs=arguments.runs)
    runs = "running jobs are stopped" if arguments.runs else "running jobs continue"
    also = "" if done.launcher else "; no launcher is running"
    say(f"{done.sweep}: paused: nothing new is started, {runs}{also}")
    say(f"`{hint('resume', done.sweep, root=arguments.root)}` continues it")
    return 0


def _add_resume(verb: ArgumentParser) -> None:
    shared.optional_sweep(verb, "the only one")
    shared.trust(verb)
    shared.root(verb)
    shared.json(verb)


def _resume(arguments: Namespace) -> int:
    """Continue a paused sweep. Start a launcher if none is running and anything is left to do."""
    from sweeper.commands.output import agreeing

    name = arguments.sweep or only(open_registry(arguments, snapshot=True))
    done = pausing.resume(name, root=arguments.root, agree=agreeing(arguments), tell=warn)
    if arguments.json:
        return print_steered(done)
    if not done.launcher:
        say(f"{done.sweep}: nothing is left to do")
    elif done.started:
        say(f"{done.sweep}: continued by a new launcher")
    else:
        say(f"{done.sweep}: {'continued' if done.changed else 'not paused'}")
    return 0


def _add_parallel(verb: ArgumentParser) -> None:
    shared.required_sweep(verb)
    shared.group(verb, "how many").add_argument(
        "jobs",
        metavar="JOBS",
        type=int,
        help="largest number of jobs at once, until the sweep is launched again",
    )
    shared.root(verb)
    shared.json(verb)


def _parallel(arguments: Namespace) -> int:
    """Request a new limit on the number of jobs that run at the same time."""
    done = pausing.parallel(arguments.sweep, arguments.jobs, root=arguments.root)
    if arguments.json:
        return print_steered(done, jobs=arguments.jobs)
    when = "" if done.launcher else "; no launcher is running: the next launcher uses this limit"
    say(f"{done.sweep}: at most {plural(arguments.jobs, 'job')} at once{when}")
    return 0


def _add_cancel(verb: ArgumentParser) -> None:
    shared.runs_of_required_sweep(verb)
    shared.select(verb)
    shared.root(verb)
    shared.json(verb)


def _cancel(arguments: Namespace) -> int:
    """Cancel runs, and print how many requests had each result. Refused requests are printed only
    if all were refused."""
    sweep = open_registry(arguments).sweep(arguments.sweep)
    runs = pick(sweep.runs, arguments.runs, arguments.state, arguments.where)
    names = {run.id: run.name for run in sweep.runs}
    whole = not (arguments.runs or arguments.state or arguments.where)
    done = cancel_runs(sweep.folder, [run.id for run in runs], whole=whole, tell=warn)
    states = {run: fold(events) for run, events in sweep.folder.read_events().items()}
    if arguments.json:
        requests = [
            {
                "id": request.run,
                "name": names.get(request.run, request.run),
                "state": states[request.run].state.value if request.run in states else "planned",
                "asked": request.accepted,
                "why": request.why,
            }
            for request in done
        ]
        return print_json({"schema": SCHEMA, "sweep": sweep.name, "runs": requests})
    to_report = [request for request in done if request.accepted] or done
    counts = Counter(request.why for request in to_report)
    none = f"none of the {len(sweep.runs)} runs matches the selection"
    say(f"{sweep.name}: {', '.join(f'{n} {why}' for why, n in counts.items()) or none}")
    return 0


def _add_retry(verb: ArgumentParser) -> None:
    shared.runs_of_optional_sweep(verb, "the only one")
    shared.select(verb)
    shared.flag(shared.group(verb, shared.RUNS), "--failed", "failed runs (the default)")
    shared.wait(verb)
    shared.root(verb)
    shared.json(verb)
    verb.description = (
        f"{verb.description or ''}\n\n"
        "A retry runs the code of the last launch. If you changed the code, launch the\n"
        "grid first. Finished runs start again, without their checkpoints, only with\n"
        "`--state succeeded`; their earlier attempts stay on record."
    )


def _retry(arguments: Namespace) -> int:
    shared.set_log_level(arguments)
    return with_status(_start_again, arguments)


def _start_again(arguments: Namespace) -> int:
    from sweeper.commands.output import agreeing
    from sweeper.commands.waiting import follow, showing, tell_end, tell_interrupted
    from sweeper.launcher.launching import resume
    from sweeper.scheduler.progress import exit_code

    registry = open_registry(arguments, snapshot=True)
    name, names = split_sweep(arguments)
    sweep = registry.sweep(name or only(registry))
    arguments.sweep = sweep.name
    runs = to_retry(sweep, names, arguments.state, arguments.where, failed=arguments.failed)
    succeeded = State.SUCCEEDED in (arguments.state or ())
    ids = [run.id for run in runs]
    requests = request_retries(sweep, ids, agreeing(arguments), succeeded=succeeded)
    refusals = [request.why for request in requests.done if not request.accepted or request.waits]
    for why, count in Counter(refusals).items():
        warn(f"{plural(count, 'run')} {why}")
    say(f"{sweep.name}: {plural(requests.again, 'run')} will start again", flush=True)
    if not requests.again:
        if not runs:
            _tell_none(sweep)
        return 0
    if take_up(sweep, warn):
        say("the running launcher starts them", flush=True)
        plain = arguments.plain or arguments.json
        return follow(sweep.plan, sweep.root, plain=plain) if arguments.wait else 0
    try:
        with showing(sweep.name, sweep.root, plain=arguments.plain or arguments.json) as notify:
            wait, checked = arguments.wait, requests.ready
            # Open the folder again: the launch must not treat these failures as old.
            folder = SweepFolder.open(sweep.root, sweep.name)
            launched = resume(folder, wait=wait, notify=notify, checked=checked, tell=warn)
    except KeyboardInterrupt:
        return tell_interrupted(sweep.name, sweep.root)
    if launched.summary is None:
        say(f"launched; watch it with `{hint('watch', sweep.name, root=sweep.root)}`")
        return 0
    tell_end(sweep.plan, sweep.root, launched.summary.counts[State.FAILED])
    return exit_code(launched.summary)


def _tell_none(sweep: Sweep) -> None:
    waiting = sum(not (run.is_finished or run.retired or run.state in OPEN) for run in sweep.runs)
    warn("no run has failed; to retry cancelled runs, name them or use --state cancelled")
    if waiting and not read_status(sweep).launcher:
        again = hint("resume", sweep.name, root=sweep.root)
        warn(f"{plural(waiting, 'run')} not started yet: `{again}` starts them")


def _add_stop(verb: ArgumentParser) -> None:
    shared.optional_sweep(verb, "the only sweep, or the only one that is running")
    shared.root(verb)
    shared.json(verb)


def _stop(arguments: Namespace) -> int:
    """Ask the launcher to end, and wait until it has ended."""
    name = arguments.sweep or only(open_registry(arguments, snapshot=True), at_work=True)
    done = pausing.stop(name, root=arguments.root, tell=warn)
    if arguments.json:
        return print_steered(done)
    if not done.changed:
        say(f"{done.sweep}: no launcher is running")
        return 0
    say(f"{done.sweep}: the launcher has ended; running jobs continue, and nothing new is started")
    say(f"`{hint('resume', done.sweep, root=arguments.root)}` starts a new launcher")
    return 0


VERBS = {
    "pause": Verb(_add_pause, _pause),
    "resume": Verb(_add_resume, _resume),
    "parallel": Verb(_add_parallel, _parallel),
    "cancel": Verb(_add_cancel, _cancel),
    "retry": Verb(_add_retry, _retry),
    "stop": Verb(_add_stop, _stop),
}
