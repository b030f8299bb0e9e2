"""`sweeper launch`: starts the runs of a grid, or continues the grid's sweep."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.commands.output import with_status
from sweeper.errors import EnvironmentFailure, NotFound, SweeperError, UsageError
from sweeper.store.opening import default_root, open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.hint import hint
from sweeper.sweep.labels import plural
from sweeper.sweep.states import State, fold, is_finished
from sweeper.terminal import is_screen, say, shortened, warn

if TYPE_CHECKING:
    from sweeper.launcher.launching import LaunchRequest, User
    from sweeper.store.base import Store
    from sweeper.sweep.plan import Plan


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper launch`."""
    shared.grid(verb)
    add_options(verb)


def add_options(verb: ArgumentParser) -> None:
    """Declare the options that `launch` and `run` have in common."""
    how = shared.group(verb, shared.LAUNCH)
    shared.flag(how, "--smoke", "start one run first, and the others if it succeeds")
    shared.flag(
        how, "--drop", "let finished runs leave the sweep if they are no longer in the grid"
    )
    how.add_argument(
        "--debug",
        metavar="RUN",
        help="start only this run, under pdb in a tmux pane, as the sweep NAME-debug",
    )
    shared.flag(how, "--live", "run the code in the checkout itself, not a copy")
    shared.wait(verb)
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Start the runs of a grid, or continue the grid's sweep."""
    shared.set_log_level(arguments)
    return with_status(_run, arguments)


def _run(arguments: Namespace) -> int:
    from sweeper.commands.output import agreeing, dropping
    from sweeper.launcher.launching import LaunchRequest, User
    from sweeper.launcher.preflight import service_warnings
    from sweeper.launcher.preview import later_warnings
    from sweeper.planner.arguments import planned_by

    planned, store = planned_by(arguments), open_store(arguments.root or default_root())
    if arguments.debug is not None:
        return _debug(planned, store, arguments)
    arguments.sweep = planned.name
    planned = SweepFolder(store, planned.name).with_chosen(planned)
    service = [] if planned.service == "local" else service_warnings(planned)
    for warning in (*planned.warnings, *later_warnings(planned, store), *service):
        warn(f"warning: {warning}")
    begun, idle = _before(planned, store)
    recipes = ", ".join(dict.fromkeys(part.recipe.reference for part in planned.parts))
    most = " at most" if planned.race else ""
    more = f", and {sum(planned.unknown.values())}{most} to come" if planned.unknown else ""
    say(f"{planned.name}: {plural(len(planned.runs), 'run')} of {shortened(recipes)}{more}{begun}")
    for note in planned.notes:
        say(note)
    request = LaunchRequest(
        planned, arguments.root, arguments.wait, smoke=arguments.smoke, live=arguments.live
    )
    user = User(agreeing(arguments), dropping(arguments), tell=warn)
    if arguments.wait:
        return _launch_here(request, user, plain=arguments.plain or arguments.json)
    return _launch_detached(request, user, idle=idle)


def _debug(planned: "Plan", store: "Store", arguments: Namespace) -> int:
    """Launch one run under pdb, and show the run's tmux pane."""
    from sweeper.commands.attach import go
    from sweeper.commands.launch_debug import alone, show_pane
    from sweeper.launcher.launching import LaunchRequest, User, launch_plan

    if arguments.wait or arguments.smoke or arguments.json:
        raise UsageError("--debug does not work with --wait, --smoke or --json")
    planned = alone(planned, arguments.debug, store)
    request = LaunchRequest(planned, arguments.root, wait=False, live=arguments.live)
    launched = launch_plan(request, User(tell=warn))
    (run,) = planned.runs
    if not show_pane(SweepFolder(store, planned.name), run.id):
        show = hint("show", f"{planned.name}/{run.name}", root=arguments.root)
        raise EnvironmentFailure(
            f"{run.name} has no tmux pane: see `{show}` and the run's log for the reason"
        )
    if is_screen():
        go(launched.root, planned.name)
    say(f"{run.name} runs under pdb: `{hint('attach', planned.name, root=arguments.root)}`")
    return 0


def _launch_detached(request: "LaunchRequest", user: "User", *, idle: bool) -> int:
    """Launch in the background, and print how to watch the sweep. `idle` means that no runs are
    left to start."""
    from sweeper.commands.waiting import tell_failed
    from sweeper.launcher.launching import launch_plan

    planned = request.plan
    root = request.root or default_root()

    def words(verb: str) -> str:
        return f"`{hint(verb, planned.name, root=request.root)}`"

    launched = launch_plan(request, user)
    tell_failed(planned.name, root, _left_alone(launched.root, planned))
    _tell_other_code(planned, launched.root)
    if idle:
        say(f"nothing to start; see {words('status')}")
        return 0
    attach = f" or {words('attach')}" if "tmux" in planned.launch.places else ""
    begun = "the running launcher continues the sweep" if launched.taken_up else "launched"
    say(f"{begun}; watch it with {words('watch')}{attach}")
    return 0


def _launch_here(request: "LaunchRequest", user: "User", *, plain: bool) -> int:
    """Launch in this process and wait until the sweep has ended. If a launcher is running
    already, follow that launcher instead."""
    from sweeper.commands.waiting import follow, showing, tell_end, tell_interrupted
    from sweeper.launcher.launching import launch_plan
    from sweeper.scheduler.progress import exit_code

    planned = request.plan
    root = request.root or default_root()
    if "tmux" in planned.launch.places:
        attach = hint("attach", planned.name, root=request.root)
        say(f"watch the sweep from another terminal with `{attach}`", flush=True)
    try:
        with showing(planned.name, root, plain=plain) as notify:
            launched = launch_plan(request, user._replace(notify=notify))
    except KeyboardInterrupt:
        return tell_interrupted(planned.name, root)
    if launched.summary is None:
        warn("a launcher is already running: following it until it ends")
        return follow(planned, root, plain=plain)
    tell_end(planned, root, launched.summary.counts[State.FAILED])
    _tell_other_code(planned, root)
    return exit_code(launched.summary)


def _before(planned: "Plan", store: "Store") -> tuple[str, bool]:
    """Print the launch's expected usage if it can be estimated. Return a text such as `: 2 to
    start, 16 succeeded` ("" before the first launch), and whether nothing is left to do."""
    from sweeper.launcher.preview import counts, estimate_of, survey
    from sweeper.sweep.states import OPEN

    preview = survey(planned, store)
    if (use := estimate_of(preview)) is not None:
        say(use)
    if not any(run.state.opened for run in preview.previews):
        return "", False
    left = any(run.attempt or run.state.state in OPEN for run in preview.previews)
    return f": {counts(preview)}", not left


def _left_alone(root: str, planned: "Plan") -> int:
    """Return the number of failed runs that have no retries left."""
    try:
        events = SweepFolder(open_store(root), planned.name).read_events()
    except NotFound:
        return 0  # never launched
    return sum(
        fold(events[run.id]).state is State.FAILED
        and is_finished(events[run.id], planned.retries_of(run.stage))
        for run in planned.runs
        if run.id in events
    )


def _tell_other_code(planned: "Plan", root: str) -> None:
    """Print how to repeat runs that succeeded with different code, since the launch skips these
    runs."""
    from sweeper.results.origins import differences
    from sweeper.results.registry import Registry
    from sweeper.results.selectors import current

    try:
        sweep = Registry(root, snapshot=True).sweep(planned.name)
    except SweeperError:
        return  # a running launcher reports the error
    latest = sweep.launches.latest
    over = [run for run in current(sweep.runs) if run.state is State.SUCCEEDED]
    code_changes = [each for each in differences([latest, *over]) if each.kind == "code"]
    if not code_changes or latest.origin is None:
        return
    now = code_changes[0].label(latest)
    count = sum(code_changes[0].label(run) != now for run in over)
    chosen = [] if count == len(over) else ["--where", f'code != "{now}"']
    again = hint("retry", planned.name, "--state", "succeeded", *chosen, root=root)
    warn(
        f"{plural(count, 'run')} succeeded, but with a different version of the "
        f"{code_changes[0].title}; to start {'it' if count == 1 else 'them'} again, use `{again}`"
    )
