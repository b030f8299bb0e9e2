"""`sweeper launch --debug RUN`: executes one run of a grid under pdb, in tmux. The run gets its
own sweep, so a run that was stopped in the debugger never becomes a result of the grid."""

import time

from sweeper.common.alarm_thresholds import RULES
from sweeper.errors import NotFound, UsageError
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import first_of
from sweeper.sweep.notify import Notify
from sweeper.sweep.plan import Plan, Run
from sweeper.sweep.states import OPEN

_PANE_SECONDS = 60.0


def alone(plan: Plan, name: str, store: Store) -> Plan:
    """Return the plan for `launch --debug`, whose only run is the run `name` of `plan`. Raises
    `NotFound` if no run matches `name`, and `UsageError` if several match or the run needs the
    result of another run."""
    run = _run_of(plan, name)
    if run.parents:
        raise UsageError(
            f"{run.name} starts from the result of another run, which --debug does not support"
        )
    part = plan.of(run.stage)
    launch = part.launch._replace(
        backend="tmux", backends=(), max_parallel=1, retries=0, timeout_s=None, window=None,
        window_panes=None, resume="never", warm=False, debug=True,
    )  # fmt: skip
    if part.recipe.kind == "command":
        from sweeper.recipe.command_template import with_pdb

        with_pdb(part.recipe.command or [""])
    return part._replace(
        name=_free_name(f"{plan.name}-debug", store), launch=launch,
        runs=(run._replace(stage=None),), stages=(), axes={}, alarms=dict.fromkeys(RULES),
        on_alarm=None, notify=Notify(on=()), race=None, wandb=None, baseline=None, unknown={},
        choices=(), expected=(),
    )  # fmt: skip


def _run_of(plan: Plan, name: str) -> Run:
    """Return the run with the name or id `name`, else the only run whose name starts with `name`.
    Raises `NotFound` if no run matches, and `UsageError` if several match."""
    exact = [run for run in plan.runs if name in (run.name, run.id)]
    matches = exact or [run for run in plan.runs if run.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    names = first_of([run.name for run in matches or plan.runs], 4)
    if matches:
        raise UsageError(f"--debug {name!r} matches {len(matches)} runs: name one of {names}")
    raise NotFound(f"--debug {name!r}: {plan.name} has no such run, only {names}")


def _free_name(name: str, store: Store) -> str:
    number = 1
    while store.exists(SweepFolder(store, name if number == 1 else f"{name}-{number}").plan):
        number += 1
    return name if number == 1 else f"{name}-{number}"


def show_pane(folder: SweepFolder, run: str) -> bool:
    """Wait up to a minute for the tmux pane of `run`, and show the pane. Return False if there is
    no pane, or if the run has ended."""
    from sweeper.backends.tmux.server import TmuxServer

    server, deadline = TmuxServer(), time.monotonic() + _PANE_SECONDS
    while time.monotonic() < deadline:
        session = server.session(folder.address)
        for pane in server.panes(session) if session is not None else ():
            if f"{run}-a" in pane.command and pane.command.endswith("-a1"):
                # All keys go to the debugger: see tmux.conf.
                typed = f"set-option -p -t {pane.id} @sweeper_keys typed"
                server.source([typed, f"select-window -t {pane.window}"])
                return True
        state = folder.read_states().get(run)
        if state is not None and state.state not in OPEN and state.opened:
            return False
        time.sleep(0.1)
    return False
