"""Documents read and written by the types of their fields."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Never

import pytest

from sweeper.common.codec import (
    AtLeast,
    AtMost,
    Check,
    Clamp,
    Default,
    Key,
    Rest,
    Sparse,
    Time,
    Unstored,
    Whole,
    read,
    written,
)
from sweeper.errors import Damaged

NOTHING: Mapping[str, Never] = MappingProxyType({})


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(NamedTuple):
    name: str
    count: Annotated[int, AtLeast(1), AtMost(9)] = 1


class Outer(NamedTuple):
    inner: Inner
    several: tuple[Inner, ...]
    mode: Annotated[Literal["auto", "never"], Default("auto")]
    colour: Colour = Colour.RED
    source: Annotated[str | None, Key("from")] = None
    even: Annotated[int, Check(lambda number: number % 2 == 0, "even")] = 2
    share: Annotated[float, Clamp(0)] = 1.0
    labels: Mapping[str, str] = NOTHING
    pair: tuple[str, int] | None = None
    time: Sparse[Time | None] = None
    seen: Unstored[int] = 7
    others: Rest[Mapping[str, Mapping[str, object]]] = NOTHING
    document: Whole[Mapping[str, object]] = NOTHING


LEAST = {"inner": {"name": "a"}, "several": []}


def test_missing_and_null_keys_get_defaults_and_unknown_ones_are_ignored():
    given = {**LEAST, "colour": None, "newer": 5, "seen": 1}
    value = read(Outer, given, "x.json")
    assert value == Outer(Inner("a"), (), "auto", document=given)


def test_documents_are_read_back_as_written():
    value = Outer(
        Inner("a", 2), (Inner("b"),), "never", Colour.BLUE, "s", 4, 0.5, {"k": "v"}, ("p", 3),
        "2026-01-31T12:00:00Z", others={"slurm": {"mem": "3G"}},
    )  # fmt: skip
    document = written(value)
    assert document["from"] == "s" and document["colour"] == "blue"
    assert document["slurm"] == {"mem": "3G"} and "seen" not in document
    assert read(Outer, document | {"pair": ["p", 3]}, "x")._replace(document={}) == value
    assert "time" not in written(value._replace(time=None))


def test_a_lower_number_is_raised_to_its_bound():
    assert read(Outer, LEAST | {"share": -3.5}, "x").share == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "sometimes"}, 'x.json: mode: should be auto or never, not "sometimes"'),
        ({"inner": None}, "x.json: inner: should be an object, not null"),
        ({"inner": {}}, "x.json: inner.name: should be a string, but is missing"),
        ({"several": [{"name": "b"}, {"name": 1}]}, "x.json: several[1].name: should be a string"),
        ({"several": {}}, "x.json: several: should be a list, not an object"),
        ({"inner": {"name": "a", "count": 0}}, "x.json: inner.count: should be 1 or more, not 0"),
        ({"inner": {"name": "a", "count": 10}}, "x.json: inner.count: should be 9 or less, not 10"),
        ({"even": 3}, "x.json: even: should be even, not 3"),
        ({"even": True}, "x.json: even: should be a number, not true"),
        ({"even": 2.0}, "x.json: even: should be an integer, not 2.0"),
        ({"share": float("nan")}, "x.json: share: should be a number, not NaN"),
        ({"share": 10**40}, "x.json: share: should be a number, not a huge number"),
        ({"labels": {"k": 1}}, "x.json: labels.k: should be a string, not 1"),
        ({"colour": "green"}, 'x.json: colour: should be red or blue, not "green"'),
        ({"pair": ["p"]}, "x.json: pair: should be a list of 2 values, not a list"),
        ({"time": "noon"}, "x.json: time: should be a time such as 2026-01-31T12:00:00Z"),
        ({"from": 1}, "x.json: from: should be a string, not 1"),
    ],
)
def test_mistakes_name_the_file_the_place_and_the_expectation(change, message):
    with pytest.raises(Damaged) as error:
        read(Outer, LEAST | change, "x.json")
    assert str(error.value).startswith(message)


def test_a_document_that_is_no_object_is_named():
    with pytest.raises(Damaged, match=r"^x\.json: should be an object, not a list$"):
        read(Outer, [], "x.json")
