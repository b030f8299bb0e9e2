"""Documents that any JSON reader accepts."""

import json
import math

import pytest

from sweeper.store.documents import strict


def test_nan_and_infinities_become_texts():
    document = {"a": [math.nan, math.inf, (-math.inf, 1.5)], "b": {1: {"c": True}}, "d": None}
    text = json.dumps(strict(document), allow_nan=False)
    assert math.isnan(document["a"][0])  # the original is not changed
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["NaN", "Infinity", ["-Infinity", 1.5]],
        "b": {"1": {"c": True}},
        "d": None,
    }
