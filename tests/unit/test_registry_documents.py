"""Documents that are printed or kept: any JSON reader takes them."""

import json
import math

import pytest

from sweeper.store.documents import strict


def test_what_json_has_no_number_for_is_a_name():
    document = {"a": [math.nan, math.inf, (-math.inf, 1.5)], "b": {1: {"c": True}}, "d": None}
    text = json.dumps(strict(document), allow_nan=False)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["NaN", "Infinity", ["-Infinity", 1.5]],
        "b": {"1": {"c": True}},
        "d": None,
    }


def test_the_original_is_left_alone():
    document = {"a": [math.nan]}
    strict(document)
    assert math.isnan(document["a"][0])
