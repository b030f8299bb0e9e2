"""The screen of a sweep: what holds it up, its runs, a filter."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label

from sweeper.sanitize import harmless
from sweeper.tui.list_model import Group
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.render import head_lines
from sweeper.tui.run_list import RunList
from sweeper.tui.screen_model import ScreenModel
from sweeper.tui.screens import Lines, WatchScreen
from sweeper.tui.text import Glyphs, Line, trimmed

__all__ = ["SweepScreen"]


class _Filter(Input):
    """Where a filter is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.keep_filter", "keep the filter"),
        Binding("escape", "screen.keep_filter(False)", "the filter as it was"),
    ]


class SweepScreen(WatchScreen, inherit_bindings=False):
    """All runs of a sweep. Its keys arrange the list; those that move the cursor are the list's."""

    HELP = """
- arrows, page up and down, home, end, j, k, the wheel: move
- *waiting*: the service holds the run back (its rate, its capacity): no failure
- *stalled*: no step for too long
- *silent*: no heartbeat (beat) for `launch.lease`
- *!*: alarms; the line above the keys tells them. *place*: by the metric

Filter: words that a run's name, state and alarms hold, all of them; or a condition as for
`--where`: `learning_rate < 1e-3 and state = failed`
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort", tooltip="sort by the next column"),
        Binding("S", "reverse", "sort backwards", show=False),
        Binding("g", "group", "group", tooltip="group by cell, nothing, an axis, the state"),
        Binding("enter", "open", "open", tooltip="open a run's page, fold a group"),
        Binding("space", "fold", "fold a group", show=False),
        Binding("left", "fold(True)", "fold it; to the heading", show=False),
        Binding("right", "fold(False)", "open a group", show=False),
        Binding("z", "fold_all", "fold all groups", show=False),
        Binding("escape", "end_filter", "end the filter", show=False),
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
        self._draw_head()

    def focus_usual(self) -> None:
        self.set_focus(self.list)

    def on_resize(self) -> None:
        self._draw_head()
        self.draw_notice()

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        return self.model.chosen

    def see(self, view: SweepView) -> None:
        super().see(view)
        if self.is_current:
            self.list.see(view)
            self._draw_head()
            self.draw_notice()
        else:
            self.model.see(view)

    def on_screen_resume(self) -> None:
        self.list.draw()
        self._draw_head()
        self.draw_notice()

    def _draw_head(self) -> None:
        lines = head_lines(self.view, self.glyphs)
        width = self.size.width
        self.query_one("#head", Lines).show([trimmed(one, width, self.glyphs) for one in lines])

    def _arranged(self, said: str = "") -> None:
        """Show the list as it is now, and say what was done to it."""
        self.list.draw()
        self.tell(said, "dim")

    @on(RunList.Moved)
    def _moved(self) -> None:
        self.draw_notice()

    def about(self) -> Line:
        model = self.model
        if model.problem:
            return [(harmless(model.problem), "bad")]
        wanted: Line = [(f"[{harmless(model.wanted)}] ", "warn")] if model.wanted else []
        return [*wanted, model.about()]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return action == "keep_filter" or not isinstance(self.focused, Input)

    def action_move(self, lines: int) -> None:
        """Move the cursor of the list."""
        self.list.action_move(lines)

    def action_sort(self, by: str | None = None) -> None:
        """Sort by the next column, or by this."""
        self._arranged(self.model.sort_by(by))

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._arranged(self.model.reverse())

    def action_group(self, by: str | None = None) -> None:
        """Group by the next, or by this."""
        self._arranged(self.model.group_by(by))

    def action_fold(self, folded: bool | None = None) -> None:
        """Fold or open the group with the cursor."""
        self.model.fold(folded)
        self._arranged()

    def action_fold_all(self) -> None:
        """Fold all groups, or open all."""
        self.model.fold_all()
        self._arranged()

    async def action_open(self) -> None:
        """Fold or open a group, open a run's page."""
        item = self.model.item
        if isinstance(item, Group):
            self.action_fold()
        elif item is not None:
            await self.run_action(f"app.open({item.id!r})")

    # The filter

    def action_filter(self) -> None:
        """Let the user type a filter."""
        self._wanted = self.model.wanted
        typed = self.query_one(_Filter)
        typed.value = self._wanted
        self.query_one("#filter").display = True
        self.set_focus(typed)

    def action_end_filter(self) -> None:
        """Show all runs again."""
        self.model.filter("")
        self._arranged()

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        self.model.filter(event.value)
        self._arranged()

    def action_keep_filter(self, keep: bool = True) -> None:
        """Go back to the list, with the filter that was typed or the one before."""
        self.query_one("#filter").display = False
        self.focus_usual()
        if not keep:
            self.model.filter(self._wanted)
        self._arranged()
