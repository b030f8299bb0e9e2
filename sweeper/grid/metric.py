"""The section `metric`: how cells are compared."""

from typing import Any, cast

from sweeper.fields.kinds import Choice, Integer, Item, Number, Text, Texts, whole, wrong
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Nested, Section
from sweeper.sweep.metric import FAILED, MOST_LAST, Metric
from sweeper.sweep.names import SWEEP_NAME, is_sweep_name


class _WordOr:
    """Reads one of some words, or a mapping with one key: `{key: value}` becomes `key=value`."""

    def __init__(self, words: Choice, field: Field) -> None:
        self._words, self._field = words, field
        self._mapping = Nested(Section(field))

    def read(self, node: Node, where: str, problems: Problems) -> str | None:
        if node.entries is None:
            if isinstance(node.value, str):
                return self._words.read(node, where, problems)
            words = ", ".join(self._words.choices)
            wrong(node, where, f"{words} or {{{self._field.name}: ...}}", problems)
            return None
        values = self._mapping.read(node, where, problems) or {}
        value = values.get(self._field.name)
        if value is None:
            if not node.entries:
                wrong(node, where, f"{{{self._field.name}: ...}}", problems)
            return None
        text = ",".join(cast(list[str], value)) if isinstance(value, list) else value
        return f"{self._field.name}={text}"

    def schema(self) -> dict[str, object]:
        needs = {"required": [self._field.name], "minProperties": 1}
        return {"anyOf": [self._words.schema(), {**self._mapping.schema(), **needs}]}


def _not_a_sweep(name: str) -> str | None:
    return None if is_sweep_name(name) else f"{name[:60]!r} cannot name a sweep"


_LENT = Texts(
    Item({"pattern": whole(SWEEP_NAME)}, _not_a_sweep),
    least=1,
    unique=True,
    example="a list of sweeps",
)
METRIC = Section(
    Field("name", Text(), "A key of the metrics that runs record.", examples=("test/nll",)),
    Field("goal", Choice("minimize", "maximize"), "Which is better, less or more."),
    Field(
        "at",
        _WordOr(
            Choice("auto", "last", "best"),
            Field("mean_of_last", Integer(1, MOST_LAST), "The mean of so many values at the end."),
        ),
        "The value of the last step, the best of all, or a mean of the last. Auto is the last; a "
        "report takes a mean where the last values are noisy.",
        "auto",
    ),
    Field(
        "noise",
        _WordOr(
            Choice("auto", "pooled", "own"),
            Field("from", _LENT, "Sweeps of the same recipe whose repeated cells lend theirs."),
        ),
        "Whose noise between seeds counts: shared where a test lets cells share it, shared by all, "
        "each cell's own, or that of earlier sweeps as well.",
        "auto",
    ),
    Field(
        "failed",
        Choice(*FAILED),
        "What a run that failed counts as: a bound (its cell is not named best if the worst value "
        "in its place would prevent it), the worst value, or nothing.",
        "bound",
    ),
    Field(
        "by",
        Text(),
        "A setting each of whose values is judged by itself: the best for each model, say. Without "
        "it such a setting is looked for.",
        examples=("model_name",),
    ),
    Field(
        "relevant",
        Number(0.0, 1e12, above=True),
        "The smallest difference of the metric that matters: reports advise as many seeds as find "
        "it.",
        examples=(0.01,),
    ),
    needs={"name": "a name", "goal": "a goal"},
)


def metric_of(values: dict[str, Any]) -> Metric | None:
    """Make the metric from the section as read; None without a name and a goal."""
    return Metric(**METRIC.defaults() | values) if values.keys() >= {"name", "goal"} else None
