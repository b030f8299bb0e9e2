"""The list of runs, drawn line by line.

Textual's own list widgets are slower. A refresh of 1,000 runs, of which 50 have changed, on a
screen of 200x50 costs 1.7 ms of processor time when drawn by Textual's Line API. A `DataTable`
takes 58 ms if the order stays and 262 ms if it changes, which may happen at each refresh; an
`OptionList` takes 59 ms and a `Tree` 63 ms, since they make all lines, not only the visible ones.
Also, a table has no rows that fold, and a tree has no columns. Scrolling, keys and the mouse are
Textual's.
"""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from sweeper.tui.model import SweepView
from sweeper.tui.render import heading, item_line, table
from sweeper.tui.screen_model import ScreenModel
from sweeper.tui.text import Glyphs, Line, as_strip


def list_lines(model: ScreenModel, width: int, rows: int, top: int, glyphs: Glyphs) -> list[Line]:
    """Return the titles of the columns, and `rows` lines of the list from `top` on."""
    shown = table(model.view, width, min(model.longest_name, width // 2), glyphs)
    lines = [heading(model.view, shown, model.sort)]
    for place in range(top, min(top + rows, len(model.items))):
        inside, cursor = model.heading_above(place), place == model.place
        lines.append(item_line(model.items[place], shown, inside=inside, cursor=cursor))
    if not model.items:
        lines.append([("no run fits the filter" if model.view.runs else "no runs", "dim")])
    return lines


class RunList(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows the lines of a `ScreenModel` below their column titles, with a cursor."""

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
        """Posted when the cursor has moved."""

    def __init__(self, model: ScreenModel, glyphs: Glyphs) -> None:
        super().__init__()
        self.model, self._glyphs = model, glyphs
        self._lines: list[Line] = []
        self.drawn = 0
        """How many lines were drawn so far (for tests and measurements)."""

    @property
    def _width(self) -> int:
        """The width without the scroll bar."""
        return self.scrollable_content_region.width

    @property
    def _rows(self) -> int:
        """How many lines of the list fit."""
        return max(1, self.size.height - 1)

    def see(self, view: SweepView) -> None:
        """Take the sweep as it is now. A cursor that was in sight stays in sight."""
        top = self.scroll_offset.y
        follow = top <= self.model.place < top + self._rows
        self.model.see(view)
        self.draw(follow=follow)

    def draw(self, *, follow: bool = True) -> None:
        """Draw the lines that differ from those on the screen. `follow`: scroll to the cursor."""
        self.virtual_size = Size(0, len(self.model.items) + 1)
        top, place = self.scroll_offset.y, self.model.place
        if follow:
            wanted = min(max(top, place - self._rows + 1), place)
            if wanted != top:
                self.scroll_to(y=wanted, animate=False, force=True)
                if self.scroll_offset.y != top:
                    return  # the scroll has drawn it
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
        line = self._lines[y] if y < len(self._lines) else []
        return as_strip(line, self._width)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.draw(follow=False)

    def on_resize(self) -> None:
        self.draw()

    async def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line, or open the line if it has the cursor."""
        place = self.scroll_offset.y + event.y - 1
        if event.y < 1 or place >= len(self.model.items):
            return
        if place == self.model.place:
            await self.run_action("screen.open")
        else:
            self.action_move(place - self.model.place)

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        self.model.go(self.model.place + lines)
        self.draw()
        self.post_message(self.Moved())

    def action_page(self, pages: float) -> None:
        """Move the cursor by the height of the list."""
        self.action_move(int(self._rows * pages))
