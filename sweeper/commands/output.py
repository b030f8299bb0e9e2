"""Output that several verbs share: JSON with read errors, questions, pages, and text of several
lines."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, TypeVar

from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import UsageError
from sweeper.results.problems import Problems, tell_problems
from sweeper.terminal import is_screen, print_json, say, warn

if TYPE_CHECKING:
    from sweeper.launcher.pausing import Steered
    from sweeper.sweep.trust import Agree

T = TypeVar("T")


def print_json_answer(document: Mapping[str, object], problems: Problems) -> int:
    """Print `document` as JSON, with the read errors under the key `problems`. Return the exit
    code."""
    print_json({**document, "problems": problems})
    return tell_problems(problems, listed=True)


def with_status(run: Callable[[Namespace], int], arguments: Namespace) -> int:
    """Call `run`, and return the exit code. With `--json`, print the output of `run` on standard
    error, and afterwards the output of `status --json` for the sweep on standard output."""
    if not arguments.json:
        return run(arguments)
    from sweeper.commands.status_table import print_status
    from sweeper.results.registry import Registry
    from sweeper.results.status import read_status
    from sweeper.store.opening import default_root

    with redirect_stdout(sys.stderr):
        code = run(arguments)
    registry = Registry(arguments.root or default_root(), cache=False, snapshot=True)
    sweep = registry.sweep(arguments.sweep)
    every = Namespace(json=True, state=None, where=None)
    print_status(sweep, read_status(sweep), every, problems=registry.problems)
    return code


def print_steered(done: "Steered", **more: object) -> int:
    """Print a request's result `done`, and the keys `more`, as JSON. Return the exit code."""
    return print_json({"schema": 1, **done._asdict(), **more})


def agreeing(arguments: Namespace) -> "Agree":
    """Return a function that shows the commands of a plan and asks the user whether to execute
    them. The function raises `UsageError` if the user says no. It does not ask if `--trust` is
    given (the answer is yes), or if there is no terminal (the answer is no)."""
    return _asking(arguments.trust, "execute this with your environment?")


def dropping(arguments: Namespace) -> "Agree":
    """Return a function that lists the finished runs to drop and asks the user whether to drop
    them. The function raises `UsageError` if the user says no. It does not ask if `--drop` is given
    (the answer is yes), or if there is no terminal (the answer is no)."""
    ask = _asking(arguments.drop, "drop them?")
    # Without a terminal, the error that follows says the same.
    return ask if is_screen() and not arguments.drop else lambda _: bool(arguments.drop)


def _asking(agreed: bool, question: str) -> "Agree":
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


def confirmed(question: str) -> bool:
    """Ask the user a question. Return True for the answers `y` and `yes`."""
    print(f"{question} [y/N] ", end="", flush=True)
    return input().strip().lower() in ("y", "yes")


def page_of(items: Sequence[T], arguments: Namespace) -> Sequence[T]:
    """Return the items on the page that `--limit` and `--page` select."""
    size = _page_size(items, arguments)
    return items[(arguments.page - 1) * size : arguments.page * size]


def print_page_footer(items: Sequence[object], noun: str, arguments: Namespace) -> None:
    """Print how many items the page shows, and the number of the page if there are several
    pages."""
    pages = -(-len(items) // _page_size(items, arguments))
    shown = len(page_of(items, arguments))
    place = (
        f", page {arguments.page} of {pages} (--page and --limit show more)" if pages > 1 else ""
    )
    print(f"\n{shown} of {len(items)} {noun}{place}")


def _page_size(items: Sequence[object], arguments: Namespace) -> int:
    return arguments.limit or max(len(items), 1)


def print_text(title: str, text: str) -> None:
    """Print `title`, followed by the first line of `text` on the same line. Indent the other
    lines."""
    first, *more = sanitize_lines(text).splitlines() or [""]
    say(f"{title}: {first}")
    for line in more:
        say(f"    {line}")


def excerpt(text: str, most: int) -> str:
    """Return the first `most` characters of a text on one line, and `...` if the text is longer."""
    line = " ".join(sanitize_lines(text).split())
    return line[:most] + "..." * (len(line) > most)
