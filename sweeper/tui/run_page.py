"""The screen of one run: its curves, configuration, log and rollouts, as tabs, or side by side if
there is room."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import TabbedContent, TabPane, Tabs

from sweeper.common.sanitize import sanitize
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.panels import (
    PageData,
    about_best,
    configuration_lines,
    curve_lines,
    log_lines,
    page_head,
    rollout_lines,
)
from sweeper.tui.screens import SCROLLING, Lines, WatchScreen
from sweeper.tui.text import Glyphs, Line, as_strip

_PANELS = ("curves", "configuration", "log", "rollouts")
_WIDE = (130, 34)
"""The columns and lines from which on all panels are shown side by side."""
_ONE_OF = Binding.Group("panel", compact=True)
_CURVE = Binding.Group("curve", compact=True)
_RUN = Binding.Group("run", compact=True)


class _Curves(Widget, can_focus=True):
    """The curves, drawn line by line: Textual's own `Sparkline` has bars only, no axes, and no
    second curve."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.curve(-1)", system=True),
        Binding("down,j", "screen.curve(1)", system=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        if lines != self._lines:
            self._lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return as_strip(self._lines[y] if y < len(self._lines) else [], self.size.width)


class _Words(VerticalScroll, can_focus=True, inherit_bindings=False):
    """A text that scrolls. `at_end`: shows its end until the user scrolls, as a log does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *SCROLLING,
        Binding("home", "scroll_home", system=True),
        Binding("end", "scroll_end", system=True),
    ]

    def __init__(self, *, at_end: bool = False) -> None:
        super().__init__()
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        yield Lines("words")

    def on_mount(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Scroll to where reading begins."""
        if self._at_end:
            self.anchor()
        else:
            self.scroll_home(animate=False)

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        self.query_one("#words", Lines).show(lines)


class RunPage(WatchScreen, inherit_bindings=False):
    """The page of the run with the id `run`."""

    HELP = """
Beside each curve stands the best run's, in `x`, both on the same steps; on the page of the best run
it is the next best.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "app.close", "back", key_display="esc"),
        *(
            Binding(str(number), f"panel({number - 1})", name, group=_ONE_OF)
            for number, name in enumerate(_PANELS, start=1)
        ),
        Binding("tab", "next_panel(1)", "the next panel", show=False),
        Binding("shift+tab", "next_panel(-1)", "the panel before", show=False),
        Binding("left", "curve(-1)", "the curve before", group=_CURVE),
        Binding("right", "curve(1)", "the next curve", group=_CURVE),
        Binding("l", "log_scale", "log", tooltip="a logarithmic scale for curves"),
        Binding("n", "neighbour(1)", "the next run", group=_RUN),
        Binding("p", "neighbour(-1)", "the run before", group=_RUN),
        *WatchScreen.BINDINGS,
    ]

    def __init__(self, view: SweepView, run: str, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self.run = run
        self.data = PageData(run)
        self._panel = self._curve = 0
        self._log_scale = False

    def compose(self) -> ComposeResult:
        yield Lines("head")
        with TabbedContent():
            made = (_Curves(), _Words(), _Words(at_end=True), _Words())
            for number, (name, panel) in enumerate(zip(_PANELS, made, strict=True)):
                panel.border_title = f" {number + 1} {name} "
                with TabPane(f"{number + 1} {name}", id=f"panel-{number}"):
                    yield panel
        yield from self.compose_notice()

    @property
    def _panels(self) -> list[Widget]:
        return [pane.children[0] for pane in self.query(TabPane)]

    @property
    def _view_of_run(self) -> RunView | None:
        return next((run for run in self.view.runs if run.id == self.run), None)

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        run = self._view_of_run
        return ((), "") if run is None else ((run,), sanitize(run.name))

    def turn_to(self, run: str) -> None:
        """Show another run."""
        self.run, self.data, self._curve = run, PageData(run), 0
        for panel in self.query(_Words):
            panel.begin()
        self.draw()

    def see(self, view: SweepView) -> None:
        super().see(view)
        self.draw()

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False  # keys move what is in a panel, not the tabs
        self.action_panel(0)

    def on_resize(self, event: events.Resize) -> None:
        wide = event.size.width >= _WIDE[0] and event.size.height >= _WIDE[1]
        self.set_class(wide, "wide")
        self.action_panel(self._panel)
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw what has changed."""
        run, data, head = self._view_of_run, self.data, self.query_one("#head", Lines)
        if run is None:
            head.show([[("the run is not in the sweep any more", "warn")]])
            return
        head.show(page_head(self.view, run, data))
        shown = (
            configuration_lines(self.view, run),
            log_lines(run, data),
            rollout_lines(data),
        )
        for panel, lines in zip(self.query(_Words), shown, strict=True):
            panel.show(lines)
        self.draw_curves()
        self.draw_notice()

    def draw_curves(self) -> None:
        """Draw the curves to fit their panel."""
        run, panel = self._view_of_run, self.query_one(_Curves)
        if run is None or not panel.size:
            return
        about = about_best(self.view, run, self.data.best)
        lines = curve_lines(
            self.data, about, self._curve, panel.size, self.glyphs, log=self._log_scale
        )
        panel.show(lines)

    def action_panel(self, number: int) -> None:
        """Show this panel."""
        self._panel = number
        wide = self.has_class("wide")
        self.query_one(TabbedContent).active = f"panel-{number}"
        for place, pane in enumerate(self.query(TabPane)):
            pane.display = wide or place == number
        self.focus_usual()

    def focus_usual(self) -> None:
        self.set_focus(self._panels[self._panel], scroll_visible=False)

    @on(TabbedContent.TabActivated)
    def _tab_clicked(self, event: TabbedContent.TabActivated) -> None:
        if event.pane.id == event.tabbed_content.active:  # ignore late events
            self.action_panel(int((event.pane.id or "panel-0").rpartition("-")[2]))

    def action_next_panel(self, step: int) -> None:
        """Show the next panel, or the one before."""
        self.action_panel((self._panel + step) % len(_PANELS))

    def action_curve(self, step: int) -> None:
        """Show the next curve, or the one before."""
        self._curve = max(0, self._curve + step)
        self.draw_curves()

    def action_log_scale(self) -> None:
        """Draw the curves on a logarithmic scale, or on a linear one again."""
        self._log_scale = not self._log_scale
        self.draw_curves()

    async def action_neighbour(self, step: int) -> None:
        """Show the next run of the list, or the one before."""
        await self.run_action(f"app.neighbour({step})")
