"""Arithmetic in references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import GridError
from sweeper.grid.arithmetic import MAX_TEXT, Uncomputable, parse
from sweeper.planner.plan import plan

VALUES = {"a": 5, "b": 0.5, "opt.lr": 1e-4, "name": "adam", "on": True, "none": None, "ls": [1]}


def compute(text):
    return parse(text).value(VALUES.__getitem__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1000 // 32", 31),
        ("a / 2", 2.5),
        ("4 / 2", 2.0),
        ("a % 3 - -a ** 2", 27),
        ("2 ** -3", 0.125),
        ("0.1 * 3", 0.3),
        ("opt.lr * sqrt(64 / 16)", 2e-4),
        ("min(a, 3, b)", 0.5),
        ("max(a, 3)", 5),
        ("round(a / 3)", 2),
        ("round(2 / 3, 2)", 0.67),
        ("log(exp(2))", 2.0),
        ("log(8, 2)", 3.0),
        ("int(7.9) + ceil(0.2) + floor(1.9) + abs(-1)", 10),
        ("a > 3", True),
        ("1 < a <= 4", False),
        ("a != 5 or not on", False),
        ("64 if name == 'adam' and on else 32", 64),
        ("'x' if name != 'adam' else 'y'", "y"),
        ("on == 1", False),
        ("10 ** 300", 10**300),
        ("\n  a\n  + 1 ", 6),
    ],
)
def test_arithmetic_has_this_value(text, value):
    result = compute(text)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "division by zero"),
        ("a // (a - 5)", "division by zero"),
        ("(-8) ** 0.5", "has no real value"),
        ("sqrt(-1)", "has no finite value (math domain error)"),
        ("1e308 * 10", "has no finite value"),
        ("9**9**9", "the result is an integer of more than 1000 bits"),
        ("9**9**9**9", "the result is an integer of more than 1000 bits"),
        ("10**300 * 10**300", "the result is an integer of more than 1000 bits"),
        ("round(1.5, -400)", "round takes an integer number of places, at most 300"),
        ("name + 1", "name is 'adam', not a number"),
        ("none + 1", "none is null, not a number"),
        ("on + 1", "on is true, not a number"),
        ("ls * 3", "ls is [1], not a number"),
        ("1 if a else 2", "a is 5, not true or false"),
        ("name < 'b'", "name is 'adam', not a number"),
        ("sqrt(1, 2)", "sqrt cannot be called with 2 numbers"),
    ],
)
def test_a_value_that_cannot_be_computed_says_why(text, message):
    with pytest.raises(Uncomputable) as caught:
        compute(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "(1).__class__", "a.b()", "open('x')", "eval('1')",
        "a[0]", "[1]", "(1, 2)", "{1: 2}", "[x for x in a]", "lambda: 1", "f'{a}'",
        "'%s' % a" + "[0]", "x := 1", "max(*a)", "round(1, ndigits=1)", "min()", "a if a", "1 << 9",
        "a @ a", "~a", "a is 1", "a in b", "1j", "...", "b'x'", "await a", "", "1 +", "a b",
        "1" * (MAX_TEXT + 1), "(" * 120 + "1" + ")" * 119, "\0",
    ],
)  # fmt: skip
def test_anything_else_is_refused_when_it_is_read(text):
    with pytest.raises(Uncomputable):
        parse(text)


OPERATORS = ["**", "//", "==", " if ", " else ", "[", "9**9**9", "1e308", "__class__"]
CALLS = ["min(", "max(", "round(", "sqrt(", "log(", "exp(", "int("]
KEYS = ["a", "opt.lr", "name", "on", "ls"]
PARTS = st.sampled_from([*"0123456789.+-*/%<>=()', ", *OPERATORS, *CALLS, *KEYS])


@given(st.lists(PARTS, max_size=40).map("".join))
def test_any_text_gives_a_bounded_value_or_says_why(text):
    try:
        value = compute(text)
    except Uncomputable as error:
        assert "\n" not in str(error)
    except KeyError:
        pass  # a key that the values do not have
    else:
        assert len(repr(value)) < 2 * MAX_TEXT


def configs(*overrides, **grid):
    return [run.config for run in plan({"name": "g", "command": ["echo"], **grid}, overrides).runs]


def test_values_are_computed_from_final_values():
    base = {"budget": 1000, "base_lr": 1e-4, "steps": "${budget // batch_size}"}
    base |= {
        "lr": "${base_lr * sqrt(batch_size / 32)}",
        "note": "b${batch_size * 2}, ${steps > 20}",
    }
    runs = configs("budget=640", base=base, grid={"batch_size": [32, 128]})
    assert [run["steps"] for run in runs] == [20, 5] and [run["lr"] for run in runs] == [1e-4, 2e-4]
    assert [run["note"] for run in runs] == ["b64, false", "b256, false"]


def test_axes_and_seeds_may_be_computed():
    runs = configs(base={"a": 3}, grid={"b": [1, "${a * 2}"]}, seeds=[5, 6])
    assert [run["b"] for run in runs] == [1, 1, 6, 6]
    runs = configs(base={"data_seed": "${seed * 10 + 1}"}, seeds=[5, 6])
    assert [run["data_seed"] for run in runs] == [51, 61]


def test_a_computed_value_has_the_id_of_the_written_one():
    grid = {"name": "g", "command": ["echo"]}
    written = plan({**grid, "base": {"a": 1, "b": 2e-4}})
    computed = plan({**grid, "base": {"a": 1, "b": "${a * 2 / 10000}"}})
    assert [run.id for run in written.runs] == [run.id for run in computed.runs]


GRID = "command: [echo]\nbase:\n  a: 5\n  x: {}\n"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('"${a // }"',
         "'x': '${a // }' is neither a key nor arithmetic like ${a // 2}: invalid syntax; write "
         "$${ for the text ${"),
        ("\"${open('x')}\"",
         "'x': \"${open('x')}\" is neither a key nor arithmetic like ${a // 2}: no function "
         "'open'; the functions are abs, ceil, exp, floor, int, log, max, min, round, sqrt; write "
         "$${ for the text ${"),
        ('"${a / (a - 5)}"', "x: ${a / (a - 5)}: division by zero"),
        ('"n${a / (a - 5)}"', "x: ${a / (a - 5)}: division by zero"),
        ('"${x + 1}"', "x: references form a cycle: x -> x"),
        ('"${aa + 1}"', "x: ${aa}: the grid gives no 'aa' here; did you mean 'a'?"),
        ('"${a-1}"',
         "x: ${a-1}: the grid gives no 'a-1' here (a difference needs spaces around -)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(tmp_path, value, problem):
    (tmp_path / "g.yaml").write_text(GRID.replace("{}", value))
    with pytest.raises(GridError) as caught:
        plan(tmp_path / "g.yaml")
    assert caught.value.problems == (f"{tmp_path}/g.yaml:4:6: {problem}",)


def test_the_recipe_does_not_refuse_a_value_that_could_not_be_computed():
    grid = {"name": "g", "recipe": "sft", "base": {"max_steps": "${4800 // 0}", "batch_size": "x"}}
    with pytest.raises(GridError) as caught:
        plan(grid)
    (step, size) = caught.value.problems
    assert step.endswith("max_steps: ${4800 // 0}: division by zero") and "batch_size" in size


def test_values_of_other_stages_are_not_computed_with():
    stages = {"a": {"command": ["echo"], "base": {"n": 1}}}
    stages["b"] = {"command": ["echo"], "from": {"stage": "a", "take": "each"}}
    stages["b"]["base"] = {"m": "${a.n * 2}"}
    with pytest.raises(
        GridError, match=r"no arithmetic with values of a stage: use \$\{a.key\} alone"
    ):
        plan({"name": "g", "stages": stages})


def test_keys_in_arithmetic_count_as_used_by_the_command():
    grid = {"name": "g", "command": ["echo", "{lr}", "{log_path}"], "base": {"lr": "${k * 2}"}}
    assert plan({**grid, "grid": {"k": [1, 2]}}).warnings == ()
