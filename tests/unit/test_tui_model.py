"""`sweeper watch`: ranks, remaining times, and total steps."""

import math

import pytest

from sweeper.tui.model import ranks, remaining, sweep_remaining, total_steps


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_finite_values_are_ranked(goal: str) -> None:
    values = {"a": 1.0, "b": math.nan, "c": None, "d": 3.0, "e": 1.0, "f": math.inf}
    expected = {"a": 1, "e": 1, "d": 3} if goal == "minimize" else {"d": 1, "a": 2, "e": 2}
    assert ranks(values, goal) == expected


def test_remaining_times_are_estimated() -> None:
    assert remaining(0.5, None, 0.0, 10.0) == 10.0
    assert remaining(0.5, (0.0, 0.25), None, 10.0) == 20.0
    assert remaining(0.5, (9.0, 0.5), None, 10.0) is None
    assert remaining(None, None, 0.0, 10.0) is None
    assert remaining(1.0, None, 0.0, 10.0) == 0.0
    assert sweep_remaining([10.0, 20.0], 3, 30.0, 2) == 70.0  # 10+30+30, 20+30
    assert sweep_remaining([10.0, None], 0, 30.0, 2) == 30.0
    assert sweep_remaining([], 3, None, 2) is None
    assert sweep_remaining([None], 3, None, 2) is None
    assert sweep_remaining([10.0, 20.0, 30.0], 1, 10.0, 1) == 40.0  # the limit is lower now
    assert sweep_remaining([], 0, None, 2) == 0.0


def test_the_total_of_steps_is_read_from_the_configuration() -> None:
    assert total_steps({"max_steps": 5}, {"max_steps": 9}) == 5
    assert total_steps({}, {"max_steps": 9}) == 9
    assert total_steps({"max_steps": True, "n_batches": 3}, {}) == 3
    assert total_steps({"max_steps": math.inf}, {}) is None
    assert total_steps({"max_steps": "many"}, {}) is None
