"""`sweeper retry`: start runs again."""

from argparse import Namespace
from collections import Counter

from sweeper.control import ask_again, take_up, to_retry
from sweeper.registry import Registry
from sweeper.store.files import default_root
from sweeper.terminal import say, warn

__all__ = ["retry"]


def retry(arguments: Namespace) -> int:
    """Start runs again."""
    from sweeper.launcher.progress import exit_code
    from sweeper.launcher.start import go_on
    from sweeper.verbs.trusting import agreeing
    from sweeper.verbs.viewing import showing

    sweep = Registry(arguments.root or default_root()).sweep(arguments.sweep)
    which = arguments.runs, arguments.state, arguments.where
    runs = to_retry(sweep, *which, failed=arguments.failed)
    asked = ask_again(sweep, [run.id for run in runs], agreeing(arguments))
    told = [request.why for request in asked.done if not request.asked or request.waits]
    for why, count in Counter(told).items():
        warn(f"{count} {why}")
    say(f"{sweep.name}: {asked.again} runs to start again", flush=True)
    if not asked.again:
        if not runs:
            warn("none has failed; what was cancelled is named, or chosen by --state cancelled")
        return 0
    if take_up(sweep, warn):
        say("the launcher at work on the sweep takes them up")
        return 0
    try:
        with showing(sweep.name, sweep.root, plain=arguments.plain) as notify:
            wait, known = arguments.wait, asked.ready
            launched = go_on(sweep.store, sweep.name, wait=wait, notify=notify, known=known)
    except KeyboardInterrupt:
        warn("interrupted; what runs goes on")
        return 130
    if launched.summary is None:
        say(f"launched; watch it with `sweeper watch {sweep.name}`")
        return 0
    return exit_code(launched.summary)
