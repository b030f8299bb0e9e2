"""Opens the view of a sweep on the terminal."""

import os
import sys
from collections.abc import Mapping

from sweeper.sweep.folder import SweepFolder


def show(root: str, sweep: str, *, guest: int | None = None, leaves: bool = False) -> int | None:
    """Show the sweep until the view is closed. Return the exit code, None when a key closed it.
    `guest` is the process that shows the view while it runs (`launch --wait`); with `leaves` the
    view closes by itself some time after the sweep has ended, and returns 0."""
    from sweeper.tui.poller import Poller

    poller = Poller(SweepFolder.open(root, sweep))
    view = poller.look()
    from sweeper.tui.app import WatchApp

    app = WatchApp(
        poller, view, plain_glyphs=not draws_unicode(os.environ), guest=guest, leaves=leaves
    )
    code = app.run(mouse=True)
    return app.return_code or code  # return_code is set after a bug


def draws_unicode(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal claims to show more than ASCII."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := environment.get(name):
            return "utf-8" in value.lower() or "utf8" in value.lower()
    return "utf" in (sys.stdout.encoding or "").lower()
