"""The command palette's search for runs."""

from functools import partial

from textual.command import Hit, Hits, Provider

from sweeper.sanitize import sanitize
from sweeper.tui.screens import WatchScreen

__all__ = ["OpenRun"]


class OpenRun(Provider):
    """Opens the page of a run by a part of its name."""

    async def search(self, query: str) -> Hits:
        screen, matcher = self.screen, self.matcher(query)
        for run in screen.view.runs if isinstance(screen, WatchScreen) else ():
            name = f"open {sanitize(run.name)}"
            if (score := matcher.match(name)) > 0:
                open_it = partial(self.app.run_action, f"open({run.id!r})")
                yield Hit(score, matcher.highlight(name), open_it, help=run.shown_state)
