"""Conditions on runs: what they select, and which are refused."""

from typing import Any

import pytest

from sweeper.errors import UsageError
from sweeper.results.where import parse_where, select

RUNS: list[dict[str, Any]] = [
    {
        **{"id": "aa11", "name": "a", "state": "succeeded", "value": 0.5},
        "config": {"lr": 1e-4, "opt.name": "adam"},
    },
    {
        **{"id": "bb22", "name": "b", "state": "failed", "value": None},
        "config": {"lr": 1e-3, "opt.name": "sgd", "run": 5},
    },
    {
        **{"id": "cc33", "name": "c", "state": "failed", "value": 0.1},
        "config": {"lr": 1e-2, "name": "x", "on": True},
    },
]


def chosen(text: str) -> str:
    return "".join(run["name"] for run in select(parse_where(text), RUNS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr < 1e-3", "a"),
        ("lr<=1e-3", "ab"),
        ("lr >= 1e-3 and state = failed", "bc"),
        ("lr > 0.0001 AND lr != 0.01", "b"),
        ("state == 'succeeded'", "a"),
        ("opt.name = sgd", "b"),
        ('"opt.name" = "adam"', "a"),
        ("value = null", "b"),
        ("value < 1", "ac"),
        ("on = true", "c"),
        ("name = a", "a"),
        ("config.name = x", "c"),
        ("lr < adam", ""),
        ("run = aa11", "a"),
        ("id = aa11", "a"),
        ("config.run = 5", "b"),
        ("lr < " + "9" * 5000, "abc"),
        ("lr < 1e-3 or lr > 1e-3", "ac"),
        ("lr < 1e-3 or lr > 1e-3 and state = failed", "ac"),
        ("(lr < 1e-3 or lr > 1e-3) and state = failed", "c"),
        ("not lr < 1e-3 and not (state = failed and lr >= 1e-2)", "b"),
        ("not not lr < 1e-3", "a"),
        ("lr in (1e-4, 0.01)", "ac"),
        ("state not in ('failed')", "a"),
        ("value in (null)", "b"),
        ("value is missing", "b"),
        ("opt.name is not missing", "ab"),
        ("not on is missing", "c"),
        ('"on" = true', "c"),
        ("NOT lr IN (1e-4)", "bc"),
        ("name = and", ""),
    ],
)
def test_a_condition_selects_runs(text: str, expected: str):
    assert chosen(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "  ", "lr", "lr <", "< 1", "lr < 1 and", "lr < 1 lr", "lr = = 1", "name = 'open",
     "lr < 1 'and' lr > 0", "(lr < 1", "lr < 1)", "not", "lr in 1", "lr in (1", "lr in ()",
     "lr is 1", "lr is not", "lr not 1", "(" * 9000 + "lr < 1", "name = a,b", "()",
     "__import__('os')"],
)  # fmt: skip
def test_a_malformed_condition_is_refused_in_one_line(text: str):
    with pytest.raises(UsageError) as caught:
        parse_where(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match=r"did you mean 'state'"):
        chosen("sate = failed")
    assert select(parse_where("anything = 1"), []) == []  # without runs no key is unknown


def test_nested_keys_are_written_with_dots() -> None:
    nested = {"id": "1", "name": "a", "config": {"data": {"size": 8, "path": {}}, "lr": 1}}
    for text in ("data.size = 8", "config.data.size < 9", "lr = 1"):
        assert select(parse_where(text), [nested]) == [nested]
    assert select(parse_where("data.size > 8"), [nested]) == []


def test_values_are_compared_by_type():
    """True and 1 differ, as in grids and ids; `cancel` takes conditions too."""
    records = [{"config": {"x": value}} for value in (True, 1, 1.0, "true", False, 0, None)]

    def fitting(text: str) -> list[object]:
        return [record["config"]["x"] for record in select(parse_where(text), records)]

    def same(values: list[object], expected: list[object]) -> bool:
        return list(map(repr, values)) == list(map(repr, expected))

    assert same(fitting("x = true"), [True])
    assert same(fitting("x = 1"), [1, 1.0])
    assert same(fitting("x in (true, 0)"), [True, 0])
    assert same(fitting("x != true"), [1, 1.0, "true", False, 0, None])
    assert same(fitting("x >= 0"), [1, 1.0, 0])
    assert same(fitting("x = 'true'"), ["true"])
