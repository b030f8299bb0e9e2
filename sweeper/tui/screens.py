"""The common parts of the view's screens: the notice line above the keys, questions, and a search
for runs."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import Hit, Hits, Provider
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, HelpPanel, KeyPanel, Markdown, Static

from sweeper.common.sanitize import sanitize
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.text import Glyphs, Line, as_text, trimmed

SCROLLING = (
    Binding("up,k", "scroll_up", system=True),
    Binding("down,j", "scroll_down", system=True),
    Binding("pageup", "page_up", system=True),
    Binding("pagedown", "page_down", system=True),
)
"""The keys of scrolling widgets, which the help does not list."""


class Lines(Static):
    """A few lines of styled text, redrawn when they change."""

    def __init__(self, name: str) -> None:
        super().__init__("", id=name)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        if lines != self._lines:
            self._lines = lines
            self.update(as_text(lines))


class _Keys(KeyPanel, can_focus=True, inherit_bindings=False):
    """Textual's table of keys, with further keys for scrolling that it does not list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "screen.help", "back", key_display="esc"),
        *SCROLLING,
    ]


class _Help(HelpPanel):
    """Textual's panel of keys, with the screen's help text."""

    def compose(self) -> ComposeResult:
        yield Markdown(id="widget-help")
        yield _Keys(id="keys-help")


class WatchScreen(Screen[None]):
    """A screen of the view. `notice` is the line above the keys: the last message until the next
    key, then the default notice."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "app.steer('cancel')", "cancel", tooltip="cancel the run, or all of a group"),
        Binding("r", "app.steer('retry')", "retry", tooltip="start it again"),
        Binding("t", "app.jump", "tmux", tooltip="go to its tmux pane (ctrl-b d comes back)"),
        Binding("question_mark,f1,h", "help", "help", key_display="?"),
    ]

    def __init__(self, view: SweepView, glyphs: Glyphs) -> None:
        super().__init__()
        self.view, self.glyphs = view, glyphs
        self._message: Line = []

    def compose_notice(self) -> ComposeResult:
        """Compose the last lines of the screen."""
        yield Lines("notice")
        yield Footer(compact=True, show_command_palette=False)

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        """The runs to which a key applies, and their name in messages."""
        return (), ""

    def see(self, view: SweepView) -> None:
        """Show the current state of the sweep."""
        self.view = view

    def about(self) -> Line:
        """Return the default notice."""
        return []

    def tell(self, text: str, style: str = "warn") -> None:
        """Show a message until the next key."""
        self._message = [(sanitize(text), style)] if text else []
        self.draw_notice()

    def draw_notice(self) -> None:
        """Draw the notice."""
        line = trimmed(self._message or self.about(), self.size.width, self.glyphs)
        self.query_one("#notice", Lines).show([line])

    async def action_help(self) -> None:
        """Show or hide the panel of keys."""
        if panels := self.query(_Help):
            await panels.remove()
            self.focus_usual()
        else:
            await self.mount(_Help())
            self.set_focus(self.query_one(_Keys))

    def focus_usual(self) -> None:
        """Focus the widget that usually has the focus."""


class OpenRun(Provider):
    """A provider for the command palette that opens a run's page by a part of its name."""

    async def search(self, query: str) -> Hits:
        screen, matcher = self.screen, self.matcher(query)
        for run in screen.view.runs if isinstance(screen, WatchScreen) else ():
            name = f"open {sanitize(run.name)}"
            if (score := matcher.match(name)) > 0:
                open_it = partial(self.app.run_action, f"open({run.id!r})")
                yield Hit(score, matcher.highlight(name), open_it, help=run.shown_state)


class Question(ModalScreen[bool]):
    """A question before an action that cannot be undone: `y` confirms, any other key does not."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        lines: list[Line] = [[(self._question, "warn bold")], [("y: yes, any other key: no", "")]]
        yield Static(as_text(lines))

    def answer(self, key: str) -> AwaitComplete:
        """Answer the question with this key."""
        return self.dismiss(key in ("y", "Y", "upper_y"))

    def on_click(self) -> None:
        self.dismiss(False)
