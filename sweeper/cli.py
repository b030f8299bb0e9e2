"""The command line: runs a verb from `commands/`, and reports its errors."""

import os
import sys
from collections.abc import Sequence

from sweeper.commands import load, of_today
from sweeper.common.sanitize import guarded
from sweeper.errors import EnvironmentFailure, SweeperError
from sweeper.paths import current_folder
from sweeper.terminal import complain, warn


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name) and return the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # A shell asks for completions.
        from sweeper.commands.completion import complete
        from sweeper.commands.parser import parser

        complete(parser(os.environ.get("COMP_LINE", "").split()))
    with guarded():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(words: list[str]) -> int:
    try:
        words, renamed = of_today(words)
        if renamed is not None and "--json" not in words:
            warn(renamed)
        code = _run(words)
        sys.stdout.flush()
    except SweeperError as error:
        return complain(error)
    except KeyboardInterrupt:
        warn("interrupted")
        return 130
    except BrokenPipeError:
        # The program that reads the output (head, less) has ended. Python flushes standard output
        # at exit, so redirect it to a file that accepts everything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SWEEPER_DEBUG"):
            raise
        if (failure := _failure_of(error)) is not None:
            return complain(failure)
        warn(f"a bug in sweeper: {type(error).__name__}: {error} (SWEEPER_DEBUG=1 shows where)")
        return 1
    return code


def _failure_of(error: Exception) -> EnvironmentFailure | None:
    """Return an `EnvironmentFailure` if the error occurred because the machine is full or the
    current folder was removed; None for other errors."""
    from sweeper.common.full_machine import crowding

    if (lack := crowding(error)) is not None:
        return EnvironmentFailure(str(lack))
    if isinstance(error, FileNotFoundError):
        try:
            current_folder()
        except EnvironmentFailure as removed:
            return removed
    return None


def _run(words: list[str]) -> int:
    if words[:1] == ["engine"]:  # this verb parses its own command line
        import argparse

        return load("engine").run(argparse.Namespace(verb="engine", rest=words[1:]))
    from sweeper.commands.parser import parse  # imported late, since argparse takes time

    arguments = parse(words)
    part = getattr(arguments, "part", None)
    return load(arguments.verb if part is None else f"{arguments.verb} {part}").run(arguments)
