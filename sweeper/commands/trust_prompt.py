"""Asks the user before a launch executes somebody else's sweep, or drops finished runs."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from sweeper.errors import UsageError
from sweeper.launcher.trust import Agree
from sweeper.terminal import is_screen, warn


def agreeing(arguments: Namespace) -> Agree:
    """Make the function that shows what would be executed and returns the answer: yes with
    `--trust`, else the user's. Without a terminal the answer is no."""
    return _asking(arguments.trust, "execute that with your environment?")


def dropping(arguments: Namespace) -> Agree:
    """Make the function that says which finished runs would leave a sweep and returns the answer:
    yes with `--drop`, else the user's. Without a terminal the answer is no."""
    ask = _asking(arguments.drop, "drop them?")
    # Without a terminal, the error that follows says the same.
    return ask if is_screen() and not arguments.drop else lambda _: bool(arguments.drop)


def _asking(agreed: bool, question: str) -> Agree:
    def agree(lines: Sequence[str]) -> bool:
        for line in lines:
            warn(line)
        if agreed or not is_screen():
            return agreed
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was started")
        return True

    return agree
