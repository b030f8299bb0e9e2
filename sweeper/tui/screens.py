"""Common parts of the screens: the notice line above the list of keys, questions, and the search
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
"""The keys for scrolling. The help does not list them."""


class Lines(Static):
    """A widget with a few lines of styled text. It is redrawn only if the lines change."""

    def __init__(self, name: str) -> None:
        super().__init__("", id=name)
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        if lines != self._lines:
            self._lines = lines
            self.update(as_text(lines))


class _Keys(KeyPanel, can_focus=True, inherit_bindings=False):
    """Textual's table of keys, followed by the screen's help text. The table does not list the keys
    that scroll this widget."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "screen.help", "back", key_display="esc"),
        *SCROLLING,
    ]

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield Markdown((self.screen.HELP or "").strip(), id="widget-help")


class _Help(HelpPanel):
    """Textual's panel of keys, with the screen's help text."""

    def compose(self) -> ComposeResult:
        yield _Keys(id="keys-help")


class WatchScreen(Screen[None]):
    """A screen of the view. Above the list of keys is the notice line. The notice line shows a
    message until the next key press, and otherwise the default notice (`about`)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "c", "app.steer('cancel')", "cancel", tooltip="cancel the run, or all runs of a group"
        ),
        Binding("r", "app.steer('retry')", "retry", tooltip="start the run again"),
        Binding("t", "app.jump", "tmux", tooltip="go to the run's tmux pane (ctrl-b d: back)"),
        Binding("question_mark,f1,h", "help", "help", key_display="?"),
    ]

    def __init__(self, view: SweepView, glyphs: Glyphs) -> None:
        super().__init__()
        self.view, self.glyphs = view, glyphs
        self._message: Line = []

    def compose_notice(self) -> ComposeResult:
        """Yield the notice line and the list of keys."""
        yield Lines("notice")
        yield Footer(compact=True, show_command_palette=False)

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        """The runs that the next key press acts on, and the name of these runs in messages."""
        return (), ""

    def see(self, view: SweepView) -> None:
        """Show the current state of the sweep."""
        self.view = view

    def about(self) -> Line:
        """Return the default notice."""
        return []

    def tell(self, text: str, style: str = "warn") -> None:
        """Show a message until the next key press."""
        self._message = [(sanitize(text), style)] if text else []
        self.draw_notice()

    def draw_notice(self) -> None:
        """Draw the notice line."""
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
        """Move the focus to the screen's main widget."""


class OpenRun(Provider):
    """Entries of the command palette that open the pages of runs. To find an entry, the user types
    a part of the run's name."""

    async def search(self, query: str) -> Hits:
        screen, matcher = self.screen, self.matcher(query)
        for run in screen.view.runs if isinstance(screen, WatchScreen) else ():
            name = f"open {sanitize(run.name)}"
            if (score := matcher.match(name)) > 0:
                open_it = partial(self.app.run_action, f"open({run.id!r})")
                yield Hit(score, matcher.highlight(name), open_it, help=run.shown_state)


class Question(ModalScreen[bool]):
    """A question before an action that cannot be undone. `y` confirms the action, and any other
    key declines."""

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
