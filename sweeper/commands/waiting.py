"""What `launch --wait` and `retry --wait` share: they follow a sweep to its end, also if another
launcher drives it, and say how it has ended."""

from argparse import Namespace
from typing import TYPE_CHECKING

from sweeper.sweep.hint import hint
from sweeper.sweep.states import State
from sweeper.terminal import say, warn

if TYPE_CHECKING:
    from sweeper.sweep.plan import Plan


def follow(plan: "Plan", root: str, *, plain: bool) -> int:
    """Follow a sweep that another launcher drives until nothing is at work on it. Return its exit
    code, 130 if interrupted."""
    from sweeper.commands import watch
    from sweeper.results.waiting import wait

    try:
        arguments = Namespace(sweep=plan.name, root=root, plain=plain, guest=None, until_ended=True)
        closed = watch.run(arguments) == 0
        status = wait(plan.name, root=root, timeout=0)
        if status.at_work and not closed:
            raise KeyboardInterrupt
        if status.at_work:
            warn("the view is closed: waiting until the sweep ends; Ctrl-C stops waiting only")
            status = wait(plan.name, root=root)
    except KeyboardInterrupt:
        warn("interrupted: the launcher at work continues")
        return 130
    tell_end(plan, root, status.counts.get(State.FAILED, 0))
    return status.exit_code


def tell_end(plan: "Plan", root: str, failed: int) -> None:
    """Print what to do about failed runs, and the verdict if there are several cells and a
    metric."""
    tell_failed(plan.name, root, failed)
    judged = plan.metric is not None or any(stage.metric for stage in plan.stages)
    if not judged or len({run.cell for run in plan.runs}) < 2:
        return
    from sweeper.analysis.page.verdict_line import verdict_line
    from sweeper.results.registry import Registry

    line = verdict_line(Registry(root), plan.name)
    if line is not None:
        say(f"{plan.name}: {line}")
        say(f"`{hint('analyze', plan.name, root=root)}` writes the report")


def tell_failed(sweep: str, root: str, count: int) -> None:
    """Say that a launch does not restart failed runs, since users easily expect it to."""
    if count:
        logs = hint("logs", sweep, "--state", "failed", root=root)
        again = hint("retry", sweep, root=root)
        warn(f"{count} failed: `{logs}` shows what they printed, `{again}` starts them again")


def tell_interrupted(sweep: str, root: str) -> int:
    """Say what the end of the launcher in this process leaves behind. Return the exit code."""
    from sweeper.sweep.folder import SweepFolder

    folder = SweepFolder.open(root, sweep)
    if not folder.store.exists(folder.plan):
        warn("interrupted: nothing was launched")
        return 130
    again = hint("resume", sweep, root=root)
    warn(f"interrupted: running jobs continue, nothing new is started; `{again}` starts the rest")
    return 130
