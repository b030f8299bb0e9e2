"""Which answers a report shows side by side, and that a page stays small."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.analysis.comparison.items import Compared, compare
from sweeper.analysis.findings.transcripts import Ends, transcripts_of
from sweeper.results.items import Answer

Scores = Mapping[str, list[dict[str, float]]]


def _answer(item: str, score: float, text: str = "said") -> Answer:
    return Answer("t", item, score, prompt=f"{item}?", text=text, right="42")


def _compared(scores: Scores) -> Compared:
    comparison = compare(scores, "t")
    assert comparison is not None
    return comparison


@pytest.fixture
def study() -> Callable[..., Any]:
    """Return a function that makes a stub of a study from the names of cells."""

    def make(*cells: str) -> Any:
        named = [SimpleNamespace(name=cell, settings={}, baseline=False) for cell in cells]
        return SimpleNamespace(ranking=SimpleNamespace(cells=named))

    return make


def test_solved_items_are_judged_by_mean_scores():
    runs = {
        "a": [{"x": 1.0, "y": 0.5, "z": 0.0, "w": 1.0}, {"x": 1.0, "y": 0.5, "z": 0.4, "w": 1.0}],
        "b": [{"x": 0.0, "y": 0.4, "z": 1.0, "w": 1.0}],
        "c": [{"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}],
    }
    alone = {
        (entry.cell, entry.other): (entry.count, entry.items) for entry in _compared(runs).alone
    }
    assert alone == {
        ("a", "b"): (2, ("x", "y")),
        ("b", "a"): (1, ("z",)),
        ("a", "c"): (2, ("x", "y")),
        ("b", "c"): (1, ("z",)),
    }


def test_rewards_beyond_0_to_1_count_no_item_as_solved():
    assert _compared({"a": [{"x": 3.0, "y": 1.0}], "b": [{"x": 0.0, "y": 1.0}]}).alone == ()


def test_a_right_answer_stands_beside_a_wrong_one(study):
    comparison = _compared({"a": [{"x": 1.0, "y": 1.0}], "b": [{"x": 0.0, "y": 1.0}]})
    ends = {
        ("a", "x"): Ends(_answer("x", 1, "a long way" * 1000), _answer("x", 1, "other")),
        ("b", "x"): Ends(_answer("x", 0.25, "nearly"), _answer("x", 0, "no")),
    }
    made = transcripts_of(study("b", "a"), comparison, ends, 10_000)
    assert made.cells == ("a", "b")
    [(count, (beside,))] = made.pairs.values()
    assert (count, beside.failed, beside.scores, beside.right) == (1, "no", (1, 0), "42")
    assert "[... 6,000 characters ...]" in beside.solved and len(beside.solved) < 4100


def test_where_the_room_is_spent_the_rest_is_counted_and_not_shown(study):
    items = [f"q{number}" for number in range(5)]
    comparison = _compared({
        "a": [dict.fromkeys(items, 1.0) | {"z": 0.0}],
        "b": [dict.fromkeys(items, 0.0) | {"z": 1.0}],
    })  # fmt: skip
    ends = {
        (cell, item): Ends(_answer(item, 1, "x" * 100), _answer(item, 0, "y" * 100))
        for cell in "ab"
        for item in (*items, "z")
    }
    made = transcripts_of(study("a", "b"), comparison, ends, 3 * 210)
    shown = {place: (count, len(beside)) for place, (count, beside) in made.pairs.items()}
    assert shown == {(0, 1): (5, 2), (1, 0): (1, 1)}  # each pair gets one before any gets two
