"""The list of a sweep's runs as the user has arranged it: order, groups, filter, folds, cursor.
Pure: no terminal and no store."""

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
    """An action on runs: `cancel` or `retry`. The user is asked `question` first."""

    kind: str
    runs: tuple[str, ...]
    question: str


def proposed(kind: str, runs: Sequence[RunView], of: str) -> Action | str:
    """Propose an action for the runs to which it applies. `of` is the name of all the runs in the
    question. Return a sentence if the action applies to none."""
    cancel = kind == "cancel"
    verb = "cancel" if cancel else "start again"
    chosen = [run.id for run in runs if (run.state not in _OVER if cancel else run.state in _AGAIN)]
    if not chosen:
        states = ", ".join(sorted({run.shown_state for run in runs}))
        return f"cannot {verb} {of}: the state is {states}"
    what = of if len(runs) == 1 else f"{len(chosen)} of {of}"
    return Action(kind, tuple(chosen), f"{verb} {what}?")


class ScreenModel:
    """The list of a sweep's runs. `items` are its lines, and `place` is the index of the line with
    the cursor. `problem` is why the filter could not be applied. `grouping` is the key by which
    runs are grouped, or `none`."""

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
        """Show the current state of the sweep."""
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
        """Move the cursor to a line, or to the nearest line."""
        self.place = max(0, min(place, len(self.items) - 1))
        if self.items:
            self._cursor = _key(self.items[self.place])

    @property
    def item(self) -> Item | None:
        """The line with the cursor."""
        return self.items[self.place] if self.items else None

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        """The run with the cursor, or all runs of its group, and their name in messages."""
        item = self.item
        if isinstance(item, Group):
            return item.runs, sanitize(item.title)
        return ((), "") if item is None else ((item,), sanitize(item.name))

    def group_of(self, place: int) -> Group | None:
        """Return the group of a line: the heading above it, or the line itself."""
        above = (item for item in reversed(self.items[: place + 1]) if isinstance(item, Group))
        return next(above, None)

    def neighbour(self, run: str, step: int) -> RunView | None:
        """Move the cursor from a run by `step` runs, wrapping around at the ends. Return the run
        there; None if the given run is not listed."""
        runs = [item for item in self.items if isinstance(item, RunView)]
        ids = [listed.id for listed in runs]
        if run not in ids:
            return None
        neighbour = runs[(ids.index(run) + step) % len(runs)]
        self.go(self.items.index(neighbour))
        return neighbour

    # Order

    def filter(self, wanted: str) -> None:
        """Show only the runs that match."""
        self.wanted = wanted
        self._arrange()

    def sort_by(self, sort: str | None = None) -> str:
        """Sort by `sort`, or by the next column. Return a message."""
        self.sort, self.backwards = sort or _next(SORTS, self.sort), False
        self._arrange()
        return f"sorted by {self.sort}"

    def reverse(self) -> str:
        """Reverse the order. Return a message."""
        self.backwards = not self.backwards
        self._arrange()
        return f"sorted by {self.sort}{', backwards' * self.backwards}"

    def group_by(self, by: str | None = None) -> str:
        """Group by `by`, or by the next axis. Return a message."""
        self._by = by or _next(groupings(self.view), self.grouping)
        self._arrange()
        return f"grouped by {self._by}" if self._by != "none" else "not grouped"

    def fold(self, folded: bool | None = None) -> None:
        """Fold or open the group with the cursor; from a run, move to the heading."""
        item = self.item
        if isinstance(item, Group):
            fold = not item.folded if folded is None else folded
            (self._folded.add if fold else self._folded.discard)(item.key)
        elif folded and (group := self.group_of(self.place)) is not None:
            self._cursor = group.key
        self._arrange()

    def fold_all(self) -> None:
        """Fold all groups, or open all if they are folded."""
        groups = {item.key for item in self.items if isinstance(item, Group)}
        self._folded = set() if groups <= self._folded else self._folded | groups
        if self._folded and (group := self.group_of(self.place)) is not None:
            self._cursor = group.key
        self._arrange()

    # Texts

    def heading_above(self, place: int) -> str:
        """Return the title of the cell's heading above a run, which the run's line does not repeat.
        Under any other heading, return a blank, which only indents the line."""
        if self.grouping == "none":
            return ""
        group = self.group_of(place)
        return group.title if group is not None and self.grouping == "cell" else " "

    @property
    def longest_name(self) -> int:
        """The width of the longest name, including its indent."""
        inside, longest = "", 0
        for item in self.items:
            if isinstance(item, Group):
                inside = item.title if self.grouping == "cell" else ""
                longest = max(longest, len(item.title))
            else:
                longest = max(longest, len(own_name(item, inside)))
        return longest + (3 if self.grouping == "none" else 5)

    def about(self) -> Span:
        """Return further information about the line with the cursor."""
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
