"""Reads the rollouts of a run: measurements and conversations of trajectories."""

from functools import partial
from typing import NamedTuple

from sweeper.common.json_values import decode
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rollout_files import SummaryFile, flat
from sweeper.metrics.rows import Row, parse
from sweeper.results.conversations import Transcript, answers, groups_of, turns_logged
from sweeper.results.runs import RecordedRun

Index = int | float | str | None
Place = tuple[Index, Index]


class Found(NamedTuple):
    """A trajectory: the file that contains it, its record, and its metrics as one flat row."""

    file: SummaryFile
    record: Row
    numbers: dict[str, object]

    @property
    def place(self) -> Place:
        """The index of the group, and the index of the trajectory in the group."""
        return _index(self.record.get("group_idx")), _index(self.record.get("traj_idx"))

    @property
    def iteration(self) -> Index:
        """The iteration of the trajectory; None if unknown."""
        return _index(self.numbers.get("iteration"))


class Words:
    """The conversations of a run's trajectories. Transcripts are read when needed."""

    def __init__(self, run: RecordedRun, rollouts: list[Found]) -> None:
        self._run = run
        self._groups: dict[str, dict[Index, list[Found]]] = {}
        for rollout in rollouts:
            self._groups.setdefault(rollout.file.path, {}).setdefault(rollout.place[0], []).append(
                rollout
            )
        self._latest: tuple[str, dict[Place, Transcript]] = ("", {})

    def of(self, rollout: Found) -> Transcript:
        """Return the conversation of a trajectory, from the transcript file or from the messages
        in the trajectory's record. The record is used if the file has no conversation, or if the
        file's conversation may be another trajectory's and the record has the model's messages."""
        if self._latest[0] != rollout.file.path:
            self._latest = (rollout.file.path, self._words_of(rollout.file))
        words = self._latest[1].get(rollout.place)
        logged = turns_logged(rollout.record)
        is_whole = words is not None and words.whose == "trajectory"
        if words is None or not words.spoken or (answers(logged) and not is_whole):
            return Transcript(logged, "trajectory")
        return words

    def text(self, rollout: Found) -> str:
        """Return all text of a trajectory."""
        return "\n".join(
            words for _, words in (*turns_logged(rollout.record), *self.of(rollout).spoken)
        )

    def _words_of(self, file: SummaryFile) -> dict[Place, Transcript]:
        tree = self._run.readable(lambda: self._tree(file.transcript), None)
        groups = list(self._groups[file.path].values())
        transcripts = groups_of(tree, [[rollout.record for rollout in group] for group in groups])
        return {
            rollout.place: words
            for number, group in transcripts.items()
            for rollout, words in zip(groups[number], group, strict=True)
        }

    def _tree(self, path: str) -> object:
        try:
            return decode(self._run.store.read(path))
        except NotFound:
            return None
        except ValueError as error:
            raise StoreError(f"{self._run.root}/{path}: damaged ({error})") from error


def _index(value: object) -> Index:
    """Return `value` if it is a number or a string, else None."""
    return value if isinstance(value, int | float | str) else None


def read(run: RecordedRun, files: list[SummaryFile]) -> tuple[list[Found], int]:
    """Read the trajectories in these files of a run. Also return the number of unreadable lines."""
    rollouts: list[Found] = []
    skipped = 0
    for file in files:
        parsed = parse(run.readable(partial(run.read, file.path), b""))
        skipped += parsed.malformed + parsed.torn
        rollouts += [Found(file, record, flat(record, file)) for record in parsed.rows]
    return rollouts, skipped
