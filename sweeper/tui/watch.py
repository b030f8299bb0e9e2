"""`sweeper watch`: open the view, or where there is no terminal for it, print lines."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping

from sweeper.errors import NotFound
from sweeper.records.problems import tell_problems
from sweeper.registry import Registry
from sweeper.store.files import default_root, open_store
from sweeper.terminal import is_screen
from sweeper.verbs.watching import status

__all__ = ["watch"]


def watch(arguments: Namespace) -> int:
    """Show a sweep on the whole screen. Exit codes: 0 when the view was closed; without a terminal
    those of `status`."""
    root = arguments.root or default_root()
    name = arguments.sweep or _newest(root)
    if arguments.plain or not is_screen():
        return _lines(name, root)
    from sweeper.tui.poller import Poller

    poller = Poller(open_store(root), name)
    view = poller.look()
    from sweeper.tui.app import WatchApp

    app = WatchApp(
        poller,
        view,
        plain_glyphs=not draws_unicode(os.environ),
        guest=arguments.guest,
        leaves=arguments.until_ended,
    )
    code = app.run(mouse=True)
    if app.return_code:  # Textual's own word for a bug
        return app.return_code
    if arguments.until_ended and code == 0:
        return _lines(name, root, follow=False)
    return 0 if code is None else code


def _newest(root: str) -> str:
    """The sweep that was made last."""
    registry = Registry(root)
    found = registry.sweep_records()
    tell_problems(registry.problems)  # one of them may be newer
    if not found:
        raise NotFound(f"no sweep in {root}")
    return max(found, key=lambda sweep: sweep["created"] or "")["sweep"]


def _lines(name: str, root: str, *, follow: bool = True) -> int:
    """What `sweeper status` prints."""
    asked = Namespace(sweep=name, root=root, follow=follow, json=False, state=None, where=None)
    return status(asked)


def draws_unicode(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is said to show more than ASCII."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if found := environment.get(name):
            return "utf-8" in found.lower() or "utf8" in found.lower()
    return "utf" in (sys.stdout.encoding or "").lower()
