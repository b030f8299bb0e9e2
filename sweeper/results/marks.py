"""What is noted of sweeps and runs, as whoever shows it reads it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sweeper.errors import StoreError
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.mark import NO_MARKS, Mark, Marks, fold
from sweeper.sweep.marks import is_archived, read_marks


class Marked(NamedTuple):
    """The marks of a sweep, and those of its runs by their ids."""

    sweep: Marks = NO_MARKS
    runs: Mapping[str, Marks] = {}

    def of(self, run: str) -> Marks:
        """Those of a run."""
        return self.runs.get(run, NO_MARKS)

    def notes(self, names: Mapping[str, str]) -> list[tuple[str | None, Mark]]:
        """All notes, oldest first, each with the name of its run by `names` (id -> name; else the
        id), None for one of the sweep."""
        own = [(None, note) for note in self.sweep.notes]
        others = [
            (names.get(run, run), note) for run, found in self.runs.items() for note in found.notes
        ]
        return sorted([*own, *others], key=lambda pair: pair[1].time)


def marked(folder: SweepFolder, told: Callable[[StoreError], None] | None = None) -> Marked:
    """Read what is noted of a sweep and of its runs. Raises `StoreError`."""
    return by_subject(read_marks(folder, told))


def by_subject(marks: Iterable[Mark]) -> Marked:
    """What holds of each thing that marks are about."""
    about: dict[str | None, list[Mark]] = {}
    for mark in marks:
        about.setdefault(mark.run, []).append(mark)
    folded = {run: fold(several) for run, several in about.items()}
    own = folded.pop(None, NO_MARKS)
    return Marked(own, {run: found for run, found in folded.items() if run is not None})


def marks_by_run(runs: Sequence[RecordedRun]) -> list[tuple[Marks, Marks]]:
    """For each run its own marks, and those of its sweep. What cannot be read is told as the run
    tells it, and taken for nothing."""
    known: dict[tuple[str, str], Marked] = {}
    found: list[tuple[Marks, Marks]] = []
    for run in runs:
        place = run.root, run.sweep
        if place not in known:
            known[place] = Marked()
            if isinstance(run, SweepRun):
                read = partial(marked, run.sweep_folder, run.told)
                known[place] = run.readable(read, Marked())
        found.append((known[place].of(run.id), known[place].sweep))
    return found


def with_tags(
    runs: Sequence[RecordedRun], tags: Sequence[str], *, starred: bool = False
) -> list[RecordedRun]:
    """The runs that have all of these tags, their sweep's among them; with `starred` of those the
    ones that have a star, or whose sweep has."""
    if not tags and not starred:
        return list(runs)
    kept: list[RecordedRun] = []
    for run, (own, sweep) in zip(runs, marks_by_run(runs), strict=True):
        if set(tags) <= {*own.tags, *sweep.tags} and (own.starred or sweep.starred or not starred):
            kept.append(run)
    return kept


def in_use(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs without those of sweeps that are archived."""
    archived: dict[tuple[str, str], bool] = {}
    for run in runs:
        place = run.root, run.sweep
        if place not in archived:
            read = partial(is_archived, run.sweep_folder)
            archived[place] = isinstance(run, SweepRun) and run.readable(read, False)
    return [run for run in runs if not archived[run.root, run.sweep]]
