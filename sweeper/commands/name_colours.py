"""A colour for each run's name: the same whenever and beside whichever others it is shown."""

import os

from sweeper.errors import SweeperError
from sweeper.results.runs import RecordedRun
from sweeper.storage.sweeps import read_plan

__all__ = ["BASIC", "MANY", "Colours", "assign"]

BASIC = ("31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96")
"""The colours of every terminal that has any."""

MANY = tuple(
    f"38;5;{number}"
    for number in (
        *(33, 166, 35, 169, 99, 136, 37, 203, 64, 134, 68, 172, 71, 162, 31, 130, 105, 167),
        *(29, 175, 63, 142, 73, 197, 97, 178, 65, 205, 39, 131, 107, 170, 61, 208, 36, 139),
    )
)
"""The colours of a terminal with 256 that can be read on black and on white."""


def assign(runs: list[str], palette: tuple[str, ...]) -> dict[str, str]:
    """Choose a colour for each id by the id; if it is taken, the next that is not. With more ids
    than colours they are used again."""
    colours: dict[str, str] = {}
    taken: set[int] = set()
    for run in runs:
        if len(taken) == len(palette):
            taken = set()
        at = int(run[:8], 16) % len(palette)
        while at in taken:
            at = (at + 1) % len(palette)
        taken.add(at)
        colours[run] = palette[at]
    return colours


class Colours:
    """Colours for the runs of any sweeps."""

    def __init__(self) -> None:
        many = "256" in os.environ.get("TERM", "") or bool(os.environ.get("COLORTERM"))
        self._palette = MANY if many else BASIC
        self._known: dict[tuple[str, str], dict[str, str]] = {}

    def paint(self, text: str, run: RecordedRun) -> str:
        """The text in the run's colour."""
        place = (run.root, run.sweep)
        if run.id not in self._known.setdefault(place, {}):
            # By all runs of the sweep, not by those that are shown just now.
            found = assign(_ids(run), self._palette)
            self._known[place] = {**found, **self._known[place]}
        return f"\x1b[{self._known[place][run.id]}m{text}\x1b[0m"


def _ids(run: RecordedRun) -> list[str]:
    try:
        ids = [planned.id for planned in read_plan(run.store, run.sweep).runs]
    except SweeperError:  # a folder that is of no sweep
        ids = []
    return ids if run.id in ids else [*ids, run.id]
