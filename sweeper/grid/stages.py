"""`stages`: splits a graph of grids into one grid for each stage, and checks which runs stages
take from each other. References to stages are escaped until the run that they refer to is known."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sweeper.fields.kinds import hint, nearest, whole
from sweeper.fields.nodes import Node, Place, Problems, kind
from sweeper.grid import seeds
from sweeper.grid.dotted_keys import is_key_below
from sweeper.grid.metric import METRIC
from sweeper.grid.overrides import Override
from sweeper.grid.stage_inputs import FROM, Taking, read_from, stages_before
from sweeper.sweep.names import STAGE_NAME
from sweeper.sweep.stage_inputs import LATE, PARENT

IN_STAGE = (
    *("recipe", "command", "base", "grid", "zip", "random", "when"),
    *("exclude", "include", "seeds", "metric", "baseline"),
)
"""The sections that a stage may have, besides `from` and `launch`."""
LAUNCH = "launch"

MAX_STAGES = 50
_RESERVED = frozenset({PARENT, "stage", "take", "base", "launch", "random", "seeds", "stages"})
_REFERENCE = re.compile(r"(\$?)\$\{([A-Za-z][A-Za-z0-9_]*)\.([^{}]*)\}")


class Reference(NamedTuple):
    """A reference `${stage.key}` to a value of another stage, and its position in the file."""

    stage: str
    key: str
    place: Place


class StageNode(NamedTuple):
    """A stage as in the file. References to other stages in `entries` are escaped, and collected in
    `references`. `takings` is the stage's `from`."""

    name: str
    place: Place
    entries: dict[str, tuple[Place, Node]]
    takings: tuple[Taking, ...]
    references: tuple[Reference, ...]
    launch: Node | None = None


def stages_schema(sections: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON Schema of `stages`. `sections` has the schemas of all sections of a stage
    except `from`."""
    of = {"description": "The runs of earlier stages that the stage continues from.", **FROM}
    stage = {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {**sections, PARENT: of},
    }
    names = {"pattern": whole(STAGE_NAME), "not": {"enum": sorted(_RESERVED)}}
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_STAGES,
        "propertyNames": names,
        "additionalProperties": stage,
    }


WHOLE: Mapping[str, object] = {
    "additionalProperties": {
        "type": "object",
        "anyOf": [{"required": ["recipe"]}, {"required": ["command"]}],
        "properties": {
            "metric": {"if": {"type": "object"}, "then": METRIC.whole()},
            "seeds": seeds.WHOLE,
        },
    }
}
"""JSON Schema of the stages in a grid that extends no other grid."""


def beside_stages(entries: Mapping[str, tuple[Place, Node]], problems: Problems) -> None:
    """Report top-level sections that belong in a stage."""
    for key in IN_STAGE:
        if key in entries and entries[key][1].value is not None:
            message = f"{key}: the grid has stages: move it into one of them"
            problems.add(entries[key][0], message)


def read_stages(node: Node, problems: Problems) -> list[StageNode]:
    """Read the stages, in the order of the file."""
    if not node.entries or len(node.entries) > MAX_STAGES:
        message = f"stages is {kind(node)}; it takes a mapping of names to stages"
        if node.entries is not None:
            message = f"more than {MAX_STAGES} stages" if node.entries else "stages is empty"
        problems.add(node.place, message)
        return []
    names = list(node.entries)
    stages: list[StageNode] = []
    for name, (place, item) in node.entries.items():
        if not re.fullmatch(STAGE_NAME, name) or name in _RESERVED:
            message = "a letter, then letters, digits and '_', at most 40"
            message = "this word is reserved" if name in _RESERVED else message
            problems.add(place, f"stages: {name[:60]!r} cannot name a stage ({message})")
        elif not item.entries:
            empty = item.value is None or item.entries is not None
            message = "is empty" if empty else f"is {kind(item)}"
            problems.add(item.place, f"stages.{name} {message}; it takes a mapping, like a grid")
        else:
            stages.append(_read_stage(name, place, item.entries, names, problems))
    return stages


def _read_stage(
    name: str,
    place: Place,
    given: Mapping[str, tuple[Place, Node]],
    names: Sequence[str],
    problems: Problems,
) -> StageNode:
    references: list[Reference] = []
    entries: dict[str, tuple[Place, Node]] = {}
    takings: tuple[Taking, ...] = ()
    launch: Node | None = None
    for key, (where, node) in given.items():
        if key == PARENT:
            if node.value is not None:
                takings = read_from(node, f"stages.{name}.from", problems)
        elif key == LAUNCH:
            launch = None if node.value is None else node
        elif key in IN_STAGE:
            entries[key] = where, _escaped(node, names, references, problems)
        else:
            suggestion = hint(key, [*IN_STAGE, PARENT, LAUNCH], problems)
            problems.add(where, f"unknown key {key[:100]!r} in stages.{name}{suggestion}")
    return StageNode(name, place, entries, takings, tuple(references), launch)


def _escaped(
    node: Node, names: Sequence[str], references: list[Reference], problems: Problems
) -> Node:
    """Return a node with escaped references to stages. Add the references to `references`."""
    if node.items is not None:
        return node._replace(value=[_escaped(i, names, references, problems) for i in node.items])
    if node.entries is not None:
        entries = {
            k: (p, _escaped(i, names, references, problems)) for k, (p, i) in node.entries.items()
        }
        return node._replace(value=entries)
    if not isinstance(node.value, str) or "${" not in node.value:
        return node

    def escape(match: re.Match[str]) -> str:
        escaped, stage, key = match.groups()
        if stage not in names and stage != PARENT:
            if key in LATE and not escaped:
                similar = nearest(stage, names)
                problems.add(node.place, f"{match[0][:60]}: no stage {stage!r}{similar}")
            return match[0]
        if not is_key_below(key):
            message = (
                f"{match[0][:60]}: no arithmetic with values of a stage: use ${{{stage}.key}} alone"
            )
            problems.add(node.place, message)
        elif escaped:
            message = (
                f"{match[0][:60]}: this looks like a reference to a stage and cannot be escaped"
            )
            problems.add(node.place, message)
        references.append(Reference(stage, key, node.place))
        return f"$${{{stage}.{key}}}"

    return node._replace(value=_REFERENCE.sub(escape, node.value))


def divide(
    changes: Iterable[Override], stages: Sequence[StageNode], problems: Problems
) -> tuple[dict[str, list[Override]], dict[str, tuple[Reference, ...]]]:
    """Group overrides such as `sft.max_steps=5` by stage. Return a dict from stage to overrides,
    and a dict from stage to the references in these overrides."""
    names = [stage.name for stage in stages]
    by_stage: dict[str, list[Override]] = {name: [] for name in names}
    references: dict[str, list[Reference]] = {name: [] for name in names}
    for change in changes:
        stage, _, key = change.key.partition(".")
        if stage not in by_stage or not key:
            example = f"{names[0] if names else 'stage'}.{change.key[:60]}"
            similar = nearest(stage, names) if key else ""
            message = f"the grid has stages: name one, such as {example}=...{similar}"
            problems.add(change.place, message)
            continue
        node = _escaped(change.node, names, references[stage], problems)
        by_stage[stage].append(change._replace(key=key, node=node))
    return by_stage, {name: tuple(given) for name, given in references.items()}


def check_graph(
    stages: Sequence[StageNode], metrics: Mapping[str, bool], problems: Problems
) -> None:
    """Report mistakes in the `from` of stages. `metrics` says which stages have a metric."""
    names = [stage.name for stage in stages]
    for stage in stages:
        for taking in stage.takings:
            for take, place in taking.placed_takes():
                where = f"stages.{stage.name}.from"
                if take.stage == stage.name:
                    problems.add(place, f"{where}: a stage cannot continue from itself")
                elif take.stage not in names:
                    similar = nearest(take.stage, names)
                    message = f"{where}: no stage {take.stage[:60]!r}{similar}"
                    problems.add(place, message)
                elif take.chooses and not metrics[take.stage]:
                    message = f"`{take.how}` needs a metric, but stages.{take.stage} has none"
                    problems.add(place, f"{where}: {message}")
    cycle = _cycle({stage.name: stages_before(stage.takings) for stage in stages})
    if cycle:
        first = next(stage for stage in stages if stage.name == cycle[0])
        place = first.takings[0].place
        problems.add(place, f"stages continue from each other in a cycle: {' -> '.join(cycle)}")


def _cycle(before: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle of stages; [] if there is none. Each stage of the cycle takes runs from the
    stage before. The cycle begins and ends with the stage that is first in the file."""
    for start in before:
        came: dict[str, str] = {}
        pending = [start]
        while pending:
            name = pending.pop()
            for other in before.get(name, ()):
                if other == start and name != start:
                    path = [name]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return [start, *path]
                if other not in came and other != start:
                    came[other] = name
                    pending.append(other)
    return []


def ordered(stages: Sequence[StageNode]) -> Iterator[StageNode]:
    """Yield each stage after the stages that it takes runs from, otherwise in the order of the
    file. Stages in a cycle are left out."""
    done: set[str] = set()
    pending = list(stages)
    while pending:
        ready = next((s for s in pending if done.issuperset(stages_before(s.takings))), None)
        if ready is None:
            return
        pending.remove(ready)
        done.add(ready.name)
        yield ready
