"""The runs and values that a stage takes from earlier stages: the stored form of a grid's
`from`. A run has one parent from each take of a source. There are runs for all combinations of
parents. The base model is not a parent."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar, cast

from sweeper.common import codec
from sweeper.common.codec import SCHEMA, Check, Key, Time
from sweeper.sweep.metric import Metric

WORDS = ("best", "best-cell", "each", "top", "run")
"""The ways to take runs. `top` also needs a number, and `run` a name."""

PARENT = "from"
"""The name for the first parent in references, whatever the parent's stage is called."""

LATE = ("checkpoint.state", "checkpoint.sampler", "log_path")
"""Values of a parent that are known only after the parent has ended."""

_REFERENCE = r"\$\{([A-Za-z][A-Za-z0-9_]*)\.([^{}]*)\}"
"""A reference to a stage in a configuration: `${sft.checkpoint.state}`."""

T = TypeVar("T")


class Take(NamedTuple):
    """The runs that are taken from a stage. `how` is `best` (the best run), `best-cell` (the runs
    of the best cell), `each` (all runs), `top` (the `number` best runs) or `run` (the run with the
    name `run`)."""

    stage: str
    how: Annotated[str, Key("take"), Check(WORDS.__contains__, " or ".join(WORDS))]
    number: Annotated[int, Key("count")] = 1
    run: str | None = None

    @property
    def chooses(self) -> bool:
        """Whether the taken runs are known only when the stage has ended."""
        return self.how in ("best", "best-cell", "top")

    @property
    def many(self) -> bool:
        """Whether several runs may be taken. The names of the taken runs are then part of the names
        of later runs."""
        return self.how in ("best-cell", "each", "top")

    @property
    def words(self) -> str:
        """A description of the taken runs: `the best of sft`."""
        if self.how == "run":
            return f"{self.run} of {self.stage}"
        how = {"top": f"the {self.number} best", "best": "the best", "best-cell": ("the best cell")}
        return f"{how.get(self.how, self.how)} of {self.stage}"

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        document: dict[str, object] = {"stage": self.stage, "take": self.how}
        document |= {"count": self.number} if self.how == "top" else {}
        return document | ({"run": self.run} if self.run is not None else {})


class Source(NamedTuple):
    """The description of a run's parents: one parent from each of `takes`. With `base`, the run has
    no parents and starts from the base model."""

    takes: tuple[Take, ...] = ()
    base: bool = False

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        if self.base:
            return {"base": True}
        return {"takes": [take.document() for take in self.takes]}


class Choice(NamedTuple):
    """A choice among all runs of a stage. `candidates` are the ids of these runs. `key` is a digest
    of the other fields. If the stage gets more runs, a new choice replaces this one."""

    take: Take
    metric: Metric
    candidates: tuple[str, ...]
    key: str


def choice_of(take: Take, metric: Metric, candidates: Sequence[str]) -> Choice:
    """Return the choice that `take` makes among the runs `candidates`."""
    judged = [metric.name, metric.goal, metric.at, metric.failed]
    key = digest([take.document(), judged, sorted(candidates)])
    return Choice(take, metric, tuple(candidates), key)


class Chosen(NamedTuple):
    """The final result of a choice. `taken` has the ids of the chosen runs and their values, best
    first. `time` is in UTC."""

    taken: tuple[tuple[str, float], ...]
    time: str

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(run for run, _ in self.taken)

    def document(self, choice: Choice) -> dict[str, object]:
        """Return the JSON object to store, which also describes the choice."""
        taken = [{"run": run, "value": value} for run, value in self.taken]
        judged = {"name": choice.metric.name, "goal": choice.metric.goal, "at": choice.metric.at}
        about = {**choice.take.document(), "metric": judged, "of": list(choice.candidates)}
        return {"schema": SCHEMA, "time": self.time, **about, "taken": taken}


class _Taken(NamedTuple):
    run: str
    value: float = 0.0


class _ChosenDocument(NamedTuple):
    taken: Annotated[tuple[_Taken, ...], Check(bool, "at least one run")]
    time: Time


def read_chosen(document: object, place: str) -> Chosen:
    """Return the result of a choice in `document`, the content of the file `place`. Raises
    `StoreError`."""
    return Chosen(*codec.read(_ChosenDocument, document, place))


def run_of_parents(stage: str, template: str, parents: Sequence[str]) -> str:
    """Return the id of a run of a later stage: a digest of the stage's name, of the id of the
    template that the run is made from, and of the ids of the run's parents. For a run that starts
    from the base model, `parents` is `["base:<model>"]`."""
    return digest({"parents": list(parents), "run": template, "stage": stage})


def digest(value: object) -> str:
    """Return the first 12 digits of the SHA-256 of `value` as JSON."""
    import hashlib  # imported late, since it loads OpenSSL and most sweeps have no stages

    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Dropped(Exception):
    """The error for a reference that has no value, because the run starts from a base model.
    `filled` leaves out the key with the reference."""


def references(value: object) -> Iterator[tuple[str, str]]:
    """Yield the references to stages in a value, as pairs of stage and key."""
    if isinstance(value, str):
        if "${" in value:
            for match in re.finditer(_REFERENCE, value):
                yield match[1], match[2]
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, object]", value).values():
            yield from references(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from references(item)


def filled(config: Mapping[str, object], find: Callable[[str, str], object]) -> dict[str, object]:
    """Return a configuration with references to stages replaced by the values that `find` returns.
    A key for which `find` raises `Dropped` is left out."""
    made: dict[str, object] = {}
    for key, value in config.items():
        try:
            made[key] = _fill(value, find)
        except Dropped:
            continue
    return made


def _fill(value: object, find: Callable[[str, str], object]) -> object:
    if isinstance(value, str):
        if "${" not in value:
            return value
        whole = re.fullmatch(_REFERENCE, value)
        if whole:
            return find(whole[1], whole[2])
        return re.sub(_REFERENCE, lambda match: text_of(find(match[1], match[2])), value)
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return {key: _fill(item, find) for key, item in entries.items()}
    if isinstance(value, list):
        return [_fill(item, find) for item in cast("list[object]", value)]
    return value


def text_of(value: object) -> str:
    """Return a string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
