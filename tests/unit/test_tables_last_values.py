"""The last number of a file without parsing all of it: correct, or left to the parser."""

import json
import math
import random

import pytest

from sweeper.metrics.objective import judged
from sweeper.metrics.rows import Point, merge, numbers, parse
from sweeper.metrics.tables.columns import last_number


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


PLAIN = [{"step": step, "loss": step / 7, "other": 1} for step in range(200)]
READ = {
    "plain": lines(*PLAIN),
    "compact": lines(*PLAIN).replace(b": ", b":").replace(b", ", b","),
    "gaps": lines(*PLAIN[::3]),
    "other keys after": lines(*PLAIN, {"step": 200, "late": 2}, {"step": 201, "late": 1}),
    "a text for NaN": lines(*PLAIN, {"step": 200, "loss": "NaN"}),
    "not a number": lines(*PLAIN, {"step": 200, "loss": math.nan}),
    "malformed at the end": lines(*PLAIN) + b'{"step": 200, "loss": }\n',
    "malformed on the way": lines(*PLAIN[:9]) + b'{"step": 9, loss}\n' + lines(*PLAIN[10:]),
    "large integers": lines(*PLAIN, {"step": 200, "loss": 2**80}),
    "two on a line": lines(*PLAIN[:50]) + lines(PLAIN[50], {"step": 900}).replace(b"\n", b"", 1),
    "one line": lines(PLAIN[5]),
}
LEFT = {
    "empty": b"",
    "null after numbers": lines(*PLAIN, {"step": 200, "loss": None}),
    "a text after numbers": lines(*PLAIN, {"step": 200, "loss": "diverged"}),
    "several rows without it": lines(*PLAIN, *({"step": 200 + i, "late": 1} for i in range(3))),
    "steps go back": lines(*PLAIN, PLAIN[3]),
    "steps repeat": lines(*PLAIN, PLAIN[-1]),
    "a step on the way is higher": lines(*PLAIN[:50], {"step": 500, "loss": 1}, *PLAIN[51:]),
    "a step of more digits": lines(*PLAIN[:50], {"step": 10**15, "loss": 1}, *PLAIN[51:]),
    "a step that is none": lines(*PLAIN[:50], {"step": "x"}, *PLAIN[50:]),
    "half a step": lines(*PLAIN[:50], {"step": 49.5, "loss": 1}, *PLAIN[50:]),
    "an exponent": lines(*PLAIN).replace(b'"step": 50,', b'"step": 5e9,'),
    "no step": lines(*PLAIN, {"loss": 3.0}),
    "another key first": lines(*PLAIN[:50], {"loss": 3.0, "step": 500}, *PLAIN[51:]),
    "torn": lines(*PLAIN) + b'{"step": 200, "lo',
    "no end of the last line": lines(*PLAIN)[:-1],
    "negative": lines({"step": -1, "loss": 1}, *PLAIN),
}


def by_parsing(data: bytes) -> Point:
    point = judged(numbers(merge([parse(data)]).rows, "loss"), "minimize", "last")
    assert point is not None and point.step is not None
    return Point(float(point.step), point.value)


@pytest.mark.parametrize("name", READ)
def test_a_quick_value_equals_the_parsed_one(name: str):
    point = last_number(READ[name], "loss")
    assert repr(point) == repr(by_parsing(READ[name]))


@pytest.mark.parametrize("name", LEFT)
def test_ambiguous_files_are_left_to_the_parser(name: str):
    assert last_number(LEFT[name], "loss") is None


def test_a_sparse_key_is_read_if_its_gap_is_usual():
    every = [row if row["step"] % 10 == 0 else {"step": row["step"]} for row in PLAIN]
    assert last_number(lines(*every), "loss") == Point(190.0, 190 / 7)
    assert last_number(lines(*every, {"step": 200}, {"step": 201}), "loss") is None
    assert last_number(lines({"step": 0, "rare": 1.0}, *PLAIN[1:]), "rare") is None


def test_a_file_damaged_anywhere_is_read_right_or_left_to_the_parser():
    rng = random.Random(4)
    plain = lines(*PLAIN[:12])
    count = 0
    for _ in range(4000):
        at = rng.randrange(len(plain))
        letter = rng.choice(b'0123456789{}",:. \n-eEx\\')
        data = plain[:at] + bytes([letter]) + plain[at + rng.randrange(2) :]
        point = last_number(data, "loss")
        if point is not None:
            count += 1
            assert repr(point) == repr(by_parsing(data)), data
    assert count > 2000
