"""What the user looks at and does: keys in, the whole screen as lines of styled text out, and deeds
for others to do. No terminal and no store: a test presses keys and reads the screen."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.sanitize import harmless
from sweeper.tui.charts import UNICODE, Glyphs, fit, wrap
from sweeper.tui.helping import HELP
from sweeper.tui.list_model import SORTS, Group, Item, arranged, groupings
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.render import Line, head_lines, heading, item_line, own_name, table, trimmed
from sweeper.tui.run_page import PANELS, PageData, PageState, is_wide, page_lines

__all__ = ["Action", "ScreenModel"]

_OVER = ("succeeded", "cancelled")
_KEYS = (
    *("/ filter", "s sort", "g group", "enter open", "c cancel", "r retry"),
    *("t tmux", "? help"),
)
_AGAIN = ("failed", "lost", "preempted", "cancelled")


class Action(NamedTuple):
    """Something that the screen cannot do by itself: `quit`, `interrupt`, `open` a run's page,
    `close` it, `cancel` or `retry` runs, `jump` to a run's pane, `look` again at once."""

    kind: str
    runs: tuple[str, ...] = ()


class ScreenModel:
    """A screen of `width` by `height`. `guest`: the launcher that runs in this terminal shows it,
    and goes on without it."""

    def __init__(
        self,
        view: SweepView,
        width: int = 80,
        height: int = 24,
        *,
        glyphs: Glyphs = UNICODE,
        guest: bool = False,
    ) -> None:
        self.view, self.width, self.height = view, width, height
        self._glyphs, self._guest = glyphs, guest
        self._sort, self._backwards = "plan", False
        self._by: str | None = None
        self._folded: set[str] = set()
        self._wanted = ""
        self._typed: str | None = None
        self._question: tuple[str, Action] | None = None
        self._message: tuple[str, str] = ("", "")
        self._help: int | None = None
        self._cursor, self._place, self._top = "", 0, 0
        self._items: list[Item] = []
        self._problem = ""
        self.page: PageState | None = None
        self.data: PageData | None = None
        self._arrange()

    # What is there

    def see(self, view: SweepView) -> None:
        """The sweep as it is now."""
        self.view = view
        self._arrange()

    def resize(self, width: int, height: int) -> None:
        """The screen has another size."""
        self.width, self.height = width, height
        self._arrange()

    def tell(self, text: str, style: str = "warn") -> None:
        """Show a sentence until the next key."""
        self._message = (text, style)

    @property
    def _grouping(self) -> str:
        known = groupings(self.view)
        return self._by if self._by in known else known[0]

    def _arrange(self) -> None:
        wanted = self._wanted if self._typed is None else self._typed
        self._items, self._problem = arranged(
            self.view,
            sort=self._sort,
            backwards=self._backwards,
            by=self._grouping,
            folded=self._folded,
            wanted=wanted,
        )
        keys = [_key(item) for item in self._items]
        if self._cursor in keys:
            self._place = keys.index(self._cursor)
        self._move(0)

    @property
    def _room(self) -> int:
        """Lines of the list."""
        return max(1, self.height - 5)

    def _move(self, lines: int) -> None:
        self._place = max(0, min(self._place + lines, len(self._items) - 1))
        if self._items:
            self._cursor = _key(self._items[self._place])
        self._top = max(0, min(self._top, len(self._items) - self._room))
        self._top = min(max(self._top, self._place - self._room + 1), self._place)

    @property
    def _item(self) -> Item | None:
        return self._items[self._place] if self._items else None

    # What is done

    def press(self, key: str, character: str | None = None) -> Action | None:
        """A key, by Textual's names; `character` is what it types."""
        self._message = ("", "")
        if key in ("ctrl+c", "ctrl+l"):
            return Action("interrupt" if key == "ctrl+c" else "look")
        if self._question is not None:
            return self._answer(key)
        if self._typed is not None:
            self._type(key, character)
            return None
        if self._help is not None:
            self._press_help(key)
            return None
        if key in ("question_mark", "h", "f1"):
            self._help = 0
            return None
        return self._press_page(key) if self.page is not None else self._press_list(key)

    def click(self, line: int) -> Action | None:
        """A line was clicked: the cursor goes there; once more opens it."""
        place = self._top + line - 3
        if self.page is not None or not 3 <= line < 3 + self._room or place >= len(self._items):
            return None
        if place == self._place:
            return self.press("enter")
        self._move(place - self._place)
        return None

    @property
    def _help_lines(self) -> list[str]:
        return [part for line in HELP.splitlines() for part in wrap(line, self.width)]

    def _press_help(self, key: str) -> None:
        """Move it where it is longer than the screen; any other key ends it."""
        assert self._help is not None  # noqa: S101 - the caller has looked
        room = self.height - 2
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": room, "pageup": -room}
        last = max(0, len(self._help_lines) - room)
        moved = key in steps and last > 0
        self._help = max(0, min(self._help + steps[key], last)) if moved else None

    def _answer(self, key: str) -> Action | None:
        assert self._question is not None  # noqa: S101 - the caller has looked
        said, deed = self._question
        self._question = None
        if key in ("y", "Y", "upper_y"):
            return deed
        self.tell(f"not done: {said.rstrip('?')}", "dim")
        return None

    def _type(self, key: str, character: str | None) -> None:
        assert self._typed is not None  # noqa: S101 - the caller has looked
        if key == "enter":
            self._wanted, self._typed = self._typed, None
        elif key == "escape":
            self._typed = None
        elif key in ("backspace", "ctrl+h"):
            self._typed = self._typed[:-1]
        elif key == "ctrl+u":
            self._typed = ""
        elif character is not None and character.isprintable():
            self._typed += character
        self._arrange()

    def _press_list(self, key: str) -> Action | None:
        moves = {
            **{"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": self._room},
            **{"pageup": -self._room, "home": -(10**9), "end": 10**9},
            **{"ctrl+d": self._room // 2, "ctrl+u": -(self._room // 2)},
        }
        if key in moves:
            self._move(moves[key])
        elif key == "slash":
            self._typed = ""
        elif key == "escape":
            self._wanted = ""
        elif key in ("q", "ctrl+q"):
            return Action("quit")
        elif key in ("c", "r", "t", "enter", "space", "left", "right"):
            return self._act(key)
        elif key in ("s", "S", "upper_s", "g", "z"):
            self._rearrange(key)
        self._arrange()
        return None

    def _rearrange(self, key: str) -> None:
        if key == "s":
            self._sort, self._backwards = _next(SORTS, self._sort), False
            self.tell(f"sorted by {self._sort}", "dim")
        elif key == "g":
            self._by = _next(groupings(self.view), self._grouping)
            self.tell(f"grouped by {self._by}" if self._by != "none" else "not grouped", "dim")
        elif key == "z":
            groups = {item.key for item in self._items if isinstance(item, Group)}
            self._folded = set() if groups <= self._folded else self._folded | groups
            if isinstance(self._item, RunView) and self._folded:
                self._cursor = self._heading_of(self._place)
        else:
            self._backwards = not self._backwards
            self.tell(f"sorted by {self._sort}{', backwards' * self._backwards}", "dim")

    def _act(self, key: str) -> Action | None:
        item = self._item
        if item is None:
            return None
        if isinstance(item, Group) and key in ("enter", "space", "left", "right"):
            fold = key == "left" or (key != "right" and item.key not in self._folded)
            (self._folded.add if fold else self._folded.discard)(item.key)
            self._arrange()
            return None
        if key in ("space", "left", "right"):
            if key == "left" and self._grouping != "none":
                self._cursor = self._heading_of(self._place)
                self._arrange()
            return None
        runs = item.runs if isinstance(item, Group) else (item,)
        if key in ("c", "r"):
            self._ask(key, runs, harmless(item.title if isinstance(item, Group) else item.name))
            return None
        if isinstance(item, Group):
            self.tell("a heading has no pane: choose a run")
            return None
        return self._open(item) if key == "enter" else Action("jump", (item.id,))

    def _heading_of(self, place: int) -> str:
        """The key of the group that a line stands under."""
        above = (item for item in reversed(self._items[: place + 1]) if isinstance(item, Group))
        return next((item.key for item in above), self._cursor)

    def _open(self, run: RunView) -> Action:
        panel = self.page.panel if self.page is not None else 0
        self.page, self.data = PageState(run.id, panel), PageData(run.id)
        return Action("open", (run.id,))

    def _ask(self, key: str, runs: Sequence[RunView], of: str) -> None:
        """Ask before something that cannot be taken back."""
        if key == "c":
            chosen = [run.id for run in runs if run.state not in _OVER]
            verb, kind = "cancel", "cancel"
        else:
            chosen = [run.id for run in runs if run.state in _AGAIN]
            verb, kind = "start again", "retry"
        if not chosen:
            states = ", ".join(sorted({run.shown_state for run in runs}))
            self.tell(f"nothing to {verb}: {of} is {states}")
            return
        what = of if len(runs) == 1 else f"{len(chosen)} of {of}"
        self._question = (f"{verb} {what}?", Action(kind, tuple(chosen)))

    def _press_page(self, key: str) -> Action | None:
        page = self.page
        assert page is not None  # noqa: S101 - the caller has looked
        run = next((run for run in self.view.runs if run.id == page.run), None)
        if key in ("escape", "q", "backspace", "ctrl+q"):
            self.page = self.data = None
            return Action("close")
        if key in ("1", "2", "3", "4"):
            self.page = page._replace(panel=int(key) - 1)
        elif key in ("tab", "shift+tab"):
            step = 1 if key == "tab" else -1
            self.page = page._replace(panel=(page.panel + step) % len(PANELS))
        elif key in ("left", "right"):
            self.page = page._replace(curve=max(0, page.curve + (1 if key == "right" else -1)))
        elif key in ("n", "p"):
            return self._neighbour(1 if key == "n" else -1)
        elif key in ("up", "k", "down", "j", "pageup", "pagedown", "home", "end"):
            self._scroll(page, key)
        elif key == "t" and run is not None:
            return Action("jump", (run.id,))
        elif key in ("c", "r") and run is not None:
            self._ask(key, [run], harmless(run.name))
        return None

    def _scroll(self, page: PageState, key: str) -> None:
        """Move a panel; of a log up is away from its end. On the curves it chooses one."""
        if page.panel == 0:
            step = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key, 0)
            self.page = page._replace(curve=max(0, page.curve + step))
            return
        lines = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}
        far = {"home": -(10**6), "end": 10**6}
        step = (lines | far)[key] * (-1 if page.panel == 2 else 1)
        moved = [*page.moved]
        moved[page.panel] = min(10**5, max(0, moved[page.panel] + step))
        self.page = page._replace(moved=tuple(moved))

    def _neighbour(self, step: int) -> Action | None:
        """The page of the next run in the list, or of the one before."""
        page = self.page
        runs = [item for item in self._items if isinstance(item, RunView)]
        ids = [run.id for run in runs]
        if page is None or page.run not in ids:
            return None
        run = runs[(ids.index(page.run) + step) % len(runs)]
        self._cursor = run.id
        self._arrange()
        return self._open(run)

    # How it looks

    def broken(self, said: str) -> list[Line]:
        """The screen that takes the place of one that could not be drawn: it says why."""
        self._question = self._typed = None
        self.tell(said, "bad")
        blank: list[Line] = [[] for _ in range(max(0, self.height - 2))]
        lines = [*blank, self._prompt(), self._keys()]
        return [trimmed(line, self.width, self._glyphs) for line in lines][: max(1, self.height)]

    def screen(self) -> list[Line]:
        """Every line of the screen."""
        if self.height < 6 or self.width < 30:
            told = fit("the window is too small", self.width, cut=self._glyphs.cut)
            return [[(told, "warn")]]
        if self._help is not None:
            body = [[(line, "")] for line in self._help_lines[self._help :]]
        elif self.page is not None:
            data = self.data or PageData(self.page.run)
            room = self.height - 2
            body = page_lines(self.view, self.page, data, self.width, room, self._glyphs)
        else:
            body = self._list()
        body = (body + [[] for _ in range(self.height)])[: self.height - 2]
        lines = [*body, self._prompt(), self._keys()]
        return [trimmed(line, self.width, self._glyphs) for line in lines]

    def _list(self) -> list[Line]:
        view, glyphs, width = self.view, self._glyphs, self.width
        by_cell = self._grouping == "cell"
        grouped = self._grouping != "none"
        names: list[str] = []
        inside = ""
        for item in self._items:
            inside = item.title if isinstance(item, Group) else inside
            group = isinstance(item, Group)
            names.append(item.title if group else own_name(item, inside if by_cell else ""))
        need = max(map(len, names), default=0) + (5 if grouped else 3)
        shown = table(view, width, min(need, width // 2))
        lines = [*head_lines(view, glyphs), heading(view, shown, self._sort, glyphs)]
        above = (item for item in reversed(self._items[: self._top + 1]) if isinstance(item, Group))
        inside = next((item.title for item in above), "")
        for place in range(self._top, min(self._top + self._room, len(self._items))):
            item = self._items[place]
            inside = item.title if isinstance(item, Group) else inside
            under = inside if by_cell else " " if grouped else ""
            cursor = place == self._place
            lines.append(item_line(item, shown, inside=under, cursor=cursor, glyphs=glyphs))
        if not self._items:
            lines.append([("no run fits the filter" if view.runs else "no runs", "dim")])
        return lines

    def _prompt(self) -> Line:
        """The line above the keys: a question, what is typed, a message, or about the run."""
        cut = self._glyphs.cut
        if self._question is not None:
            return [(fit(f"{self._question[0]}  y: yes, any other key: no", self.width, cut=cut),
                     "warn bold")]  # fmt: skip
        if self._typed is not None:
            wrong = f"   ({self._problem})" if self._problem else ""
            return [(f"/{harmless(self._typed)}", "bold"), ("_", "cursor"), (wrong, "dim")]
        if self._message[0]:
            return [(fit(harmless(self._message[0]), self.width, cut=cut), self._message[1])]
        if self.page is None and self._problem:
            return [(fit(harmless(self._problem), self.width, cut=cut), "bad")]
        item = self._item
        if self.page is None and self._help is None and item is not None:
            told, style = _about(item)
            return [(fit(told, self.width, cut=cut), style)]
        return []

    def _keys(self) -> Line:
        if self._help is not None:
            long = len(self._help_lines) > self.height - 2
            told = "up down: more  any other key: back" if long else "any key: back"
        elif self.page is not None:
            wide = is_wide(self.width, self.height - 2)
            told = "esc back  1-4 panel  " + ("tab next  " if wide else "")
            told += "left/right curve  n/p run  c cancel  r retry  t tmux"
        else:
            leave = "q close the view" if self._guest else "q quit"
            told = "  ".join([*_KEYS, leave])
            for spared in ("g group", "s sort", "t tmux"):
                if len(told) > self.width:
                    told = told.replace(f"{spared}  ", "")
        shown = f"[{harmless(self._wanted)}] " if self._wanted and self.page is None else ""
        text = fit(told, max(0, self.width - len(shown)), cut=self._glyphs.cut)
        return [(shown, "warn"), (text, "head")]


def _key(item: Item) -> str:
    return item.key if isinstance(item, Group) else item.id


def _next(known: Sequence[str], now: str) -> str:
    return known[(known.index(now) + 1) % len(known)]


def _about(item: Item) -> tuple[str, str]:
    """What there is to say of a line that it has no room for, and in which style."""
    if isinstance(item, Group):
        rules = Counter(alarm.rule for run in item.runs for alarm in run.alarms)
        told = ", ".join(f"{number} {rule}" for rule, number in rules.items())
        title = harmless(item.title)
        return (f"{title}  alarms: {told}", "bad") if rules else (title, "dim")
    if item.alarms:
        return harmless("; ".join(f"{alarm.rule}: {alarm.text}" for alarm in item.alarms)), "bad"
    remark = f": {harmless(item.remark)}" if item.remark else ""
    return f"{harmless(item.name)}  {item.shown_state}{remark}", "dim"
