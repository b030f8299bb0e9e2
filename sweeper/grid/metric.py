"""The section `metric`: how cells are compared."""

from typing import Any, cast

from sweeper.fields.kinds import Choice, Integer, Item, Number, Text, Texts, whole, wrong
from sweeper.fields.nodes import Node, Problems
from sweeper.fields.sections import Field, Nested, Section
from sweeper.sweep.metric import FAILED, MOST_LAST, Metric
from sweeper.sweep.names import SWEEP_NAME, is_sweep_name


class _WordOr:
    """The type of a field whose value is either a word or a mapping with one key. `{key: value}` is
    read as the text `key=value`."""

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
    Field("goal", Choice("minimize", "maximize"), "Whether smaller or larger values are better."),
    Field(
        "at",
        _WordOr(
            Choice("auto", "last", "best"),
            Field("mean_of_last", Integer(1, MOST_LAST), ("The mean of this many last values.")),
        ),
        "Which value of a run counts: the last, the best, or a mean of the last values. auto: the "
        "last value; in a report, a mean if the last values are noisy.",
        "auto",
    ),
    Field(
        "noise",
        _WordOr(
            Choice("auto", "pooled", "own"),
            Field(
                "from",
                _LENT,
                ("Sweeps of the same recipe. Their cells are also used to estimate the noise."),
            ),
        ),
        "How the noise between seeds is estimated: pooled (from all cells together), own (for each "
        "cell), auto (pooled if a test allows it), or from (also from earlier sweeps).",
        "auto",
    ),
    Field(
        "failed",
        Choice(*FAILED),
        "How a failed run counts: bound (its cell is named best only if it would still be best "
        "with the worst value for this run), worst (as the worst value) or drop (not at all).",
        "bound",
    ),
    Field(
        "by",
        Text(),
        "A setting such as the model: each of its values gets a best cell of its own. Several "
        "settings, separated by commas: each combination gets one. Default: sweeper detects it.",
        examples=("model_name",),
    ),
    Field(
        "relevant",
        Number(0.0, 1e12, above=True),
        "The smallest difference of the metric that matters. Reports say how many seeds are needed "
        "to detect it.",
        examples=(0.01,),
    ),
    needs={"name": "a name", "goal": "a goal"},
)


def metric_of(values: dict[str, Any]) -> Metric | None:
    """Return the metric with the `values` of a section `metric`; None without a name or a goal."""
    return Metric(**METRIC.defaults() | values) if values.keys() >= {"name", "goal"} else None
