"""Expansion of grids to runs, and mistakes in grids."""

import json

import pytest

from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.planner.product import MAX_RUNS

ECHO = ["echo", "{log_path}"]


def make(**grid):
    return plan({"name": "g", "command": ["echo"], **grid})


def configs(**grid):
    return [run.config for run in make(**grid).runs]


def problems(**grid):
    with pytest.raises(GridError) as caught:
        make(**grid)
    return list(caught.value.problems)


def test_the_last_axis_varies_fastest_and_seeds_innermost():
    planned = make(base={"c": 0, "a": 9}, grid={"a": [1, 2], "b": ["x", "y"]}, seeds=[5, 6])
    assert [run.config for run in planned.runs] == [
        {"c": 0, "a": a, "b": b, "seed": s} for a in (1, 2) for b in ("x", "y") for s in (5, 6)
    ]
    assert [(run.cell, run.seed) for run in planned.runs[:3]] == [
        ("a=1,b=x", 5),
        ("a=1,b=x", 6),
        ("a=1,b=y", 5),
    ]
    assert planned.axes == {"a": [1, 2], "b": ["x", "y"]}


def test_zipped_axes_move_together():
    assert configs(zip=[{"a": [1, 1, 2], "b": [3, 4, 3]}], grid={"c": [0, 1]}) == [
        {"c": c, "a": a, "b": b} for c in (0, 1) for a, b in ((1, 3), (1, 4), (2, 3))
    ]


def test_exclude_removes_cells_with_all_its_values():
    left = configs(
        base={"k": 1},
        grid={"a": [1, 2], "b": [1, 2]},
        exclude=[{"a": 1, "b": 2.0}, {"a": 2, "b": 1, "k": 1}, {"a": 2, "k": 3}],
    )
    assert left == [{"k": 1, "a": 1, "b": 1}, {"k": 1, "a": 2, "b": 2}]


def test_an_exclude_without_effect_gets_a_warning():
    warnings = make(command=[*ECHO, "{a}"], grid={"a": [1, 2]}, exclude=[{"a": 3}]).warnings
    assert warnings == ("exclude[0].a: this rule of exclude removes no cell",)


def test_exclude_of_an_unknown_axis_is_refused_but_not_of_a_dropped_one():
    grid = {"grid": {"rank": [1, 2], "b": [1, 2]}, "exclude": [{"rnk": 1}]}
    assert problems(**grid) == [
        "exclude[0].rnk: exclude: there is no axis 'rnk'; did you mean 'rank'?"
    ]
    dropped = {"name": "g", "command": ["echo"], **grid, "exclude": [{"rank": 1, "b": 1}]}
    planned = plan(dropped, ["~rank"])
    assert [run.config for run in planned.runs] == [{"b": 1}, {"b": 2}]
    assert "exclude names rank, which the command line dropped" in planned.warnings[0]


def test_included_cells_override_base_and_come_last():
    assert configs(base={"a": 0, "o": {"p": 1}}, grid={"b": [1]}, include=[{"o": None}]) == [
        {"a": 0, "o.p": 1, "b": 1},
        {"a": 0, "o": None},
    ]
    assert configs(include=[{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]


def test_an_axis_over_mappings_sets_several_values():
    planned = make(base={"opt": {"wd": 1, "lr": 3}}, grid={"opt": [{"lr": 1}, {"lr": 2, "wd": 0}]})
    assert [run.config for run in planned.runs] == [{"opt.lr": 1}, {"opt.lr": 2, "opt.wd": 0}]
    assert planned.axes == {"opt": [{"lr": 1}, {"lr": 2, "wd": 0}]}


def test_equal_configurations_are_refused():
    assert problems(grid={"a": [1, 2]}, include=[{"a": 2.0}]) == [
        "include[0].a: cells 'a=2' and 'a=2' have the same configuration"
    ]
    assert problems(zip=[{"a": [1, 1], "b": [2, 2.0]}]) == [
        "zip[0].a[1]: cells 'base' and 'base' have the same configuration"
    ]


def test_an_axis_given_twice_is_refused_despite_broken_references():
    twice = {"a": [0, "${b}"]}
    assert problems(zip=[twice, twice])[0] == "zip[1].a[0]: axis 'a' is given twice"


def test_an_empty_sweep_is_refused():
    assert problems(grid={"a": [1]}, exclude=[{"a": 1}]) == ["exclude: exclude leaves no cell"]


def test_too_many_runs_are_refused_before_expansion():
    axes = {f"a{n}": list(range(100)) for n in range(50)}
    assert problems(grid=axes) == [f"grid: {100**50} runs; a sweep has at most {MAX_RUNS}"]
    assert problems(grid={"a": list(range(1000))}, seeds=101) == [
        f"grid: 101000 runs; a sweep has at most {MAX_RUNS}"
    ]
    few = {name: axes[name] for name in ("a1", "a2", "a3")}
    assert problems(grid={"a": [0, 1]}, when=[{"if": {"a": 1}, "grid": few}]) == [
        f"when: more than {MAX_RUNS} cells; a sweep has at most {MAX_RUNS} runs"
    ]


def test_axes_without_effect_get_warnings():
    assert make(command=[*ECHO, "{a}{seed}"], grid={"a": [1], "seed": [1, 2]}).warnings == (
        "grid.a[0]: the axis a has only one value",
        "grid.seed[0]: the axis seed counts as replicates: use seeds",
    )
    zipped = make(command=[*ECHO, "{a}{seed}"], zip=[{"a": [1, 2], "seed": [1, 2]}])
    assert zipped.warnings == ("zip[0].seed[0]: the axis seed counts as replicates",)
    assert make(command=[*ECHO, "{a}"], grid={"a": [1, 2], "b": [1, 2]}).warnings == (
        "grid.b[0]: the command does not use the axis b",
    )
    assert make(command=[*ECHO, "{a}"], grid={"a": [1, 2]}).warnings == ()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"base": {"seed": 1}, "seeds": 2}, "base.seed: seed is already given by seeds"),
        ({"base": {"run": 1}}, "base.run: run is set by sweeper"),
        ({"command": ["echo", "{a}"]}, "command: command: no value for {a}"),
        ({"command": ["echo", "{seed}"]}, "command: command: {seed} needs seeds"),
        (
            {"command": ["echo", "{seed}"], "include": [{"seed": 1}, {"a": 1}]},
            "command: command: {seed} needs seeds",
        ),
        ({"command": ["echo", "{"]}, "command: command: stray brace in '{'; write {{ for a brace"),
        ({"launch": {"window": "{nope}"}}, "launch.window: launch.window: no value for {nope}"),
        (
            {"launch": {"window": "{w}"}, "grid": {"a": [1, 2]}, "include": [{"a": 1, "w": 2}]},
            "launch.window: launch.window: no value for {w} in cell a=1",
        ),
        (
            {"launch": {"window": "{w}"}, "include": [{"w": 2, "a": 1}, {"a": 2}]},
            "launch.window: launch.window: no value for {w} in cell a=2",
        ),
        (
            {"launch": {"python": "/no/python"}},
            "launch.python: launch.python: no interpreter /no/python",
        ),
        ({"launch": {"cwd": "/no/where"}}, "launch.cwd: launch.cwd: no folder /no/where"),
    ],
)
def test_mistakes_are_refused_at_their_place(grid, message):
    assert problems(**grid) == [message]


def test_a_seed_that_is_not_an_integer_is_a_plain_value():
    (run,) = make(command=["echo", "{seed}"], base={"seed": "abc"}).runs
    assert (run.seed, run.config) == (None, {"seed": "abc"})


def test_a_plan_without_validation_gets_a_warning():
    planned = plan({"name": "g", "recipe": "not.imported"}, validate=False)
    assert planned.warnings == ("recipe: not validated: the recipe may read values differently",)
    assert plan({"name": "g", "command": ECHO}, validate=False).warnings == ()


def test_the_document_of_a_plan_is_json_for_a_launch():
    planned = make(
        grid={"a": [1, 2]},
        seeds=1,
        metric={"name": "m", "goal": "maximize"},
        launch={"timeout": "2m", "window": "{a} {name}"},
    )
    document = json.loads(json.dumps(planned.document()))
    assert set(document) == {
        *("schema", "name", "grid", "grid_path", "extends", "overrides", "recipe", "service"),
        "metric",
        *("secrets", "launch", "axes", "runs", "wandb", "alarms", "on_alarm"),
    }
    assert document["runs"][1] == {
        "id": planned.runs[1].id,
        "name": "a=2,seed=0",
        "cell": "a=2",
        "seed": 0,
        "config": {"a": 2, "seed": 0},
    }
    assert document["metric"] == {"name": "m", "goal": "maximize", "at": "auto"}
    assert document["launch"]["timeout_s"] == 120.0
    assert document["recipe"]["command"] == ["echo"]
