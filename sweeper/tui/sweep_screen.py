"""The screen of a sweep: its problems, the list of its runs, and the input for a filter."""

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Label

from sweeper.common.sanitize import sanitize
from sweeper.tui.list_model import Group
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.render import head_lines, heading, item_line, table
from sweeper.tui.screen_model import ScreenModel
from sweeper.tui.screens import Lines, WatchScreen
from sweeper.tui.text import Glyphs, Line, as_strip, trimmed


def list_lines(model: ScreenModel, width: int, rows: int, top: int, glyphs: Glyphs) -> list[Line]:
    """Return the line with the column titles, and up to `rows` lines of the list, beginning with
    line `top`."""
    shown = table(model.view, width, min(model.longest_name, width // 2), glyphs)
    lines = [heading(model.view, shown, model.sort)]
    for place in range(top, min(top + rows, len(model.items))):
        inside, cursor = model.heading_above(place), place == model.place
        lines.append(item_line(model.items[place], shown, inside=inside, cursor=cursor))
    if not model.items:
        lines.append([("no run matches the filter" if model.view.runs else "no runs", "dim")])
    return lines


class RunList(ScrollView, can_focus=True, inherit_bindings=False):
    """The list of runs: column titles and the lines of a `ScreenModel`, with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", system=True),
        Binding("up,k", "move(-1)", system=True),
        Binding("pagedown", "page(1)", system=True),
        Binding("pageup", "page(-1)", system=True),
        Binding("ctrl+d", "page(0.5)", system=True),
        Binding("ctrl+u", "page(-0.5)", system=True),
        Binding("home", "move(-1000000)", system=True),
        Binding("end", "move(1000000)", system=True),
    ]

    class Moved(Message):
        """The message that the cursor has moved."""

    def __init__(self, model: ScreenModel, glyphs: Glyphs) -> None:
        super().__init__()
        self.model, self._glyphs = model, glyphs
        self._lines: list[Line] = []
        self.drawn = 0
        """The number of lines drawn since the start, for tests and measurements."""

    @property
    def _width(self) -> int:
        """The width of the list without the scroll bar."""
        return self.scrollable_content_region.width

    @property
    def _rows(self) -> int:
        """The number of lines of the list that fit on the screen."""
        return max(1, self.size.height - 1)

    def see(self, view: SweepView) -> None:
        """Show the current state of the sweep. If the cursor is visible, scroll to keep the cursor
        visible."""
        top = self.scroll_offset.y
        follow = top <= self.model.place < top + self._rows
        self.model.see(view)
        self.draw(follow=follow)

    def draw(self, *, follow: bool = True) -> None:
        """Draw the lines that have changed. `follow`: scroll so that the cursor is on the
        screen."""
        self.virtual_size = Size(0, len(self.model.items) + 1)
        top, place = self.scroll_offset.y, self.model.place
        if follow:
            wanted = min(max(top, place - self._rows + 1), place)
            if wanted != top:
                self.scroll_to(y=wanted, animate=False, force=True)
                if self.scroll_offset.y != top:
                    return  # scrolling has drawn the new line already
        before, self._lines = (
            self._lines,
            list_lines(self.model, self._width, self._rows, top, self._glyphs),
        )
        pairs = zip(self._lines, before, strict=False)
        changed = [y for y, (line, other) in enumerate(pairs) if line != other]
        if len(before) != len(self._lines):
            changed = [*range(max(len(before), len(self._lines)))]
        self.drawn += len(changed)
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        return as_strip(self._lines[y] if y < len(self._lines) else [], self._width)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.draw(follow=False)

    def on_resize(self) -> None:
        self.draw()

    async def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line, or open the line if it has the cursor already."""
        place = self.scroll_offset.y + event.y - 1
        if event.y < 1 or place >= len(self.model.items):
            return
        if place == self.model.place:
            await self.run_action("screen.open")
        else:
            self.action_move(place - self.model.place)

    def action_move(self, lines: int) -> None:
        """Move the cursor down by `lines`, or up if negative."""
        self.model.go(self.model.place + lines)
        self.draw()
        self.post_message(self.Moved())

    def action_page(self, pages: float) -> None:
        """Move the cursor down by `pages` times the height of the list."""
        self.action_move(int(self._rows * pages))


class _Filter(Input):
    """The input for the filter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.keep_filter", "apply the filter"),
        Binding("escape", "screen.keep_filter(False)", "restore the previous filter"),
    ]


class Leave(Enum):
    """The action of the key q: `QUIT` and `CLOSE` end the view, and `DETACH` detaches from the
    view's tmux session."""

    QUIT = "quit"
    CLOSE = "close"
    DETACH = "detach"


class SweepScreen(WatchScreen, inherit_bindings=False):
    """The screen with the list of a sweep's runs. Keys of this class arrange the list, and keys of
    `RunList` move the cursor."""

    HELP = """
- arrows, page up and down, home, end, j, k, the wheel: move
- q: close the view (the sweep continues); in the sweep's tmux session: detach
- 0 to 9: in the sweep's tmux session, go to the window with this number
- *waiting*: the service delays the run (rate limit, capacity); this is not a failure
- *stalled*: no step for too long
- *silent*: no heartbeat (*beat*) for longer than `launch.lease`
- *!*: the run has alarms; the line above the keys shows them
- *place*: the rank by the metric

Filter: words that must all occur in a run's name, state, alarms or tags, or a
condition as for `--where`: `learning_rate < 1e-3 and state = failed`
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "arrange('sort_by')", "sort", tooltip="sort by the next column"),
        Binding("S", "arrange('reverse')", "sort backwards", show=False),
        Binding("g", "arrange('group_by')", "group", tooltip="group by the next axis"),
        Binding("enter", "open", "open", tooltip="open a run's page, fold a group"),
        Binding("space", "arrange('fold')", "fold a group", show=False),
        Binding(
            "left", "arrange('fold', True)", "fold the group, or go to the heading", show=False
        ),
        Binding("right", "arrange('fold', False)", "open a group", show=False),
        Binding("z", "arrange('fold_all')", "fold all groups", show=False),
        Binding("escape", "arrange('filter', '')", "end the filter", show=False),
        *WatchScreen.BINDINGS,
    ]

    def __init__(self, view: SweepView, glyphs: Glyphs, leave: Leave = Leave.QUIT) -> None:
        super().__init__(view, glyphs)
        if leave is Leave.DETACH:
            self._bindings.bind("q", "app.detach", leave.value)
            for number in "0123456789":
                self._bindings.bind(number, f"app.window('{number}')", show=False)
        else:
            self._bindings.bind("q", "app.quit", leave.value)
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
        """Draw the head and the notice line. The list draws itself."""
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
        """Call the method `how` of the list's model (such as `sort_by` or `fold`), and show the
        message that it returns."""
        message: str | None = getattr(self.model, how)(*to)
        self.list.draw()
        self.tell(message or "", "dim")

    async def action_open(self) -> None:
        """Fold or open the group at the cursor, or open the page of the run at the cursor."""
        item = self.model.item
        if isinstance(item, Group):
            self.action_arrange("fold")
        elif item is not None:
            await self.run_action(f"app.open({item.id!r})")

    # Filter

    def action_filter(self) -> None:
        """Show the input for the filter."""
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
        """Close the input. Apply the typed filter if `keep` is true, else the previous filter."""
        self.query_one("#filter").display = False
        self.focus_usual()
        typed = self.query_one(_Filter).value  # the model may not be up to date
        self.action_arrange("filter", typed if keep else self._wanted)
