"""Each configuration is parsed once. The cache neither hides nor adds problems."""

import itertools
import textwrap

import pytest

from sweeper.errors import GridError
from sweeper.planner.plan import plan
from sweeper.recipe.reference import inspect

pytestmark = pytest.mark.e2e

MODULE = """
from typing import Literal
import chz

@chz.chz
class Inner:
    lr: float = 0.1
    name: Literal["adam", "sgd"] = "adam"

    @chz.validate
    def _sgd_is_slow(self):
        if self.name == "sgd" and self.lr > 1:
            raise ValueError("lr is too much for sgd")

@chz.chz
class Config:
    log_path: str
    opt: Inner = chz.field(default_factory=Inner)
    rank: int = 8
    alpha: float = 1.0
    union: list[int] | str = ""

    @chz.validate
    def _together(self):
        if self.rank > 8 and self.alpha < 1:
            raise ValueError("alpha is too little for this rank")

if __name__ == "__main__":
    chz.nested_entrypoint(lambda config: None)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mod.py").write_text(textwrap.dedent(MODULE))


def problems_of(configs):
    _, problems, *_ = inspect("mod.py:Config", configs)
    return [(problem.key, problem.message) for problem in problems]


def test_many_configurations_have_the_problems_of_each_alone():
    values = {
        "opt.lr": [0.5, 2.0, "fast"],
        "opt.name": ["adam", "sgd"],
        "rank": [4, 16],
        "alpha": [0.5, 1.0],
    }
    configs = [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]
    together = problems_of(configs)
    alone = list(dict.fromkeys(line for config in configs for line in problems_of([config])))
    assert together == alone
    assert len(together) == 3
    assert problems_of(configs[::-1]) != []
    assert set(problems_of(configs[::-1])) == set(together)


def test_a_form_found_late_is_used_for_what_was_seen_before():
    configs = [{"rank": n, "union": value} for n in (1, 2) for value in ("x", [1, 2], [True])]
    recipe, problems, *_ = inspect("mod.py:Config", configs)
    assert recipe.forms == {"union": "literal"}
    again, problems, *_ = inspect("mod.py:Config", configs[::-1])
    assert (again.forms, {problem.key for problem in problems}) == (recipe.forms, {"union"})


def test_mistakes_of_every_kind_are_reported_at_once(tmp_path):
    (tmp_path / "g.yaml").write_text(
        "recipe: mod.py:Config\nbase: {rnk: 1, opt: {nam: adam}}\nseeds: 0\nmetrc: {}\n"
        "grid: {alpha: [1, x], rank: 3}\n"
    )
    with pytest.raises(GridError) as caught:
        plan("g.yaml")
    assert list(caught.value.problems) == [
        "g.yaml:2:13: Config has no field 'rnk'; did you mean 'rank'?",
        "g.yaml:2:27: Config has no field 'opt.nam'; did you mean 'opt.name'?",
        "g.yaml:3:8: seeds must be 1 to 10000, not 0",
        "g.yaml:4:1: unknown key 'metrc'; did you mean 'metric'?",
        'g.yaml:5:19: alpha takes float, not "x"',
        "g.yaml:5:29: axis 'rank' is an integer; it takes a list (a single value belongs in base)",
    ]
    (tmp_path / "h.yaml").write_text("recipe: nope\nbase: {a: ''}\nseeds: 0\n")
    with pytest.raises(GridError) as caught:
        plan("h.yaml")
    assert [line[:10] for line in caught.value.problems] == ["h.yaml:1:9", "h.yaml:3:8"]


COUNTING = """
parse = chz.Blueprint.make_from_argv

def counted(self, *arguments, **named):
    with open("parsed", "a") as file:
        file.write(".")
    return parse(self, *arguments, **named)

chz.Blueprint.make_from_argv = counted
"""


def test_a_configuration_of_values_that_were_parsed_before_is_not_parsed(tmp_path):
    (tmp_path / "mod.py").write_text(textwrap.dedent(MODULE) + COUNTING)
    ranks, rates = [1, 2, 3, 4, 5, 6, 7, 8], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    configs = [{"rank": a, "opt.lr": b} for a, b in itertools.product(ranks, rates)]
    assert problems_of(configs) == []
    assert len((tmp_path / "parsed").read_text()) == len(ranks) + len(rates) - 1
