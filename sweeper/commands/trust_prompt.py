"""Asks the user whether somebody else's sweep may be executed."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from sweeper.errors import UsageError
from sweeper.launcher.trust import Agree
from sweeper.terminal import is_screen, warn

__all__ = ["agreeing"]


def agreeing(arguments: Namespace) -> Agree:
    """Make the function that shows what would be executed and returns the answer: yes with
    `--trust`, else the user's. Without a terminal the answer is no."""

    def agree(lines: Sequence[str]) -> bool:
        for line in lines:
            warn(line)
        if arguments.trust or not is_screen():
            return bool(arguments.trust)
        print("execute that with your environment? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was started")
        return True

    return agree
