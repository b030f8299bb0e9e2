"""What a stage takes from the stages before it: `from` of a grid, as it is kept.

A source says where the parents of a run come from. Each of its takes gives some runs of one stage;
a run has one parent from each take, in every combination. A source may also be the base model, of
which there is no parent.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from sweeper.model.document_reader import SCHEMA, Part
from sweeper.model.metric import Metric

__all__ = [
    "LATE",
    "PARENT",
    "REFERENCE",
    "WORDS",
    "Choice",
    "Chosen",
    "Dropped",
    "Source",
    "Take",
    "choice_of",
    "filled",
    "read_chosen",
    "read_sources",
    "references",
    "run_of_parents",
    "text_of",
]

WORDS = ("best", "best-cell", "each", "top", "run")
"""How runs are taken; `top` and `run` say how many, and which."""

PARENT = "from"
"""What references call the parent, whichever stage it is of."""

LATE = ("checkpoint.state", "checkpoint.sampler", "log_path")
"""What is known of a parent only once it has ended."""

REFERENCE = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_]*)\.([^{}]*)\}")
"""A reference to a stage, as it stands in a configuration: `${sft.checkpoint.state}`."""

T = TypeVar("T")


class Take(NamedTuple):
    """Which runs of a stage are taken: the `best`, those of the best cell (`best-cell`), `each`,
    the `number` best (`top`), or the one called `run`."""

    stage: str
    how: str
    number: int = 1
    run: str | None = None

    @property
    def chooses(self) -> bool:
        """Whether the stage must have ended before it is known what is taken."""
        return self.how in ("best", "best-cell", "top")

    @property
    def many(self) -> bool:
        """Whether it may take several runs, which then stand in the names of their children."""
        return self.how in ("best-cell", "each", "top")

    @property
    def words(self) -> str:
        """As people say it: `the best of sft`."""
        if self.how == "run":
            return f"{self.run} of {self.stage}"
        how = {"top": f"the {self.number} best", "best": "the best", "best-cell": "the best cell"}
        return f"{how.get(self.how, self.how)} of {self.stage}"

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        found: dict[str, object] = {"stage": self.stage, "take": self.how}
        found |= {"count": self.number} if self.how == "top" else {}
        return found | ({"run": self.run} if self.run is not None else {})


class Source(NamedTuple):
    """Where parents come from: one of each take; or `base`, the base model."""

    takes: tuple[Take, ...] = ()
    base: bool = False

    def document(self) -> dict[str, object]:
        """As `sweep.json` has it."""
        if self.base:
            return {"base": True}
        return {"takes": [take.document() for take in self.takes]}


class Choice(NamedTuple):
    """A choice among the runs of a stage (`candidates`, their ids), all of which are known. `key`
    names it: what is taken, by which metric, of which runs. A stage that gets more runs is chosen
    from anew."""

    take: Take
    metric: Metric
    candidates: tuple[str, ...]
    key: str


def choice_of(take: Take, metric: Metric, candidates: Sequence[str]) -> Choice:
    """The choice of what to take of these runs."""
    judged = [metric.name, metric.goal, metric.at, metric.failed]
    key = _digest([take.document(), judged, sorted(candidates)])
    return Choice(take, metric, tuple(candidates), key)


class Chosen(NamedTuple):
    """What was chosen, once and for all: the runs (ids), best first, with what they were judged by;
    `time` is when (UTC)."""

    taken: tuple[tuple[str, float], ...]
    time: str

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids alone."""
        return tuple(run for run, _ in self.taken)

    def document(self, choice: Choice) -> dict[str, object]:
        """As the store keeps it, with what it was a choice of."""
        taken = [{"run": run, "value": value} for run, value in self.taken]
        judged = {"name": choice.metric.name, "goal": choice.metric.goal, "at": choice.metric.at}
        about = {**choice.take.document(), "metric": judged, "of": list(choice.candidates)}
        return {"schema": SCHEMA, "time": self.time, **about, "taken": taken}


def read_chosen(document: object, place: str) -> Chosen:
    """What was chosen, of the file `place`. Raises `StoreError`."""
    top = Part(document, place)
    taken = [(one.text("run"), one.number_or("value", 0.0)) for one in top.parts("taken")]
    if not taken:
        top.refuse("taken", "a run at least")
    return Chosen(tuple(taken), top.time_or("time", None) or top.text("time"))


def read_sources(parts: Sequence[Part]) -> tuple[Source, ...]:
    """The sources of a stage on record. Raises `StoreError`."""
    return tuple(_read_source(part) for part in parts)


def _read_source(part: Part) -> Source:
    if part.flag_or("base", False):
        return Source(base=True)
    takes = [
        Take(
            one.text("stage"),
            one.one_of("take", WORDS, ""),
            one.integer_or("count", 1),
            one.text_or("run", None),
        )
        for one in part.parts("takes")
    ]
    return Source(tuple(takes))


def run_of_parents(stage: str, template: str, parents: Sequence[str]) -> str:
    """The id of a run that has parents: made of what it would be without (`template`), of their
    ids, and of its stage's name, since another stage may do the same with the same run. A run of
    the base model has `base:<model>` in their place."""
    return _digest({"parents": list(parents), "run": template, "stage": stage})


def _digest(value: object) -> str:
    """The first 12 digits of the SHA-256 of `value` as JSON."""
    import hashlib  # it loads OpenSSL, and most sweeps have no stages

    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Dropped(Exception):
    """Raised for a reference whose key is to be left out: there is no such thing of a base
    model."""


def references(value: object) -> Iterator[tuple[str, str]]:
    """Yield the references to stages anywhere in a value: a stage, and what of it."""
    if isinstance(value, str):
        if "${" in value:
            for found in REFERENCE.finditer(value):
                yield found[1], found[2]
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, object]", value).values():
            yield from references(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from references(item)


def filled(config: Mapping[str, object], find: Callable[[str, str], object]) -> dict[str, object]:
    """A configuration with references to stages replaced by what `find` gives for them. A key whose
    value `find` has `Dropped` is left out."""
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
        whole = REFERENCE.fullmatch(value)
        if whole:
            return find(whole[1], whole[2])
        return REFERENCE.sub(lambda found: text_of(find(found[1], found[2])), value)
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return {key: _fill(item, find) for key, item in entries.items()}
    if isinstance(value, list):
        return [_fill(item, find) for item in cast("list[object]", value)]
    return value


def text_of(value: object) -> str:
    """A value inside a longer text."""
    return value if isinstance(value, str) else json.dumps(value)
