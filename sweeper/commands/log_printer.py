"""Prints log lines: as text, with the run's name before each, or as JSON."""

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator

from sweeper.commands.name_colours import Colours
from sweeper.common.sanitize import raw, sanitize, sanitize_json
from sweeper.results.logs import Line
from sweeper.results.runs import RecordedRun
from sweeper.terminal import in_colour

_BATCH = 500

RunKey = tuple[str, str, str]
"""Identifies a run among several sweeps: root, sweep, id."""


def run_key(run: RecordedRun) -> RunKey:
    """Return the key of a run."""
    return run.root, run.sweep, run.id


class LinePrinter:
    """Prints the lines that match `pattern`. With more than one run, each line begins with its
    run's name, in its colour."""

    def __init__(self, pattern: re.Pattern[str] | None, as_json: bool) -> None:
        self._pattern = pattern
        self._json = as_json
        self._colours = Colours() if in_colour() and not as_json else None
        self._names: dict[RunKey, str] = {}
        self._width = 0
        self.count = 0

    def add_runs(self, runs: Iterable[RecordedRun]) -> None:
        """Add runs whose lines are shown."""
        for run in runs:
            self._names.setdefault(run_key(run), sanitize(run.name))
        if len({sweep for _, sweep, _ in self._names}) > 1:
            for root, sweep, identity in self._names:
                name = self._names[root, sweep, identity]
                if not name.startswith(f"{sanitize(sweep)}/"):
                    self._names[root, sweep, identity] = f"{sanitize(sweep)}/{name}"
        self._width = max(map(len, self._names.values()), default=0)

    def matching(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Return the lines that match."""
        pattern = self._pattern
        return (line for line in lines if pattern is None or pattern.search(text_of(line.data)))

    def print_lines(self, lines: Iterable[Line]) -> None:
        """Print lines in batches."""
        remaining = iter(lines)
        while texts := [self._format(line) for line in itertools.islice(remaining, _BATCH)]:
            self.count += len(texts)
            raw(sys.stdout).write("".join(texts))  # may have our own colours

    def _format(self, line: Line) -> str:
        run = line.run
        if self._json:
            record = {"schema": 1, "sweep": run.sweep, "run": run.id, "name": run.name}
            text = line.data.decode("utf-8", "replace")
            return (
                sanitize_json(json.dumps(record | {"attempt": line.attempt, "line": text})) + "\n"
            )
        if len(self._names) < 2:
            return text_of(line.data) + "\n"
        name = f"{self._names[run_key(run)]:<{self._width}} |"
        if self._colours is not None:
            name = self._colours.paint(name, run)
        return f"{name} {text_of(line.data)}".rstrip() + "\n"


def text_of(data: bytes) -> str:
    """Return a line as a terminal finally shows it: text after a carriage return overwrites the
    text before it."""
    data = data.rstrip(b"\r")
    return sanitize(data[data.rfind(b"\r") + 1 :].decode("utf-8", "replace"))
