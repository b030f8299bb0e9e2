"""Axes that are ranges, in a grid and on the command line."""

import math

import pytest

from sweeper.errors import GridError
from sweeper.planner.plan import plan


def values(axis, *overrides):
    grid = {"name": "g", "command": ["echo", "{a}"], "grid": {"a": axis}}
    return [run.config["a"] for run in plan(grid, overrides).runs]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ({"linspace": [0, 1, 5]}, [0.0, 0.25, 0.5, 0.75, 1.0]),
        ({"linspace": [1, 0, 3]}, [1.0, 0.5, 0.0]),
        ({"linspace": [0, 1, 4]}, [0.0, 0.33333, 0.66667, 1.0]),
        ({"linspace": [0, 100, 5]}, [0, 25, 50, 75, 100]),
        ({"linspace": [0, 100.0, 5]}, [0.0, 25.0, 50.0, 75.0, 100.0]),
        ({"logspace": [1e-5, 1e-2, 4]}, [1e-5, 1e-4, 1e-3, 1e-2]),
        ({"logspace": [1e-5, 1e-4, 3]}, [1e-5, 3.162e-5, 1e-4]),
        ({"logspace": [8, 512, 7]}, [8, 16, 32, 64, 128, 256, 512]),
        ({"logspace": [0.3, 0.7, 2]}, [0.3, 0.7]),
        ({"range": [1, 9, 2]}, [1, 3, 5, 7]),
        ({"range": [1, 10, 2]}, [1, 3, 5, 7, 9]),
        ({"range": [0, 3]}, [0, 1, 2]),
        ({"range": [3, 0, -1]}, [3, 2, 1]),
        ({"range": [0, 0.4, 0.1]}, [0.0, 0.1, 0.2, 0.3]),
    ],
)
def test_a_range_has_these_values(axis, expected):
    got = values(axis)
    assert got == expected and [type(value) for value in got] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ({"linspace": [0, 1]}, "linspace takes [start, end, count], each at most 1e+15"),
        ({"linspace": 3}, "linspace takes [start, end, count], each at most 1e+15"),
        ({"linspace": [0, math.inf, 3]}, "linspace takes [start, end, count], each at most 1e+15"),
        ({"linspace": [0, 1, 2.5]},
         "linspace takes a count of values as its third number, 2 to 10000"),
        ({"linspace": [0, 1, True]}, "linspace takes [start, end, count], each at most 1e+15"),
        ({"linspace": [2, 2, 3]}, "linspace takes a start and an end that differ"),
        ({"logspace": [0, 1, 3]}, "logspace takes a start and an end above 0"),
        ({"range": [1, 9, 0]}, "range takes a step that is not 0"),
        ({"range": [9, 1]}, "range takes a step that leads from the start towards the end "
         "(the end itself is not a value)"),
        ({"range": [0, 1, 1e-9]}, "range takes at most 10000 values"),
    ],
)  # fmt: skip
def test_wrong_numbers_are_one_line(axis, message):
    with pytest.raises(GridError) as caught:
        values(axis)
    (name,) = axis
    assert caught.value.problems == (f"grid.a.{name}: axis 'a': {message}",)


def test_a_misspelled_range_is_recognised():
    with pytest.raises(GridError, match=r"one of linspace, logspace, range; did you mean 'lins"):
        values({"linspce": [0, 1, 5]})


def test_a_range_may_be_zipped_and_drawn_from():
    zipped = {"name": "g", "command": ["echo"], "zip": [{"a": {"range": [1, 3]}, "b": ["x", "y"]}]}
    assert [(r.config["a"], r.config["b"]) for r in plan(zipped).runs] == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=1e-3,1e-4", [1e-3, 1e-4]),
        ("a=adam,sgd", ["adam", "sgd"]),
        ("a=true,null,3", [True, None, 3]),
        ("a={range: [1, 4]}", [1, 2, 3]),
        ("a=x, y", ["x, y"]),
        ("a='x,y'", ["x,y"]),
        ("a=x,", ["x,"]),
        ("a=,", [","]),
    ],
)
def test_commas_on_the_command_line_are_an_axis(override, expected):
    assert values([7, 8], override) == expected


def test_a_key_of_launch_takes_no_axis():
    grid = {"name": "g", "command": ["echo"]}
    assert plan(grid, ["launch.window=a,b"]).launch.window == "a,b"


def test_a_value_twice_is_refused_as_in_a_list():
    with pytest.raises(GridError, match="axis 'a' has the value 1 twice"):
        values([7], "a=1,1.0")
