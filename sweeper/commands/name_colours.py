"""Gives each run's name a colour that stays the same, whichever other runs are shown."""

import os

from sweeper.errors import SweeperError
from sweeper.results.runs import RecordedRun

BASIC = ("31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96")
"""The colours of every colour terminal."""

MANY = tuple(
    f"38;5;{number}"
    for number in (
        *(33, 166, 35, 169, 99, 136, 37, 203, 64, 134, 68, 172, 71, 162, 31, 130, 105, 167),
        *(29, 175, 63, 142, 73, 197, 97, 178, 65, 205, 39, 131, 107, 170, 61, 208, 36, 139),
    )
)
"""Colours of a 256-colour terminal that are readable on black and on white."""


def assign(runs: list[str], palette: tuple[str, ...]) -> dict[str, str]:
    """Choose a colour for each id from the id; if it is taken, the next free one. With more ids
    than colours they are reused."""
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
    """The colours of the runs of any sweeps."""

    def __init__(self) -> None:
        many = "256" in os.environ.get("TERM", "") or bool(os.environ.get("COLORTERM"))
        self._palette = MANY if many else BASIC
        self._known: dict[tuple[str, str], dict[str, str]] = {}

    def paint(self, text: str, run: RecordedRun) -> str:
        """Return the text in the run's colour."""
        place = (run.root, run.sweep)
        if run.id not in self._known.setdefault(place, {}):
            # Assigned over all runs of the sweep, not only those shown now.
            colours = assign(_ids(run), self._palette)
            self._known[place] = {**colours, **self._known[place]}
        return f"\x1b[{self._known[place][run.id]}m{text}\x1b[0m"


def _ids(run: RecordedRun) -> list[str]:
    try:
        ids = [planned.id for planned in run.sweep_folder.read_plan().runs]
    except SweeperError:  # a folder that belongs to no sweep
        ids = []
    return ids if run.id in ids else [*ids, run.id]
