"""Metrics files: their names, their folders, and how their bytes become rows. Only this module
knows the names. Uses only the standard library, since the worker imports it."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sweeper.common.json_values import decode, table_of
from sweeper.errors import NotFound
from sweeper.metrics.rows import Parsed, Row, as_step, describe_malformed, parse, shorten
from sweeper.metrics.sources import Files, Source, Stamp
from sweeper.store.base import Store

METRICS = "metrics.jsonl"
NAMES = (METRICS, "metrics.csv", "progress.csv")
"""Names of metrics files. If a folder holds several, the first of these is read."""
EVALUATION = "metadata.json"
"""The file with the facts of an evaluation (`evaluation.py`). The evaluation's scores are read
as one row of metrics. A file of this name does not show that a folder holds metrics, since other
programs use the name too."""
PLACES = frozenset({*NAMES, *(f"{name}.parts" for name in NAMES)})
"""Names of files and folders. A folder that contains one of them has metrics."""

_STEPS = (
    *("step", "global_step", "_step", "training_iteration", "iteration", "iterations", "itr"),
    *("n_itr", "nupdates", "timesteps_total", "total_timesteps", "timesteps", "epoch"),
)
"""Names of CSV columns with the step, with or without a prefix (`time/iterations`). Case is
ignored. If a file has several such columns, the first in this list is the step."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BOOLEANS = {"True": True, "true": True, "False": False, "false": False}
_HEADER_BYTES = 65_536


class MetricsFile:
    """A parser for the lines of one metrics file. It remembers the header of a CSV file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_csv = path.endswith(".csv")
        self.is_evaluation = path.rpartition("/")[2] == EVALUATION
        self.by_line = not (self.is_csv or self.is_evaluation)
        """Whether each line is a JSON object."""
        self._columns: list[str] = []
        self._step: str | None = None

    def parse(
        self, data: bytes, start: int = 0, find: Callable[[str], Source | None] = lambda _: None
    ) -> Parsed:
        """Return the rows in `data`, which starts at byte `start` of the file. If a CSV file's
        header is not known yet, read it from the file that `find` returns. Raises `StoreError`."""
        if self.by_line:
            return parse(data)
        if self.is_evaluation:
            return _scores(data)
        if not start:
            self._columns = []
        elif not self._columns and (source := find(self.path)) is not None:
            with suppress(NotFound):  # the file is being replaced
                head = source.read(0, _HEADER_BYTES)[1]
                self._rows(head[: head.find(b"\n") + 1], 0)
        return self._rows(data, start)

    def describe_malformed(self, data: bytes, start: int = 0) -> str:
        """Describe why lines in `data`, which was parsed before, are not rows."""
        if not self.is_csv:
            return describe_malformed(data if self.by_line else data.replace(b"\n", b" "))
        again = MetricsFile(self.path)
        again._columns = self._columns if start else []
        for line in data.splitlines(keepends=True):
            if again._rows(line, start).malformed:
                return f"the first: {shorten(line.decode('utf-8', 'replace').strip())}"
        return "the lines do not match the header"

    def _rows(self, data: bytes, start: int) -> Parsed:
        lines = data.split(b"\n")
        # The last number may be cut short, so only complete lines count.
        torn = bool(lines.pop().strip())
        rows: list[Row] = []
        malformed = 0
        for line in lines:
            cells = _cells(line if start or rows else line.removeprefix(b"\xef\xbb\xbf"))
            if cells == []:
                continue
            if cells is None or (not self._is_header(cells) and len(cells) > len(self._columns)):
                malformed += 1
            elif self._is_header(cells):
                self._columns = cells
                self._step = _step_column(cells)
            else:
                rows.append(self._row(cells))
        return Parsed(rows, malformed, int(torn))

    def _is_header(self, cells: list[str]) -> bool:
        """Return whether a line of a CSV file is a header. A file may have several headers: some
        loggers write a longer one when they log a new key."""
        if any(map(_NUMBER.fullmatch, cells)):
            return False
        return len({*cells} & {*self._columns}) * 2 >= len(self._columns)

    def _row(self, cells: Sequence[str]) -> Row:
        """Return a CSV line as a row. Empty values are left out, since an empty value means that
        nothing was recorded."""
        row: Row = {
            key: _value(cell)
            for key, cell in zip(self._columns, cells, strict=False)
            if key and cell
        }
        if self._step is not None and (step := as_step(row.get(self._step))) is not None:
            row["step"] = step
        return row


def _scores(data: bytes) -> Parsed:
    """Return the scores of an evaluation as one row with the keys `eval/<suite>/score`, which
    training uses too."""
    try:
        scores = table_of(table_of(decode(data)).get("scores"))
    except ValueError:
        return Parsed([], 1, 0)
    row: Row = {f"eval/{suite}/score": score for suite, score in scores.items()}
    return Parsed([row] if row else [], 0, 0)


def _cells(line: bytes) -> list[str] | None:
    """Return the cells of a line; [] for a blank line, None for a line that is not CSV."""
    import csv  # imported late: most runs write JSON

    try:
        text = line.decode().rstrip("\r")
        cells: list[str] = next(csv.reader([text], strict=True), list[str]())
    except (ValueError, csv.Error):
        return None
    return [cell.strip() for cell in cells] if text.strip() else []


def _value(cell: str) -> object:
    if _NUMBER.fullmatch(cell):
        try:
            return int(cell)
        except ValueError:
            return float(cell)
    return _BOOLEANS.get(cell, cell)


def _step_column(columns: Sequence[str]) -> str | None:
    names = {name.lower(): name for name in reversed(columns)}
    names = {name.rpartition("/")[2].lower(): name for name in reversed(columns)} | names
    return next((names[step] for step in _STEPS if step in names), None)


def metrics_stamp(files: Files, folder: str) -> tuple[str, Stamp | None]:
    """Return the path and the stamp of the metrics file in `folder`. If there is no metrics file,
    return the path of `metrics.jsonl`, and None."""
    for path in paths_in(folder):
        stamp = files.stamp(path)
        if stamp is not None:
            return path, stamp
    return next(paths_in(folder)), None


def paths_in(folder: str) -> Iterator[str]:
    """Yield the possible paths of a metrics file in `folder`, the preferred path first."""
    for name in NAMES:
        yield f"{folder}/{name}" if folder else name


def metrics_path(store: Store, folder: str) -> str:
    """Return the path of the metrics file in `folder`; `metrics.jsonl` if there is none."""
    return metrics_stamp(Files(store, folder), folder)[0]


def local_metrics(folder: str) -> str:
    """Return the path of the metrics file in a local folder; `metrics.jsonl` if there is none."""
    paths = [*paths_in(folder)]
    return next(filter(os.path.exists, paths), paths[0])
