"""Checkpoints on the same prompts: what only one of them solves, and how certain that is."""

import math
import re

import pytest

from sweeper.analysis.side_by_side import compare_sides, lines, page
from sweeper.results.items import Answer


def answers(scores, text="{}", clusters=None):
    return [
        Answer(
            "t", f"q{n}", score, prompt=f"<{n}>", text=text.format(n), right="yes",
            cluster=clusters[n] if clusters else "",
        )
        for n, score in enumerate(scores)
    ]  # fmt: skip


def test_gained_and_lost_items_are_listed():
    sides = compare_sides({"a": answers([1, 1, 0, 0]), "b": answers([1, 0, 1, 0])})
    [against] = sides.against
    assert [item.item for item in against.gained] == ["q2"]
    assert [item.item for item in against.lost] == ["q1"]
    assert (sides.means, against.difference) == ((0.5, 0.5), 0.0) and against.low < 0 < against.high


def test_only_what_all_have_answered_is_compared():
    sides = compare_sides({"a": answers([1, 1, 1]), "b": answers([0, 0]), "c": answers([1, 0])})
    assert [item.item for item in sides.prompts] == ["q0", "q1"]
    assert [item.difference for item in sides.against] == [-1.0, -0.5]


def test_samples_of_an_item_are_averaged_first():
    twice = [*answers([1, 0]), *answers([1, 1])]
    sides = compare_sides({"a": answers([0, 0]), "b": twice})
    assert [item.scores for item in sides.prompts] == [(0.0, 1.0), (0.0, 0.5)]
    assert sides.prompts[0].texts == (("0",), ("0", "0"))


def test_items_that_belong_together_make_the_interval_wider():
    first, second = [0, 1] * 20, [n % 4 < 2 for n in range(40)]
    apart = compare_sides({"a": answers(first), "b": answers(second)})
    groups = [f"page {n % 4}" for n in range(40)]
    together = compare_sides(
        {"a": answers(first, clusters=groups), "b": answers(second, clusters=groups)}
    )
    widths = [item.against[0].high - item.against[0].low for item in (apart, together)]
    assert widths[1] > 1.5 * widths[0]


def test_unscored_items_are_shown_and_not_compared():
    sides = compare_sides({"a": answers([math.nan]), "b": answers([math.nan])})
    assert (sides.means, sides.against) == ((None, None), ()) and "a: not judged" in lines(sides)
    assert len(sides.document["items"]) == 1


def test_the_page_is_whole_and_shows_text_as_text():
    text = page(compare_sides({"<a>": answers([1, 0], "<b>{}"), "b": answers([0, 0])}))
    assert "&lt;b&gt;0" in text and "<b>" not in text and "&lt;a&gt;" in text
    assert not re.search(r"https?://|src=|<script", text)
    assert text.index("&lt;0&gt;") < text.index("&lt;1&gt;")  # items that differ come first
    assert lines(compare_sides({"a": answers([1])}))[1] == "a: mean score 1.000"


@pytest.mark.parametrize("scores", [[1], []])
def test_few_items_have_no_interval(scores):
    sides = compare_sides({"a": answers(scores), "b": answers(scores)})
    assert [item.low for item in sides.against] == [None] * len(sides.against)
