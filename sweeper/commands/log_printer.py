"""Printing of log lines, as text with the run's name before each line, or as JSON."""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator

from sweeper.common.sanitize import raw, sanitize, sanitize_json
from sweeper.errors import SweeperError
from sweeper.results.logs import Line
from sweeper.results.runs import RecordedRun
from sweeper.terminal import in_colour

BASIC = ("31", "32", "33", "34", "35", "36", "91", "92", "93", "94", "95", "96")
"""The colours that every terminal with colours has."""

MANY = tuple(
    f"38;5;{number}"
    for number in (
        *(33, 166, 35, 169, 99, 136, 37, 203, 64, 134, 68, 172, 71, 162, 31, 130, 105, 167),
        *(29, 175, 63, 142, 73, 197, 97, 178, 65, 205, 39, 131, 107, 170, 61, 208, 36, 139),
    )
)
"""Colours of a 256-colour terminal that are readable on black and on white."""


def assign(runs: list[str], palette: tuple[str, ...]) -> dict[str, str]:
    """Return {run's id: colour}. The run's id determines the colour. If another run has this
    colour, the run gets the next unused colour of `palette`. Colours repeat only if there are more
    runs than colours."""
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
    """The colours in which the names of runs are printed. The runs may belong to several sweeps."""

    def __init__(self) -> None:
        many = "256" in os.environ.get("TERM", "") or bool(os.environ.get("COLORTERM"))
        self._palette = MANY if many else BASIC
        self._assigned: dict[tuple[str, str], dict[str, str]] = {}

    def paint(self, text: str, run: RecordedRun) -> str:
        """Return the text in the run's colour."""
        place = (run.root, run.sweep)
        if run.id not in self._assigned.setdefault(place, {}):
            # Colours are assigned to all runs of the sweep, so that they do not depend on which are
            # shown.
            self._assigned[place] = {**assign(_ids(run), self._palette), **self._assigned[place]}
        return f"\x1b[{self._assigned[place][run.id]}m{text}\x1b[0m"


def _ids(run: RecordedRun) -> list[str]:
    try:
        ids = [planned.id for planned in run.sweep_folder.read_plan().runs]
    except SweeperError:  # a folder that belongs to no sweep
        ids = []
    return ids if run.id in ids else [*ids, run.id]


_BATCH = 500

RunKey = tuple[str, str, str]
"""Identifies a run among several sweeps: (root, sweep, id)."""


def run_key(run: RecordedRun) -> RunKey:
    """Return (root, sweep, id) of a run."""
    return run.root, run.sweep, run.id


class LinePrinter:
    """A printer of the log lines that match `pattern` (None: all lines), as text or as JSON. If
    lines of several runs are printed as text, each line begins with the run's name. The name is
    coloured if the terminal shows colours."""

    def __init__(self, pattern: re.Pattern[str] | None, as_json: bool) -> None:
        self._pattern = pattern
        self._json = as_json
        self._colours = Colours() if in_colour() and not as_json else None
        self._names: dict[RunKey, str] = {}
        self._width = 0
        self.count = 0

    def add_runs(self, runs: Iterable[RecordedRun]) -> None:
        """Add runs whose lines will be printed."""
        for run in runs:
            self._names.setdefault(run_key(run), sanitize(run.name))
        if len({sweep for _, sweep, _ in self._names}) > 1:
            for root, sweep, identity in self._names:
                name = self._names[root, sweep, identity]
                if not name.startswith(f"{sanitize(sweep)}/"):
                    self._names[root, sweep, identity] = f"{sanitize(sweep)}/{name}"
        self._width = max(map(len, self._names.values()), default=0)

    def matching(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Return the lines that match the pattern."""
        pattern = self._pattern
        return (line for line in lines if pattern is None or pattern.search(text_of(line.data)))

    def print_lines(self, lines: Iterable[Line]) -> None:
        """Print lines in batches."""
        remaining = iter(lines)
        while texts := [self._format(line) for line in itertools.islice(remaining, _BATCH)]:
            self.count += len(texts)
            raw(sys.stdout).write("".join(texts))  # `raw`, since a line may have our colours

    def _format(self, line: Line) -> str:
        run = line.run
        if self._json:
            record = {"schema": 1, "sweep": run.sweep, "run": run.id, "name": run.name}
            record |= {"attempt": line.attempt, "line": line.data.decode("utf-8", "replace")}
            return sanitize_json(json.dumps(record)) + "\n"
        if len(self._names) < 2:
            return text_of(line.data) + "\n"
        name = f"{self._names[run_key(run)]:<{self._width}} |"
        if self._colours is not None:
            name = self._colours.paint(name, run)
        return f"{name} {text_of(line.data)}".rstrip() + "\n"


def text_of(data: bytes) -> str:
    """Return the part of a line that a terminal leaves visible: the text after the last carriage
    return."""
    data = data.rstrip(b"\r")
    return sanitize(data[data.rfind(b"\r") + 1 :].decode("utf-8", "replace"))
