"""The command line's changes to a grid."""

import pytest

from sweeper.errors import GridError
from sweeper.grid import grid_from_mapping, parse_grid
from sweeper.grid.overrides import flow
from sweeper.planner import plan

GRID = {
    "name": "o",
    "command": ["true"],
    "base": {"a": 1, "opt": {"lr": 1, "wd": 2}, "gone": None},
    "grid": {"b": [1, 2], "c": [1, 2]},
    "zip": [{"d": [1, 2], "e": [3, 4]}],
}


def configs(*overrides, grid=GRID):
    return [run.config for run in plan(grid, overrides).runs]


def test_a_value_replaces_a_base_value_or_an_axis():
    found = configs("a=5", "b=7", "d=0")
    assert len(found) == 4
    assert {(c["a"], c["b"], c["d"]) for c in found} == {(5, 7, 0)}
    assert sorted((c["c"], c["e"]) for c in found) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_list_sets_an_axis():
    assert sorted({c["b"] for c in configs("b=[3,4,5]")}) == [3, 4, 5]
    assert sorted({c["a"] for c in configs("a=[3,4]")}) == [3, 4]
    assert sorted({(c["d"], c["e"]) for c in configs("d=[9]")}) == [(9, 3), (9, 4)]
    assert list(plan(GRID, ["b=[3]", "new=[1,2]"]).axes) == ["b", "c", "d", "e", "new"]


def test_a_tilde_drops():
    found = configs("~b", "~d", "~opt", "~gone")
    assert all(not {"b", "d", "opt.lr", "opt.wd", "gone"} & c.keys() for c in found)
    assert len(found) == 4


def test_a_nested_value_is_reached_by_dots_and_replaced_as_a_whole():
    assert {(c["opt.lr"], c["opt.wd"]) for c in configs("opt.lr=9")} == {(9, 2)}
    assert {(c["opt.lr"], c.get("opt.wd")) for c in configs("opt={lr: 9}")} == {(9, None)}
    assert {c["opt"] for c in configs("opt=null")} == {None}
    assert {c["gone.x"] for c in configs("gone.x=1")} == {1}
    assert all("gone" not in c for c in configs("gone.x=1"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1e-4", 0.0001),
        ("a=no", "no"),
        ("a=", ""),
        ("a=null", None),
        ("a=#x: y", "#x: y"),
        ("a=--flag", "--flag"),
        ("a=x=y", "x=y"),
        ("a='1'", "1"),
        ('a="1\\n"', "1\n"),
        ("a=$(touch pwn);", "$(touch pwn);"),
        ("a=*x", "*x"),
        ("a=!x", "!x"),
        ("a=[[1, 2]]", [1, 2]),
        ("a={}", {}),
        ("a= 1", " 1"),
    ],
)
def test_values_are_read_as_written(text, value):
    assert {repr(c["a"]) for c in configs(text)} == {repr(value)}


def test_the_seeds_of_a_grid_can_be_changed():
    grid = {**GRID, "seeds": 2}
    assert {run.seed for run in plan(grid, ["seed=[7,8,9]"]).runs} == {7, 8, 9}
    assert {run.seed for run in plan(grid, ["seed=4"]).runs} == {4}
    assert {run.seed for run in plan(grid, ["~seed"]).runs} == {None}


def test_how_runs_are_executed_can_be_changed():
    launch = plan(GRID, ["launch.backend=local", "launch.max_parallel=2"]).launch
    assert (launch.backend, launch.max_parallel) == ("local", 2)
    with pytest.raises(GridError) as caught:
        plan(GRID, ["launch.max_parallel=0", "launch.backnd=x"])
    assert sorted(caught.value.problems, reverse=True) == [
        "override 'launch.max_parallel=0': launch.max_parallel is 1 to 1000000, not 0",
        "override 'launch.backnd=x': unknown key 'backnd' in launch (did you mean 'backend'?)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "write key=value, 'key=[a,b]' for an axis, or ~key"),
        ("~a=1", "write key=value, 'key=[a,b]' for an axis, or ~key"),
        ("=1", "'' cannot name a field"),
        ("a@=b", "'a@' cannot name a field"),
        ("...a=b", "'...a' cannot name a field"),
        ("a=[1,", "not YAML: expected the node content, but found '<stream end>'"),
        ("a=[]", "axis 'a' has no values"),
        ("~gon", "there is no 'gon' to drop (did you mean 'gone'?)"),
        ("a=x\x00", "holds the character U+0000, which no run can take"),
    ],
)
def test_a_wrong_one_is_told_with_its_text(text, message):
    with pytest.raises(GridError) as caught:
        plan(GRID, [text])
    (problem,) = caught.value.problems
    assert problem.startswith(f"override {text!r}: {message}".replace("\\", "\\"))


def test_twice_the_same_key_is_a_mistake():
    with pytest.raises(GridError, match="override 'a=2': 'a' is overridden twice"):
        plan(GRID, ["a=1", "a=2"])


def test_a_mapping_of_overrides_is_kept_as_text_that_means_the_same():
    overrides = {"a": "x: y", "b": [1, 0.5], "c": True, "new": float("inf"), "opt.lr": None}
    first = plan(GRID, overrides)
    assert first.overrides == ('a="x: y"', "b=[1, 0.5]", "c=true", "new=.inf", "opt.lr=null")
    assert plan(GRID, first.overrides).runs == first.runs


def test_flow_is_yaml_that_reads_back_the_same():
    value = {"a": [1, -0.5, 1e-7, None, True], "b": {"c": 'x"\n\\é'}, "d": [], "e": {}, "f": "no"}
    text = f"recipe: r\nbase: {{x: [{flow(value)}]}}"
    assert parse_grid(text, "g.yaml").base["x"].value == [value]
    assert grid_from_mapping({"name": "n", "recipe": "r", "base": {"x": [value]}}).base[
        "x"
    ].value == [value]
