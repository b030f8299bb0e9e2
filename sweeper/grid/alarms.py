"""The section `alarms`, which configures the alarm rules, and the section `on_alarm`, which says
how to react to alarms. The rules and their defaults are in `sweeper.common.alarm_thresholds`."""

from sweeper.common.alarm_thresholds import RULES, Threshold
from sweeper.fields.kinds import (
    Choice,
    Duration,
    Integer,
    Item,
    Kind,
    Number,
    Shape,
    Texts,
    nearest,
    wrong,
)
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field, Reading, Section
from sweeper.grid.command_words import word_with
from sweeper.sweep.plan import Alarms, OnAlarm

HOLES = ("run", "name", "rule", "sweep", "attempt", "message")
"""The placeholders of `on_alarm.run`."""


class _Rule:
    """A kind of field for one alarm rule: `off`, `on` or new thresholds. `read` returns False for
    `off`, None for `on`, and a dict for thresholds."""

    def __init__(self, name: str) -> None:
        thresholds = RULES[name].thresholds
        self._names = ", ".join(thresholds)
        self._section = Section(
            *(
                Field(key, _kind_of(threshold), _sentence(threshold.meaning), _default(threshold))
                for key, threshold in thresholds.items()
            )
        )

    def read(self, node: Node, where: str, problems: Problems) -> dict[str, float] | bool | None:
        if node.value is True or node.value == "on":
            return None
        if node.value is False or node.value == "off":
            return False
        if node.entries is None:
            takes = f"`off`, or a mapping of {self._names}" if self._names else "`on` or `off`"
            wrong(node, where, takes, problems)
            return None
        values = self._section.read(node, where, problems).values
        return {key: float(value) for key, value in values.items()}

    def schema(self) -> dict[str, object]:
        return {"anyOf": [{"enum": ["off", "on", False, True]}, self._section.schema()]}


def _kind_of(threshold: Threshold) -> Kind:
    if threshold.kind == "duration":
        return Duration(threshold.least)
    if threshold.kind == "count":
        return Integer(int(threshold.least), int(threshold.most))
    return Number(threshold.least, threshold.most)


def _default(threshold: Threshold) -> object:
    return f"{threshold.default:g}s" if threshold.kind == "duration" else threshold.default


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _read_alarms(node: Node, where: str, problems: Problems) -> Alarms:
    values = _RULES.read(node, where, problems).values
    return {name: None if given is False else given for name, given in values.items()}


def _wrong_with_rule(rule: str) -> str | None:
    return None if rule in RULES else f"{rule[:60]!r} is not a rule{nearest(rule, RULES)}"


def _check(reading: Reading) -> None:
    gives = reading.given("run") or reading.given("stop")
    if not gives:
        reading.problems.add(
            reading.place, "on_alarm needs `run: [COMMAND, ...]`, `stop: run` or `stop: sweep`"
        )


def _read_on_alarm(node: Node, where: str, problems: Problems) -> OnAlarm | None:
    values = _ON_ALARM.read(node, where, problems).values
    run, rules = (None if (v := values.get(key)) is None else tuple(v) for key in ("run", "rules"))
    stop = values.get("stop")
    return None if run is None and stop is None else OnAlarm(run, stop, rules)


_RULES = Section(
    *(Field(name, _Rule(name), _sentence(rule.meaning)) for name, rule in RULES.items())
)
_ON_ALARM = Section(
    Field(
        "run",
        Texts(
            word_with(HOLES), least=1, example="a list such as [notify-send, '{name}', '{message}']"
        ),
        "A command and its arguments, with the placeholders {run}, {name}, {rule}, {sweep}, "
        "{attempt}, {message}.",
        examples=(["notify-send", "{name}", "{message}"],),
    ),
    Field("stop", Choice("run", "sweep"), "What to stop, as `sweeper cancel` does."),
    Field(
        "rules",
        Texts(
            Item({"enum": list(RULES)}, _wrong_with_rule),
            least=1,
            unique=True,
            example="a list of rules",
        ),
        "The rules whose alarms cause the reaction (default: all).",
    ),
    check=_check,
)
WHOLE: dict[str, object] = {
    "if": {"type": "object"},
    "then": {
        "anyOf": [
            {"required": ["run"], "properties": {"run": {"type": "array"}}},
            {"required": ["stop"], "properties": {"stop": {"type": "string"}}},
        ]
    },
}
"""JSON Schema of `on_alarm` in a grid that extends no other grid."""

ALARMS = Field(
    "alarms",
    Shape(_RULES.schema, _read_alarms),
    "Changes to the alarm rules: `off`, or other thresholds.",
)
ON_ALARM = Field("on_alarm", Shape(_ON_ALARM.schema, _read_on_alarm), "What to do about alarms.")


def check_rules(
    alarms: Alarms | None, on_alarm: OnAlarm | None, place: Place, problems: Problems
) -> None:
    """Report rules in `on_alarm` (at `place`) that are off in `alarms`."""
    off = {rule for rule, given in (alarms or {}).items() if given is None}
    for rule in (on_alarm and on_alarm.rules) or ():
        if rule in off:
            problems.add(place, f"on_alarm.rules: {rule} is off in alarms")
