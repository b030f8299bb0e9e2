"""The notes, tags and stars of sweeps and runs, for display."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sweeper.errors import StoreError
from sweeper.results.runs import RecordedRun
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.marks import NO_MARKS, Mark, Marks, fold, is_archived, read_marks


class Marked(NamedTuple):
    """The marks of a sweep and of its runs."""

    sweep: Marks = NO_MARKS
    runs: Mapping[str, Marks] = {}

    def of(self, run: str) -> Marks:
        """Return the marks of a run."""
        return self.runs.get(run, NO_MARKS)

    def notes(self, names: Mapping[str, str]) -> list[tuple[str | None, Mark]]:
        """Return all notes, oldest first, as (run, note). The run is None for a note of the sweep,
        else the run's name. `names` maps ids of runs to names. Without a name, the id is used."""
        of_sweep = [(None, note) for note in self.sweep.notes]
        others = [
            (names.get(run, run), note) for run, marks in self.runs.items() for note in marks.notes
        ]
        return sorted([*of_sweep, *others], key=lambda pair: pair[1].time)


def marked(folder: SweepFolder, on_error: Callable[[StoreError], None] | None = None) -> Marked:
    """Read the marks of a sweep and of its runs. Damaged marks are skipped, and `on_error` gets
    their errors. Raises `StoreError` if the store does not answer."""
    return by_subject(read_marks(folder, on_error))


def by_subject(marks: Iterable[Mark]) -> Marked:
    """Group marks into those of the sweep and those of each run."""
    about: dict[str | None, list[Mark]] = {}
    for mark in marks:
        about.setdefault(mark.run, []).append(mark)
    folded = {run: fold(several) for run, several in about.items()}
    of_sweep = folded.pop(None, NO_MARKS)
    return Marked(of_sweep, {run: marks for run, marks in folded.items() if run is not None})


def marks_by_run(runs: Sequence[RecordedRun]) -> list[tuple[Marks, Marks]]:
    """Return for each run its own marks and those of its sweep. Unreadable marks are skipped, and
    the run's `on_error` gets the errors."""
    sweeps: dict[tuple[str, str], Marked] = {}
    pairs: list[tuple[Marks, Marks]] = []
    for run in runs:
        place = run.root, run.sweep
        if place not in sweeps:
            sweeps[place] = Marked()
            if isinstance(run, SweepRun):
                read = partial(marked, run.sweep_folder, run.on_error)
                sweeps[place] = run.readable(read, Marked())
        pairs.append((sweeps[place].of(run.id), sweeps[place].sweep))
    return pairs


def with_tags(
    runs: Sequence[RecordedRun], tags: Sequence[str], *, starred: bool = False
) -> list[RecordedRun]:
    """Return the runs that have all `tags`. If `starred` is set, they must also have a star. A tag
    or star of a sweep counts for all of its runs."""
    if not tags and not starred:
        return list(runs)
    matches: list[RecordedRun] = []
    for run, (marks, sweep) in zip(runs, marks_by_run(runs), strict=True):
        if set(tags) <= {*marks.tags, *sweep.tags} and (
            marks.starred or sweep.starred or not starred
        ):
            matches.append(run)
    return matches


def in_use(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the runs that do not belong to archived sweeps."""
    archived: dict[tuple[str, str], bool] = {}
    for run in runs:
        place = run.root, run.sweep
        if place not in archived:
            read = partial(is_archived, run.sweep_folder)
            archived[place] = isinstance(run, SweepRun) and run.readable(read, False)
    return [run for run in runs if not archived[run.root, run.sweep]]
