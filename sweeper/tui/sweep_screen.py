"""The screen of a sweep: what holds it up, its runs, a filter."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label

from sweeper.common.sanitize import sanitize
from sweeper.tui.list_model import Group
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.render import head_lines
from sweeper.tui.run_list import RunList
from sweeper.tui.screen_model import ScreenModel
from sweeper.tui.screens import Lines, WatchScreen
from sweeper.tui.text import Glyphs, Line, trimmed


class _Filter(Input):
    """The input for the filter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.keep_filter", "keep the filter"),
        Binding("escape", "screen.keep_filter(False)", "the filter as it was"),
    ]


class SweepScreen(WatchScreen, inherit_bindings=False):
    """Shows all runs of a sweep. Its keys arrange the list; the list's own keys move the
    cursor."""

    HELP = """
- arrows, page up and down, home, end, j, k, the wheel: move
- q: close the view, and leave the sweep alone
- *waiting*: the service holds the run back (its rate, its capacity): no failure
- *stalled*: no step for too long
- *silent*: no heartbeat (beat) for `launch.lease`
- *!*: alarms; the line above the keys tells them. *place*: by the metric

Filter: words that a run's name, state, alarms and tags hold, all of them; or a condition as for
`--where`: `learning_rate < 1e-3 and state = failed`
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "arrange('sort_by')", "sort", tooltip="sort by the next column"),
        Binding("S", "arrange('reverse')", "sort backwards", show=False),
        Binding("g", "arrange('group_by')", "group", tooltip="group by the next axis"),
        Binding("enter", "open", "open", tooltip="open a run's page, fold a group"),
        Binding("space", "arrange('fold')", "fold a group", show=False),
        Binding("left", "arrange('fold', True)", "fold it; to the heading", show=False),
        Binding("right", "arrange('fold', False)", "open a group", show=False),
        Binding("z", "arrange('fold_all')", "fold all groups", show=False),
        Binding("escape", "arrange('filter', '')", "end the filter", show=False),
        *WatchScreen.BINDINGS,
    ]

    def __init__(self, view: SweepView, glyphs: Glyphs, leave: str = "quit") -> None:
        super().__init__(view, glyphs)
        self._bindings.bind("q", "app.quit", leave)
        self.model = ScreenModel(view)
        self.list = RunList(self.model, glyphs)
        self._wanted = ""

    def compose(self) -> ComposeResult:
        yield Lines("head")
        yield self.list
        with Horizontal(id="filter"):
            yield Label("/")
            yield _Filter(
                compact=True,
                placeholder="words, or a condition: learning_rate < 1e-3 and state = failed",
                restrict=r"[^\x00-\x1f\x7f-\x9f]*",
            )
        yield from self.compose_notice()

    def on_mount(self) -> None:
        self.focus_usual()

    def focus_usual(self) -> None:
        self.set_focus(self.list)

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        return self.model.chosen

    def see(self, view: SweepView) -> None:
        super().see(view)
        if self.is_current:
            self.list.see(view)
            self.draw()
        else:
            self.model.see(view)

    def on_screen_resume(self) -> None:
        self.list.draw()
        self.draw()

    @on(events.Resize)
    def draw(self) -> None:
        """Draw everything but the list, which draws itself."""
        width, glyphs = self.size.width, self.glyphs
        lines = [trimmed(line, width, glyphs) for line in head_lines(self.view, glyphs)]
        self.query_one("#head", Lines).show(lines)
        self.draw_notice()

    @on(RunList.Moved)
    def _moved(self) -> None:
        self.draw_notice()

    def about(self) -> Line:
        model = self.model
        if model.problem:
            return [(sanitize(model.problem), "bad")]
        wanted: Line = [(f"[{sanitize(model.wanted)}] ", "warn")] if model.wanted else []
        return [*wanted, model.about()]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return action == "keep_filter" or not isinstance(self.focused, Input)

    def action_arrange(self, how: str, *to: object) -> None:
        """Call one of the list's methods (`sort_by`, `fold`, ...), and show the sentence it
        returns."""
        message: str | None = getattr(self.model, how)(*to)
        self.list.draw()
        self.tell(message or "", "dim")

    async def action_open(self) -> None:
        """Fold or open a group, open a run's page."""
        item = self.model.item
        if isinstance(item, Group):
            self.action_arrange("fold")
        elif item is not None:
            await self.run_action(f"app.open({item.id!r})")

    # Filter

    def action_filter(self) -> None:
        """Show the input for a filter."""
        self._wanted = self.model.wanted
        typed = self.query_one(_Filter)
        typed.value = self._wanted
        self.query_one("#filter").display = True
        self.set_focus(typed)

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        if self.query_one("#filter").display:  # ignore a late event of a closed input
            self.action_arrange("filter", event.value)

    def action_keep_filter(self, keep: bool = True) -> None:
        """Go back to the list, with the filter that was typed or the one before."""
        self.query_one("#filter").display = False
        self.focus_usual()
        typed = self.query_one(_Filter).value  # the model may lag behind
        self.action_arrange("filter", typed if keep else self._wanted)
