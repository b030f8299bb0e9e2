import math
import random

import pytest

from sweeper.recipes import dpo

RATIOS = [(0.4, -1.2), (-3.0, 2.5), (0.0, 0.0), (60.0, -700.0)]


def loss(ratios, beta):
    """Return the DPO loss as published."""
    margins = [beta * (chosen - rejected) for chosen, rejected in ratios]
    return sum(-math.log(1 / (1 + math.exp(-margin))) for margin in margins) / len(ratios)


def test_the_slopes_are_those_of_the_loss():
    beta, step = 0.3, 1e-6
    ratios = RATIOS[:3]
    for index, slope in enumerate(dpo.slopes(ratios, beta)):
        for side, sign in ((0, -1), (1, 1)):
            ends = []
            for move in (step, -step):
                moved = [list(pair) for pair in ratios]
                moved[index][side] += move
                ends.append(loss(moved, beta))
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(sign * slope, abs=1e-8)


def test_extreme_ratios_do_not_overflow():
    assert dpo.slopes(RATIOS, 10.0)[3] == 0.0
    assert dpo.slopes([(-700.0, 700.0)], 10.0) == [10.0]
    assert dpo.preference_metrics([(-700.0, 700.0)], 10.0)["dpo_loss"] == 14000.0


def test_metrics_of_pairs_follow_their_definitions():
    metrics = dpo.preference_metrics(RATIOS[:3], 0.5)
    assert metrics["dpo_loss"] == pytest.approx(loss(RATIOS[:3], 0.5))
    assert metrics["accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)  # equal answers count as half
    assert metrics["margin"] == pytest.approx(0.5 * (1.6 - 5.5) / 3)
    assert metrics["chosen_reward"] == pytest.approx(0.5 * (0.4 - 3.0) / 3)
    assert metrics["rejected_reward"] == pytest.approx(0.5 * (2.5 - 1.2) / 3)


def test_rounding_noise_counts_as_no_preference():
    noise = random.Random(0)
    ratios = [(noise.gauss(0, 1e-6), noise.gauss(0, 1e-6)) for _ in range(100)]
    assert dpo.preference_metrics(ratios, 0.1)["accuracy"] == 0.5
