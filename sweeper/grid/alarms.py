"""The sections `alarms`, which changes what alarms watch for, and `on_alarm`, which says what is to
be done about them. The rules and their defaults are in `sweeper.thresholds`."""

import math
import re
from typing import Any, cast

from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.grid.options import Section, hint
from sweeper.model.plan import Alarms, OnAlarm
from sweeper.thresholds import RULES, Threshold

__all__ = ["HOLES", "check_rules", "read_alarms", "read_on_alarm"]

HOLES = ("run", "name", "rule", "sweep", "attempt", "message")
"""What stands in braces in `on_alarm.run`."""

_OFF, _ON = "off", "on"
_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_MAX_WORDS = 100


def read_alarms(node: Node, problems: Problems) -> Alarms:
    """The `alarms` section: for each rule `off`, `on`, or the thresholds that are to be others."""
    section = Section(node, "alarms", tuple(RULES), problems)
    found: dict[str, dict[str, float] | None] = {}
    for name in section.entries:
        inner = section.node(name)
        if inner is None or inner.value == _ON or inner.value is True:
            continue
        if inner.value == _OFF or inner.value is False:
            found[name] = None
        elif inner.entries is None:
            thresholds = ", ".join(RULES[name].thresholds)
            takes = f"off, or a mapping of {thresholds}" if thresholds else "on or off"
            section.wrong(inner, name, takes)
        else:
            found[name] = _read_thresholds(inner, name, problems)
    return found


def _read_thresholds(node: Node, rule: str, problems: Problems) -> dict[str, float]:
    thresholds = RULES[rule].thresholds
    section = Section(node, f"alarms.{rule}", tuple(thresholds), problems)
    found: dict[str, float] = {}
    for key in section.entries:
        value = _read_value(section, key, thresholds[key])
        if value is not None:
            found[key] = value
    return found


def _read_value(section: Section, key: str, threshold: Threshold) -> float | None:
    node = section.node(key)
    if node is None:
        return None
    if threshold.kind == "duration":
        return section.duration(key, threshold.least)
    value: Any = node.value
    count = threshold.kind == "count"
    fits = type(value) is int or (type(value) is float and not count and math.isfinite(value))
    if not fits or not threshold.least <= value <= threshold.most:
        word = "an integer" if count else "a number"
        section.problems.add(
            node.place,
            f"{section.name}.{key} takes {word} from {threshold.least:g} to {threshold.most:g}",
        )
        return None
    return float(value)


def read_on_alarm(node: Node, problems: Problems) -> OnAlarm | None:
    """The `on_alarm` section: a command or something to stop, or both."""
    section = Section(node, "on_alarm", OnAlarm._fields, problems)
    run, rules = _read_command(section), _read_rules(section)
    stop = section.string("stop", choices=("run", "sweep"))
    if node.entries is not None and section.node("run") is None and section.node("stop") is None:
        problems.add(node.place, "on_alarm needs run (a command) or stop (run or sweep)")
    if run is None and stop is None:
        return None
    return OnAlarm(run, cast(Any, stop), rules)


def _read_command(section: Section) -> tuple[str, ...] | None:
    node = section.node("run")
    if node is None:
        return None
    if not node.items or len(node.items) > _MAX_WORDS:
        section.wrong(node, "run", "a list such as [notify-send, '{name}', '{message}']")
        return None
    words: list[str] = []
    for item in node.items:
        if type(item.value) not in (str, int) or item.value == "":
            section.problems.add(item.place, f"on_alarm.run: {kind(item)} in the list; quote it")
            continue
        words.append(str(item.value))
        for match in _HOLE.finditer(words[-1]):
            hole = match.group(1)
            if match.group() in ("{", "}") or hole == "":
                section.problems.add(item.place, "on_alarm.run: a stray brace; {{ is one")
            elif hole is not None and hole not in HOLES:
                found = f"{{{hole[:60]}}}{hint(hole, HOLES, section.problems)}"
                known = ", ".join(HOLES)
                section.problems.add(item.place, f"on_alarm.run: no value for {found}; {known}")
    return tuple(words)


def _read_rules(section: Section) -> tuple[str, ...] | None:
    node = section.node("rules")
    if node is None:
        return None
    if not node.items:
        section.wrong(node, "rules", "a list of rules")
        return None
    found: dict[str, None] = {}
    for item in node.items:
        if isinstance(item.value, str) and item.value in RULES:
            found[item.value] = None
        else:
            word = item.value[:60] if isinstance(item.value, str) else ""
            near = hint(word, RULES, section.problems)
            told = repr(word) if word else kind(item)
            section.problems.add(item.place, f"on_alarm.rules: {told} is not a rule{near}")
    return tuple(found)


def check_rules(
    alarms: Alarms | None, on_alarm: OnAlarm | None, place: Place, problems: Problems
) -> None:
    """Note rules of `on_alarm`, which stands at `place`, that the grid has turned off."""
    off = {rule for rule, given in (alarms or {}).items() if given is None}
    for rule in (on_alarm and on_alarm.rules) or ():
        if rule in off:
            problems.add(place, f"on_alarm.rules: {rule} is off in alarms")
