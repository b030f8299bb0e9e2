"""`sweeper watch`: opens the live view of a sweep, or prints lines if there is no terminal."""

import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping

from sweeper.commands import arguments as shared
from sweeper.commands import status
from sweeper.commands.selection import newest
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.store.opening import default_root
from sweeper.sweep.folder import SweepFolder
from sweeper.terminal import is_screen


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper watch`."""
    shared.optional_sweep(verb)
    shared.root(verb)
    output = shared.group(verb, shared.OUTPUT)
    shared.flag(output, "--plain", "print lines, as without a terminal")
    shared.flag(
        output,
        "--until-ended",
        "exit when the sweep has ended, but not within ten minutes of a key press",
    )
    # The process id of `launch --wait`, which shows this view and may end first.
    output.add_argument("--guest", type=int, help=SUPPRESS)


def run(arguments: Namespace) -> int:
    """Show the live view of a sweep. Return 0 if the user closed the view, and 130 after Ctrl-C.
    With `--plain` or without a terminal, print the output of `sweeper status` instead, and return
    its exit code. With `--until-ended`, do so after the end of the sweep."""
    root = arguments.root or default_root()
    name = arguments.sweep or _newest(root)
    if arguments.plain or not is_screen():
        return _lines(name, root)
    code = _show(root, name, guest=arguments.guest, leaves=arguments.until_ended)
    if arguments.until_ended and code == 0:
        return _lines(name, root, follow=False)
    return 0 if code is None else code


def _newest(root: str) -> str:
    registry = Registry(root, snapshot=True)
    try:
        return newest(registry)
    finally:
        tell_problems(registry.problems)  # an unreadable sweep may be newer than the one shown


def _lines(name: str, root: str, *, follow: bool = True) -> int:
    """Print the output of `sweeper status`."""
    arguments = Namespace(sweep=name, root=root, follow=follow, json=False, state=None, where=None)
    return status.run(arguments)


def _show(root: str, sweep: str, *, guest: int | None = None, leaves: bool = False) -> int | None:
    """Show the sweep until the view is closed. Return the exit code, or None if the user closed the
    view. `guest` is the process id of the `launch --wait` that started the view. If `leaves` is
    set, the view also closes some time after the end of the sweep, with the exit code 0."""
    from sweeper.tui.poller import Poller

    poller = Poller(SweepFolder.open(root, sweep))
    view = poller.check()
    from sweeper.tui.app import WatchApp

    app = WatchApp(
        poller, view, plain_glyphs=not _draws_unicode(os.environ), guest=guest, leaves=leaves
    )
    code = app.run(mouse=True)
    return app.return_code or code  # return_code is set if the view crashed


def _draws_unicode(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal can show Unicode, according to the locale variables or, if none
    is set, to the encoding of standard output."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := environment.get(name):
            return "utf-8" in value.lower() or "utf8" in value.lower()
    return "utf" in (sys.stdout.encoding or "").lower()
