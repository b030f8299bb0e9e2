"""Follows the metrics of many runs live. Only new lines are read, and one stamp is checked per
file."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sweeper.errors import StoreError
from sweeper.metrics.attempt_rows import GrowingMetrics
from sweeper.metrics.rows import Row
from sweeper.metrics.sources import Files
from sweeper.results.runs import RecordedRun


class News(NamedTuple):
    """New rows of a run. `rows` are not merged: a step may have several rows. If the file was
    replaced or a new attempt began, `again` is True and `rows` has all rows of the file."""

    run: RecordedRun
    rows: list[Row]
    again: bool


class _Place:
    """A run, and the metrics of its newest attempt."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.where = run.root, run.files.prefix
        self.is_folder = run.files.prefix == ""
        """Whether the run belongs to no sweep, and so has no attempts."""
        self.attempt = max(len(run.folders()), 1)
        self.metrics = GrowingMetrics(run.store, self._folder())

    def _folder(self) -> str:
        if self.is_folder:
            return self.run.folder
        return self.run.sweep_folder.recorded(self.run.id, self.attempt)

    def follow_anew(self) -> None:
        """Follow the same attempt again from the beginning of its file."""
        self.metrics.open(self._folder())

    def follow(self, folders: set[str]) -> None:
        """Follow the newest attempt of the run. `folders` has the names of attempts' folders."""
        while not self.is_folder and f"{self.run.id}.{self.attempt + 1}" in folders:
            self.attempt += 1
            self.metrics.open(self._folder())


class Follower:
    """A follower of the newest attempt of each run."""

    def __init__(self, runs: Sequence[RecordedRun]) -> None:
        self._places = [_Place(run) for run in runs]
        for place, files in self._each():
            try:
                place.metrics.skip(files.source)
            except (StoreError, OSError):
                place.follow_anew()

    def poll(self) -> list[News]:
        """Return the rows recorded since the last call. The first call returns the rows recorded
        since `__init__`. Unreadable files are tried again at the next call. If files were
        unreadable and there are no new rows, raise the first `StoreError` or `OSError`."""
        news: list[News] = []
        trouble: StoreError | OSError | None = None
        for place, files in self._each():
            try:
                added = place.metrics.read(files.source)
                parsed = added and place.metrics.file.parse(added.data, added.start, files.source)
            except (StoreError, OSError) as error:
                trouble = trouble or error
                continue
            if added and added.data and parsed:
                news.append(News(place.run, parsed.rows, added.again))
        if trouble is not None and not news:
            raise trouble
        return news

    def _each(self) -> Iterator[tuple[_Place, Files]]:
        """Yield each run with the files of its sweep. Each sweep is listed only once."""
        listings: dict[tuple[str, str], tuple[Files, set[str]]] = {}
        for place in self._places:
            if place.where not in listings:
                files = Files(place.run.store, place.where[1])
                listings[place.where] = files, set() if place.is_folder else _folders(files)
            files, folders = listings[place.where]
            place.follow(folders)
            yield place, files


def _folders(files: Files) -> set[str]:
    """Return the names of the folders directly below the folder of `files`."""
    if files.local is not None:
        try:
            return set(os.listdir(files.local))
        except OSError:
            return set()
    start = len(files.prefix) + 1
    return {path[start:].partition("/")[0] for path in files.entries()}
