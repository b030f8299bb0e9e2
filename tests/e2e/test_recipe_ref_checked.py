"""Configurations are checked as a run reads them; values that chz would change are mistakes."""

import textwrap

import pytest

from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.recipe.reference import FilledFields, Problem, inspect

pytestmark = pytest.mark.e2e

MODULE = """
import collections.abc, enum, pathlib, typing
from typing import Any, Callable, Literal, Sequence
import chz


class Color(enum.Enum):
    RED = "red"

@chz.chz
class Adam:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.999)
    hook: Callable[[], None] | None = None

class Plain:
    def __init__(self, size: int, fn: Callable = print):
        self.size = size

@chz.chz
class Config:
    log_path: str
    behavior_if_log_dir_exists: Literal["ask", "resume"] = "ask"
    number: float = 0.0
    count: int = 1
    flag: bool = False
    text: str = ""
    maybe: str | None = None
    either: str | int = 0
    union: list[int] | str = ""
    labels: tuple[str, ...] = ()
    words: list[str] = chz.field(default_factory=list)
    sizes: tuple[int, ...] = ()
    grid: list[list[int]] = chz.field(default_factory=list)
    names: Sequence[str] = ()
    anything: Any = None
    options: dict[str, Any] | None = None
    weights: dict[str, float] = chz.field(default_factory=dict)
    choice: Literal["a", "b"] = "a"
    color: Color = Color.RED
    path: pathlib.Path = pathlib.Path("x")
    optimizer: Adam = chz.field(default_factory=Adam)
    other: Adam | None = None
    blocks: list[Adam] = chz.field(default_factory=list)
    plain: Plain | None = None
    act: Callable[[int], int] | None = None
    kinds: list[type] = chz.field(default_factory=list)
    factory: typing.Callable = print
    half: int = chz.field(default=2, munger=lambda self, value: value // 2)

    @chz.validate
    def _even(self):
        if self.count % 2 == 0 and self.number > 5:
            raise ValueError("count must be odd when\\nnumber is above 5")

    @chz.validate
    def _positive(self):
        if self.X_half < 0:
            raise ValueError("half must not be negative")

if __name__ == "__main__":
    print(chz.entrypoint(Config))
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Return a function that checks configurations and returns problems and forms."""
    (tmp_path / "mod.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def checked(*configs):
        recipe, problems, *_ = inspect("mod:Config", configs)
        return problems, recipe.forms

    return checked


def test_values_that_reach_the_recipe_as_they_are(checked):
    problems, forms = checked(
        {"number": 1, "count": 3, "flag": True, "text": "a=b, 'c'", "maybe": None},
        {"number": float("inf"), "text": "", "maybe": "x", "either": 5, "half": 7},
        {"number": float("nan"), "text": "--help", "either": "five", "color": "RED"},
        {"text": "\n$(x);", "path": "/a b", "choice": "b", "words": ["a", "b c"]},
        {"sizes": [1, 2], "names": ["x"], "grid": [[1], [2, 3]], "words": []},
        {"optimizer.lr": 1, "optimizer.betas": [0.5], "other.lr": 0.25},
        {"blocks.0.lr": 1.5, "plain.size": 3, "weights.a": 0.5, "weights.b": 1},
        {"options.x": 0.5, "options.y": "text", "options.z": [1, 2]},
        {"options": {}, "weights": {}, "sizes": []},
        {"anything": "word"},
    )
    assert problems == []
    assert set(forms) <= {"options.z", "options", "weights", "anything"}


def test_what_the_worker_will_fill_in_is_filled_in(tmp_path, monkeypatch):
    (tmp_path / "mod.py").write_text(
        "import chz\nfrom typing import Literal\n"
        "@chz.chz\nclass Needs:\n"
        "    out: str\n    behavior_if_log_dir_exists: Literal['delete', 'resume']\n"
        "    @chz.validate\n    def _both(self):\n"
        "        if self.behavior_if_log_dir_exists != 'resume' or not self.out.startswith('/'):\n"
        "            raise ValueError(f'{self.out} {self.behavior_if_log_dir_exists}')\n"
        "@chz.chz\nclass Cannot:\n"
        "    out: str\n    behavior_if_log_dir_exists: Literal['delete'] = 'delete'\n"
        "if __name__ == '__main__': pass\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe, problems, *_ = inspect("mod:Needs", [{}], filled=FilledFields("out"))
    assert (problems, recipe.behavior_field) == ([], True)
    (problem,) = inspect("mod:Cannot", [{}], filled=FilledFields("out"))[1]
    assert "behavior_if_log_dir_exists" in problem.message


def test_another_form_is_found_where_the_usual_one_would_change_a_value(checked):
    problems, forms = checked(
        {"words": ["a,b", "[c"], "anything": "1", "names": ["", "x"]},
        {"words": ["plain"], "anything": [1, "2"]},
        {"options": {"odd key": [1, {"x": None}]}, "anything": {"k": True}},
    )
    assert problems == []
    assert forms["anything"] == "literal"


def test_what_had_passed_is_seen_again_when_its_key_is_written_in_another_form(checked):
    # `[True]` only passes as a literal, and then a plain text would get quotes.
    problems, forms = checked({"union": "x"}, {"number": 1}, {"union": [True]})
    assert forms == {"union": "literal"}
    assert problems == [
        Problem(0, "union", 'union takes list[int] | str: "x" would reach the recipe as "\'x\'"')
    ]


def test_a_list_in_a_list_of_strings_is_refused(checked):
    # The first is written element by element, and then the second's element would be split.
    problems, _ = checked({"labels": ["a,b"]}, {"labels": [["a"]]})
    assert problems == [Problem(1, "labels", 'labels takes tuple[str, ...], not [["a"]]')]


def test_values_that_chz_would_change_are_refused(checked):
    problems, _ = checked(
        {"maybe": "None", "either": "1", "flag": 1, "text": 5, "number": "1e-4", "count": "2"}
    )
    assert {(p.key, p.message) for p in problems} == {
        ("maybe", 'maybe takes str | None: "None" would reach the recipe as null'),
        ("either", 'either takes str | int: "1" would reach the recipe as 1'),
        ("flag", "flag takes bool: 1 would reach the recipe as true"),
        ("text", 'text takes str: 5 would reach the recipe as "5"'),
        ("number", 'number takes float: "1e-4" would reach the recipe as 0.0001'),
        ("count", 'count takes int: "2" would reach the recipe as 2'),
    }


def test_all_values_that_chz_refuses_are_reported_at_once(checked):
    problems, _ = checked(
        {"number": "abc", "count": 1.0, "flag": "maybe", "choice": "c", "nmber": 1, "color": "x"},
        {"optimizer.lrr": 1, "optimizer.lr": "x", "sizes": [1, "b"], "half": -1},
    )
    assert {p.key: p.message for p in problems} == {
        "optimizer.lrr": "Config has no field 'optimizer.lrr'; did you mean 'optimizer.lr'?",
        "number": 'number takes float, not "abc"',
        "count": "count takes int, not 1.0",
        "flag": 'flag takes bool, not "maybe"',
        "choice": "choice takes Literal['a', 'b'], not \"c\"",
        "nmber": "Config has no field 'nmber'; did you mean 'number'?",
        "color": 'color takes Color, not "x"',
        "optimizer.lr": 'optimizer.lr takes float, not "x"',
        "sizes": 'sizes takes tuple[int, ...], not [1, "b"]',
        "half": "half: half must not be negative (ValueError)",
    }


def test_code_is_never_taken_from_a_grid(checked, tmp_path):
    (tmp_path / "evil.py").write_text("open('pwned', 'w').close()\ndef f(): pass\n")
    problems, _ = checked(
        {"act": "evil:f", "kinds": ["evil:f"], "factory": "evil:f", "optimizer": "evil:f"},
        {"other": "Adam", "optimizer.hook": "evil:f", "plain.fn": "evil:f"},
        {"number": "lambda: __import__('evil')", "plain": "lambda: __import__('evil')"},
        {"blocks.0": "evil:f", "blocks": ["evil:f"]},
    )
    messages = {p.key: p.message for p in problems}
    # Python versions write optional callables differently.
    assert messages.pop("act").startswith("act takes code (")
    assert messages.pop("optimizer.hook").startswith("optimizer.hook takes code (")
    assert messages == {
        "kinds": "kinds takes code (list[type]), which a grid cannot give",
        "factory": "factory takes code (Callable), which a grid cannot give",
        "optimizer": "optimizer is an object: set its fields, as in optimizer.<field>",
        "other": "other is an object: set its fields, as in other.<field>",
        "plain.fn": "plain.fn takes code (Callable), which a grid cannot give",
        "number": "number takes float, not \"lambda: __import__('evil')\"",
        "plain": "plain takes mod.Plain | None, not \"lambda: __import__('evil')\"",
        "blocks.0": "blocks.0 is an object: set its fields, as in blocks.0.<field>",
        "blocks": 'blocks takes list[mod.Adam], not ["evil:f"]',
    }
    assert not (tmp_path / "pwned").exists()


def test_a_failing_validator_names_its_fields(checked):
    problems, _ = checked({"count": 2, "number": 1}, {"count": 1, "number": 9},
                          {"count": 4, "number": 9})  # fmt: skip
    (problem,) = problems
    assert problem == Problem(2, "count", "count: count must be odd when (ValueError)")


def test_missing_values_are_reported_once(tmp_path, monkeypatch):
    (tmp_path / "mod.py").write_text(
        "import chz\n@chz.chz\nclass C:\n"
        "    log_path: str\n    a: int\n    b: str\n    c: int = 0\n"
        "if __name__ == '__main__': chz.entrypoint(C)\n"
    )
    monkeypatch.chdir(tmp_path)
    _, problems, *_ = inspect("mod", [{"c": 1}, {"c": 2}])
    assert problems == [Problem(None, None, "C needs a value for a, b")]
    _, problems, *_ = inspect("mod", [{"a": "x", "b": "y"}])
    assert problems == [Problem(0, "a", 'a takes int, not "x"')]


def test_a_mistake_of_many_runs_is_reported_once_with_its_place(tmp_path, monkeypatch):
    (tmp_path / "mod.py").write_text(MODULE)
    (tmp_path / "g.yaml").write_text(
        textwrap.dedent("""\
        recipe: mod:Config
        base: {text: 5, optimizer: {lrr: 1}}
        grid:
          count: [1, x, 3]
          number: [1, 9]
          sed: [1, 2]
        zip: [{choice: [a, c], flag: [true, 1]}]
        include: [{half: -2}]
        seeds: 3
        """)
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GridError) as caught:
        plan("g.yaml", ["maybe=5"])
    assert list(caught.value.problems) == [
        "override 'maybe=5': maybe takes str | None: 5 would reach the recipe as \"5\"",
        'g.yaml:2:14: text takes str: 5 would reach the recipe as "5"',
        "g.yaml:2:34: Config has no field 'optimizer.lrr'; did you mean 'optimizer.lr'?",
        'g.yaml:4:14: count takes int, not "x"',
        "g.yaml:6:9: Config has no field 'sed'",
        "g.yaml:7:20: choice takes Literal['a', 'b'], not \"c\"",
        "g.yaml:7:37: flag takes bool: 1 would reach the recipe as true",
        "g.yaml:8:18: half: half must not be negative (ValueError)",
        "g.yaml:9:8: seeds: Config has no field 'seed'",
    ]


def test_what_the_worker_fills_in_is_not_the_grids(tmp_path, monkeypatch):
    (tmp_path / "mod.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    grid = {"name": "g", "recipe": "mod:Config"}
    planned = plan({**grid, "grid": {"number": [1, 2]}})
    assert (planned.recipe.behavior_field, planned.recipe.log_path_field) == (True, "log_path")
    assert all(run.config.keys() == {"number"} for run in planned.runs)
    with pytest.raises(GridError) as caught:
        plan({**grid, "base": {"log_path": "/x", "behavior_if_log_dir_exists": "ask"}})
    assert caught.value.problems == (
        "base.log_path: log_path is set by sweeper",
        "base.behavior_if_log_dir_exists: behavior_if_log_dir_exists is set by sweeper",
    )
    assert plan({**grid, "launch": {"log_path_field": "text"}, "base": {"log_path": "/x"}})


def test_ids_and_names_do_not_depend_on_the_check(tmp_path, monkeypatch):
    (tmp_path / "mod.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    grid = {"name": "g", "recipe": "mod:Config", "grid": {"number": [1, 0.5]}}
    assert plan(grid).runs == plan(grid, validate=False).runs
