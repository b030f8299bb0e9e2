"""The list of runs as the user has arranged it: order, groups, filter, folds, cursor. Pure: no
terminal and no store."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.common.sanitize import sanitize
from sweeper.tui.list_model import SORTS, Group, Item, arranged, groupings
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.render import own_name
from sweeper.tui.text import Span

_OVER = ("succeeded", "cancelled")
_AGAIN = ("failed", "lost", "preempted", "cancelled")


class Action(NamedTuple):
    """An action on runs (`cancel` or `retry`), and the question that the user must confirm
    first."""

    kind: str
    runs: tuple[str, ...]
    question: str


def proposed(kind: str, runs: Sequence[RunView], of: str) -> Action | str:
    """Return the action `kind` on the runs that can be cancelled or retried. If there are none,
    return a message. The question and the message use `of` as the name of the given runs."""
    cancel = kind == "cancel"
    verb = "cancel" if cancel else "start again"
    chosen = [run.id for run in runs if (run.state not in _OVER if cancel else run.state in _AGAIN)]
    if not chosen:
        states = ", ".join(sorted({run.shown_state for run in runs}))
        return f"cannot {verb} {of}: the state is {states}"
    target = of if len(runs) == 1 else f"{len(chosen)} of {of}"
    return Action(kind, tuple(chosen), f"{verb} {target}?")


class ScreenModel:
    """The list of a sweep's runs. `items` are the lines, and `place` is the index of the line with
    the cursor. `problem` is the reason why the filter could not be applied. `grouping` is the
    property by which runs are grouped, such as `cell`, or `none`."""

    def __init__(self, view: SweepView) -> None:
        self.view = view
        self.sort, self.backwards = "plan", False
        self._by: str | None = None
        self._folded: set[str] = set()
        self.wanted = ""
        self._cursor = ""
        self.place = 0
        self.items: list[Item] = []
        self.problem = ""
        self._arrange()

    def see(self, view: SweepView) -> None:
        """Arrange the list again, for the current state of the sweep."""
        self.view = view
        self._arrange()

    def _arrange(self) -> None:
        choices = groupings(self.view)
        self.grouping = self._by if self._by in choices else choices[0]
        self.items, self.problem = arranged(
            self.view,
            sort=self.sort,
            backwards=self.backwards,
            by=self.grouping,
            folded=self._folded,
            wanted=self.wanted,
        )
        keys = [_key(item) for item in self.items]
        self.go(keys.index(self._cursor) if self._cursor in keys else self.place)

    # Cursor

    def go(self, place: int) -> None:
        """Move the cursor to the line with this index, or to the nearest existing line."""
        self.place = max(0, min(place, len(self.items) - 1))
        if self.items:
            self._cursor = _key(self.items[self.place])

    @property
    def item(self) -> Item | None:
        """The line with the cursor."""
        return self.items[self.place] if self.items else None

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        """The runs in the line with the cursor, and the name of the run or the group for messages.
        Both are empty if the list is empty."""
        item = self.item
        if isinstance(item, Group):
            return item.runs, sanitize(item.title)
        return ((), "") if item is None else ((item,), sanitize(item.name))

    def group_of(self, place: int) -> Group | None:
        """Return the group that a line belongs to, or None. The line may be the heading itself."""
        above = (item for item in reversed(self.items[: place + 1]) if isinstance(item, Group))
        return next(above, None)

    def neighbour(self, run: str, step: int) -> RunView | None:
        """Move the cursor to the run that is `step` runs below `run`, and return that run. The
        first run follows the last. Return None if `run` is not in the list."""
        runs = [item for item in self.items if isinstance(item, RunView)]
        ids = [listed.id for listed in runs]
        if run not in ids:
            return None
        neighbour = runs[(ids.index(run) + step) % len(runs)]
        self.go(self.items.index(neighbour))
        return neighbour

    # Order

    def filter(self, wanted: str) -> None:
        """Show only the runs that match the filter."""
        self.wanted = wanted
        self._arrange()

    def sort_by(self, sort: str | None = None) -> str:
        """Sort by `sort`. If `sort` is None, use the next sort order. Return a message about the
        new order."""
        self.sort, self.backwards = sort or _next(SORTS, self.sort), False
        self._arrange()
        return f"sorted by {self.sort}"

    def reverse(self) -> str:
        """Reverse the order. Return a message about the new order."""
        self.backwards = not self.backwards
        self._arrange()
        return f"sorted by {self.sort}{', backwards' * self.backwards}"

    def group_by(self, by: str | None = None) -> str:
        """Group by `by`. If `by` is None, use the next grouping. Return a message about the new
        grouping."""
        self._by = by or _next(groupings(self.view), self.grouping)
        self._arrange()
        return f"grouped by {self._by}" if self._by != "none" else "not grouped"

    def fold(self, folded: bool | None = None) -> None:
        """If the cursor is on a heading, fold the group (True), open the group (False), or toggle
        the group (None). If the cursor is on a run and `folded` is True, move the cursor to the
        heading above."""
        item = self.item
        if isinstance(item, Group):
            fold = not item.folded if folded is None else folded
            (self._folded.add if fold else self._folded.discard)(item.key)
        elif folded and (group := self.group_of(self.place)) is not None:
            self._cursor = group.key
        self._arrange()

    def fold_all(self) -> None:
        """Fold all groups. If all groups are folded, open them."""
        groups = {item.key for item in self.items if isinstance(item, Group)}
        self._folded = set() if groups <= self._folded else self._folded | groups
        if self._folded and (group := self.group_of(self.place)) is not None:
            self._cursor = group.key
        self._arrange()

    # Texts

    def heading_above(self, place: int) -> str:
        """Return the part of a run's name that the list shows only in the heading above the run:
        the cell's title if runs are grouped by cell. For another grouping, return a blank, which
        indents the run's line. Without a grouping, return ""."""
        if self.grouping == "none":
            return ""
        group = self.group_of(place)
        return group.title if group is not None and self.grouping == "cell" else " "

    @property
    def longest_name(self) -> int:
        """The width of the longest name in the list, including the indent."""
        inside, longest = "", 0
        for item in self.items:
            if isinstance(item, Group):
                inside = item.title if self.grouping == "cell" else ""
                longest = max(longest, len(item.title))
            else:
                longest = max(longest, len(own_name(item, inside)))
        return longest + (3 if self.grouping == "none" else 5)

    def about(self) -> Span:
        """Return a text about the line with the cursor: its alarms, or else its name and state. The
        text is empty if the list is empty."""
        item = self.item
        if item is None:
            return "", ""
        if isinstance(item, Group):
            rules = Counter(alarm.rule for run in item.runs for alarm in run.alarms)
            text = ", ".join(f"{number} {rule}" for rule, number in rules.items())
            title = sanitize(item.title)
            return (sanitize(f"{title}  alarms: {text}"), "bad") if rules else (title, "dim")
        if item.alarms:
            text = "; ".join(f"{alarm.rule}: {alarm.text}" for alarm in item.alarms)
            return sanitize(text), "bad"
        remark = f": {sanitize(item.remark)}" if item.remark else ""
        return f"{sanitize(item.name)}  {item.shown_state}{remark}", "dim"


def _key(item: Item) -> str:
    return item.key if isinstance(item, Group) else item.id


def _next(choices: Sequence[str], current: str) -> str:
    return choices[(choices.index(current) + 1) % len(choices)]
