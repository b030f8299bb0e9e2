"""Reads the rollouts of a run: what was measured of each trajectory, and what was said in it."""

from functools import partial
from typing import NamedTuple

from sweeper.common.decoding import decode
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rollout_files import SummaryFile, flat
from sweeper.metrics.rows import Row, parse
from sweeper.results.conversations import Told, answers, groups_of, turns_logged
from sweeper.results.runs import RecordedRun

Index = int | float | str | None
Place = tuple[Index, Index]


class Found(NamedTuple):
    """A trajectory: its file, its record, and its numbers."""

    file: SummaryFile
    record: Row
    numbers: dict[str, object]

    @property
    def place(self) -> Place:
        """The group and the trajectory."""
        return _index(self.record.get("group_idx")), _index(self.record.get("traj_idx"))


class Words:
    """What was said, from transcripts that are read when they are needed."""

    def __init__(self, run: RecordedRun, found: list[Found]) -> None:
        self._run = run
        self._groups: dict[str, dict[Index, list[Found]]] = {}
        for one in found:
            self._groups.setdefault(one.file.path, {}).setdefault(one.place[0], []).append(one)
        self._latest: tuple[str, dict[Place, Told]] = ("", {})

    def of(self, one: Found) -> Told:
        """The conversation of a trajectory; if there is none that is its own, what its turns
        logged."""
        if self._latest[0] != one.file.path:
            self._latest = (one.file.path, self._told(one.file))
        told = self._latest[1].get(one.place)
        logged = turns_logged(one.record)
        own = told is not None and told.whose == "trajectory"
        if told is None or not told.spoken or (answers(logged) and not own):
            return Told(logged, "trajectory")
        return told

    def text(self, one: Found) -> str:
        """All that was said or logged in a trajectory."""
        return "\n".join(words for _, words in (*turns_logged(one.record), *self.of(one).spoken))

    def _told(self, file: SummaryFile) -> dict[Place, Told]:
        tree = self._run.readable(lambda: self._tree(file.transcript), None)
        groups = list(self._groups[file.path].values())
        told = groups_of(tree, [[one.record for one in group] for group in groups])
        return {
            one.place: words
            for number, group in told.items()
            for one, words in zip(groups[number], group, strict=True)
        }

    def _tree(self, path: str) -> object:
        try:
            return decode(self._run.store.read(path))
        except NotFound:
            return None
        except ValueError as error:
            raise StoreError(f"{self._run.root}/{path}: damaged ({error})") from error


def _index(value: object) -> Index:
    """The number of a summary's group or trajectory; None for a value that cannot be one."""
    return value if isinstance(value, int | float | str) else None


def read(run: RecordedRun, files: list[SummaryFile]) -> tuple[list[Found], int]:
    """Read the trajectories of some of a run's files. Also returns how many lines could not be
    read."""
    found: list[Found] = []
    skipped = 0
    for file in files:
        parsed = parse(run.readable(partial(run.read, file.path), b""))
        skipped += parsed.malformed + parsed.torn
        found += [Found(file, record, flat(record, file)) for record in parsed.rows]
    return found, skipped
