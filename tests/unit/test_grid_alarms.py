"""The sections `alarms` and `on_alarm` of a grid: their values, and the places of mistakes."""

import pytest

from sweeper.errors import GridError
from sweeper.grid import parse_grid
from sweeper.planner.plan import plan
from sweeper.sweep.plan import OnAlarm


def test_alarm_sections_are_read():
    grid = parse_grid(
        "recipe: r\nalarms: {spike: off, nan: on, kl: {above: 1}, stalled: {after: 2m}}\n"
        "on_alarm: {run: [notify, '{name}', 3], stop: sweep, rules: [nan, kl, nan]}",
        "g.yaml",
    )
    assert grid.alarms == {"spike": None, "kl": {"above": 1.0}, "stalled": {"after": 120.0}}
    assert grid.on_alarm == OnAlarm(("notify", "{name}", "3"), "sweep", ("nan", "kl"))
    empty = parse_grid("recipe: r", "g.yaml")
    assert (empty.alarms, empty.on_alarm) == (None, None)


def test_alarm_sections_are_in_the_plan_and_change_no_id():
    grid = {"name": "v", "recipe": "sft", "base": {"lora_rank": 8}}
    more = {"alarms": {"kl": "off"}, "on_alarm": {"stop": "run"}}
    bare, changed = (plan(g, validate=False) for g in (grid, grid | more))
    assert bare.runs[0].id == changed.runs[0].id
    assert (bare.document()["alarms"], bare.document()["on_alarm"]) == ({}, None)
    assert changed.document()["alarms"] == {"kl": None}
    assert changed.document()["on_alarm"] == {"run": None, "stop": "run", "rules": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alarms: {klt: off}", "2:10: unknown key 'klt' in alarms; did you mean 'kl'?"),
        (
            "alarms: {kl: 1}",
            "2:14: alarms.kl is an integer; it takes `off`, or a mapping of above, ",
        ),
        ("alarms: {nan: 1}", "2:15: alarms.nan is an integer; it takes `on` or `off`"),
        ("alarms: {kl: {abov: 1}}", "2:15: unknown key 'abov' in alarms.kl; did you mean 'above'?"),
        ("alarms: {kl: {above: no}}", "2:22: alarms.kl.above is a string; it takes a number from"),
        ("alarms: {kl: {steps: 0}}", "2:22: alarms.kl.steps must be 1 to 50, not 0"),
        ("alarms: {length: {steps: 31}}", "2:26: alarms.length.steps must be 1 to 30, not 31"),
        ("alarms: {paused: {after: x}}", "2:26: alarms.paused.after takes a duration such as"),
        ("alarms: {heartbeat: {after: 1s}}", "2:29: alarms.heartbeat.after must be at least 15s"),
        ("on_alarm: {rules: [nan]}", "2:11: on_alarm needs `run: [COMMAND, ...]`, `stop: run` or"),
        ("on_alarm: {stop: runs}", "2:18: on_alarm.stop: 'runs' is not one of run, sweep"),
        ("on_alarm: {stop: run, rules: [klt]}", "2:31: on_alarm.rules: 'klt' is not a rule; did"),
        ("on_alarm: {run: [a, '{nme}']}",
         "2:21: on_alarm.run: no value for {nme}; write one of run,"),
        ("on_alarm: {run: [a, '}']}", "2:21: on_alarm.run: a stray brace"),
        ("alarms: {kl: off}\non_alarm: {stop: run, rules: [nan, kl]}",
         "3:11: on_alarm.rules: kl is off in alarms"),
        ("on_alarm: {run: a b}", "2:17: on_alarm.run is a string; it takes a list such as"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(text, message):
    with pytest.raises(GridError) as caught:
        parse_grid(f"recipe: r\n{text}", "g.yaml")
    [problem] = caught.value.problems
    assert problem.startswith(f"g.yaml:{message}")
