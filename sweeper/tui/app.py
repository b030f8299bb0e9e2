"""The terminal's side of `sweeper watch`: Textual gives keys, size and the drawing of what has
changed; what is on the screen comes from `desk.py`, what it is about from `looking.py`."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from sweeper.errors import SweeperError
from sweeper.sanitize import harmless
from sweeper.tracking import link
from sweeper.tui import actions
from sweeper.tui.charts import ASCII, UNICODE
from sweeper.tui.model import SweepView, best_run
from sweeper.tui.page_reader import PageReader
from sweeper.tui.poller import Poller
from sweeper.tui.render import Line
from sweeper.tui.run_page import PageData
from sweeper.tui.screen_model import Action, ScreenModel

__all__ = ["WatchApp"]

_SECONDS = 1.0
_REMOTE_SECONDS = 5.0
_ENDED_SECONDS = 5.0
_LOADING_SECONDS = 0.02
LINGER_SECONDS = 600.0
"""How long a view that leaves by itself waits after the sweep's end and the last key."""
UNTOUCHED_SECONDS = 10.0
"""The same where no key was ever pressed: a view that nobody looks at is a process for nothing."""

_DEBUG = bool(os.environ.get("SWEEPER_DEBUG"))

_LOOKS = {
    "": Style(),
    "bold": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "info": Style(color="cyan"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "head": Style(bold=True, dim=True),
    "sorted": Style(underline=True),
    "cursor": Style(reverse=True),
}


@lru_cache(maxsize=256)
def _style(words: str) -> Style:
    return Style.combine(_LOOKS[word] for word in words.split()) if words else _LOOKS[""]


def _said(error: Exception) -> str:
    """An error in a sentence; the view goes on after a bug of ours, too."""
    if isinstance(error, SweeperError | OSError):
        return str(error)
    return f"a bug of ours: {type(error).__name__}: {error} (SWEEPER_DEBUG=1 shows where)"


class _Canvas(Widget, can_focus=True):
    """Shows lines; of those shown again only the ones that differ are drawn. `drawn` counts
    them."""

    DEFAULT_CSS = "_Canvas { width: 1fr; height: 1fr; background: ansi_default; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self.drawn = 0

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        before, self._lines = self._lines, lines
        width = self.size.width
        if len(before) != len(lines):
            self.refresh()
            self.drawn += len(lines)
            return
        changed = [y for y, line in enumerate(lines) if line != before[y]]
        self.drawn += len(changed)
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else []
        # Segments, not markup: what a run is called is data.
        # And harmless, should whoever made the line have forgotten it.
        strip = Strip([Segment(harmless(text), _style(words)) for text, words in line])
        return strip.adjust_cell_length(width)


class WatchApp(App[int]):
    """Watches the sweep that `poller` looks at. Its return value is the exit code.

    `guest`: the process that shows this view, which is left when that has gone. `leaves`: once the
    sweep has ended and no key was pressed for a while.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; }"
    BINDINGS = []  # noqa: RUF012 - every key goes to the desk

    def __init__(
        self,
        poller: Poller,
        view: SweepView,
        *,
        plain_glyphs: bool = False,
        guest: int | None = None,
        leaves: bool = False,
        every: float | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._poller, self._guest, self._leaves = poller, guest, leaves
        remote = poller.sweep.store.is_remote
        self._every = every or (_REMOTE_SECONDS if remote else _SECONDS)
        glyphs = ASCII if plain_glyphs else UNICODE
        self.desk = ScreenModel(view, glyphs=glyphs, guest=guest is not None)
        self._reader: PageReader | None = None
        self._place: object = None
        self.canvas = _Canvas()
        self._pressed = time.monotonic()
        self._touched = False
        self._looking = False
        self._again = False

    def compose(self) -> ComposeResult:
        yield self.canvas

    def on_mount(self) -> None:
        self.canvas.focus()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, partial(self.exit, 0))
            except (ValueError, RuntimeError):
                break  # not the main thread, as in a test: its owner ends us
        self._look()

    # Looking

    def _look(self) -> None:
        """Look at the sweep in a thread: a store may take its time, and keys do not wait."""
        if self._looking:
            self._again = True
            return
        self._looking, self._again = True, False
        threading.Thread(target=self._looked, daemon=True).start()

    def _looked(self) -> None:
        view: SweepView | None = None
        data: PageData | None = None
        problem = ""
        try:
            view = self._poller.look()
            data = self._read_page(view)
        except Exception as error:
            if _DEBUG:
                raise
            problem = _said(error)
        with suppress(RuntimeError):  # the view is being closed
            self.call_from_thread(self._seen, view, data, problem)

    def _read_page(self, view: SweepView) -> PageData | None:
        page = self.desk.page
        if page is None:
            self._reader = None
            return None
        run = next((run for run in view.runs if run.id == page.run), None)
        if run is None:
            return None
        if self._reader is None or self._place != (run.id, run.attempt, run.state):
            address = link(self._poller.sweep.plan, run.id)
            links = () if address is None else (f"W&B: {address}",)
            handle = self._poller.run
            self._reader = PageReader(handle(run.id), view.metric, handle, links)
            self._place = (run.id, run.attempt, run.state)
        return self._reader.read(best_run(view.runs, run.id))

    def _seen(self, view: SweepView | None, data: PageData | None, problem: str) -> None:
        """What a look has found; whatever that does to us, there is a next one."""
        self._looking = False
        try:
            self._take(view, data, problem)
        except Exception as error:
            if _DEBUG:
                raise
            self.canvas.show(self.desk.broken(_said(error)))
        finally:
            self._go_on()

    def _take(self, view: SweepView | None, data: PageData | None, problem: str) -> None:
        desk = self.desk
        if problem:
            desk.see(desk.view._replace(problem=problem))
        elif view is not None and view is not desk.view:
            desk.see(view)
        if data is not None and desk.page is not None and data.run == desk.page.run:
            desk.data = data
        self._draw()

    def _go_on(self) -> None:
        """Leave, or look again in a while."""
        desk = self.desk
        if self._is_left():
            self.exit(0)
            return
        pause = self._every
        if self._again:
            pause = 0.0
        elif desk.view.loading:
            pause = _LOADING_SECONDS
        elif desk.view.ended and desk.page is None:
            pause = max(self._every, _ENDED_SECONDS)
        self.set_timer(max(pause, 0.001), self._look)

    def _is_left(self) -> bool:
        """Whether nobody is there to look any more."""
        if self._guest is not None and os.getppid() != self._guest:
            return True
        idle = time.monotonic() - self._pressed
        most = LINGER_SECONDS if self._touched else UNTOUCHED_SECONDS
        return self._leaves and self.desk.view.ended and idle > most

    def _draw(self) -> None:
        try:
            lines = self.desk.screen()
        except Exception as error:
            if _DEBUG:
                raise
            lines = self.desk.broken(_said(error))
        self.canvas.show(lines)

    # The user

    def on_resize(self, event: events.Resize) -> None:
        self.desk.resize(event.size.width, event.size.height)
        self._draw()

    async def on_event(self, event: events.Event) -> None:
        """Keys go to the desk and nowhere else."""
        if isinstance(event, events.Key):
            self._pressed, self._touched = time.monotonic(), True
            self._do(self.desk.press(event.key, event.character))
            self._draw()
            return
        await super().on_event(event)

    def on_mouse_scroll_down(self) -> None:
        self.desk.press("down")
        self._draw()

    def on_mouse_scroll_up(self) -> None:
        self.desk.press("up")
        self._draw()

    def on_click(self, event: events.Click) -> None:
        self._do(self.desk.click(event.y))
        self._draw()

    def _do(self, deed: Action | None) -> None:
        if deed is None:
            return
        if deed.kind in ("quit", "interrupt"):
            self.exit(0 if deed.kind == "quit" else 130)
        elif deed.kind == "look":
            self.canvas.refresh()
            self._look()
        elif deed.kind in ("open", "close"):
            self._look()
        elif deed.kind == "jump":
            self._jump(deed.runs[0])
        else:
            action = actions.cancel if deed.kind == "cancel" else actions.retry
            waits = "asked to stop; waiting" if deed.kind == "cancel" else "asking"
            self.desk.tell(f"{waits} ...", "dim")
            self._behind(lambda: action(self._poller.sweep, deed.runs))

    def _behind(self, action: Callable[[], str]) -> None:
        """Do something in a thread, and show what it says."""

        def act() -> None:
            try:
                said, style = action(), "good"
            except Exception as error:
                if _DEBUG:
                    raise
                said, style = _said(error), "bad"
            with suppress(RuntimeError):  # the view is being closed
                self.call_from_thread(self._told, said, style)

        # Nobody waits for its end when the view is closed: what was asked for stays on record.
        threading.Thread(target=act, daemon=True).start()

    def _told(self, said: str, style: str) -> None:
        self.desk.tell(said, style)
        self._draw()
        self._look()

    def _jump(self, run: str) -> None:
        attempt = next((one.attempt for one in self.desk.view.runs if one.id == run), 0)
        try:
            pane = actions.pane_of(self._poller.sweep, run, attempt)
            command = actions.go_there(pane)
        except SweeperError as error:
            self.desk.tell(str(error))
            return
        if command:
            with self.suspend():
                subprocess.run(command, check=False)
            self.canvas.refresh()
        elif command is not None:
            name = self._poller.sweep.name
            self.desk.tell(f"selected; from another terminal: sweeper attach {name}", "good")
