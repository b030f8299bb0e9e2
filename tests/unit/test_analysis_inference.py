"""Tests and intervals against scipy and brute force."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sweeper.analysis.statistics.inference import (
    contrast,
    holm,
    paired,
    pass_at_k,
    share_bounds,
    wilson,
)

A, B, C = [24.0, 28.5, 25.1], [27.9, 31.0, 33.2, 30.4], [24.1, 24.3, 24.9, 25.0]


@pytest.mark.parametrize(
    ("groups", "weights", "expected"),
    [
        ([A, B], [1, -1], stats.ttest_ind(A, B, equal_var=False)),
        ([B], [1], stats.ttest_1samp(B, 0)),
    ],
)
def test_a_contrast_of_one_or_two_groups_is_a_t_test(groups, weights, expected):
    result = contrast(groups, weights)
    bounds = expected.confidence_interval(0.95)
    assert (result.p, result.df) == pytest.approx((expected.pvalue, expected.df), abs=1e-9)
    assert (result.low, result.high) == pytest.approx((bounds.low, bounds.high), abs=1e-9)


def test_a_contrast_of_three_groups_by_hand():
    # Welch and Satterthwaite: the variance of a sum, and its degrees of freedom.
    weights = [0.5, 0.5, -1.0]
    parts = [w * w * np.var(g, ddof=1) / len(g) for w, g in zip(weights, (A, B, C), strict=True)]
    df = sum(parts) ** 2 / sum(p * p / (len(g) - 1) for p, g in zip(parts, (A, B, C), strict=True))
    value = 0.5 * np.mean(A) + 0.5 * np.mean(B) - np.mean(C)
    reach = stats.t.ppf(0.975, df) * math.sqrt(sum(parts))
    result = contrast([A, B, C], weights)
    assert (result.value, result.df) == pytest.approx((value, df), abs=1e-9)
    assert (result.low, result.high) == pytest.approx((value - reach, value + reach), abs=1e-9)


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [1e308, -1e308]])
def test_without_finite_noise_there_is_no_interval(values):
    assert contrast([A, values], [1, -1]).low is None
    assert contrast([A, values], [1, 0]).low is not None or values[0] > 1e300


def test_paired_differences_are_a_paired_t_test_over_what_is_shared():
    first, second = {0: 1.0, 1: 2.5, 2: 2.0, 9: 100.0}, {2: 1.1, 1: 1.9, 0: 0.7, 5: -50.0}
    result = paired(first, second)
    expected = stats.ttest_rel([1.0, 2.5, 2.0], [0.7, 1.9, 1.1])
    bounds = expected.confidence_interval(0.95)
    assert result.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert (result.low, result.high) == pytest.approx((bounds.low, bounds.high), abs=1e-9)


def test_one_pair_and_pairs_that_differ_alike_have_no_interval():
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 1.0}, {0: 3.0}) == (-2.0, None, None, None, None, None)
    assert paired({0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0}) == (-2.0, None, None, None, None, None)


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (17, 96)])
def test_wilsons_interval(count, trials):
    # The score interval, from its definition.
    z, p = stats.norm.ppf(0.975), count / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    assert wilson(count, trials) == pytest.approx((centre - reach, centre + reach), abs=1e-9)


def test_holm_adjusts_in_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(("answers", "right", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (4, 3, 2)])
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(answers, right, k):
    marks = [True] * right + [False] * (answers - right)
    chosen = [any(choice) for choice in itertools.combinations(marks, k)]
    assert pass_at_k(answers, right, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


def test_pass_at_k_needs_k_answers():
    with pytest.raises(ValueError, match="pass@3 of 2"):
        pass_at_k(2, 1, 3)


def test_the_bounds_of_a_share_are_jeffreys_of_as_many_answers():
    """3 and 0 of 150 are right: the interval of a share stays within 0 to 1."""
    share = 3 / 150
    reach = stats.norm.ppf(0.975)
    bounds = share_bounds(share, 150, reach, reach)
    expected = stats.beta.ppf([0.025, 0.975], 3.5, 147.5)
    assert bounds == pytest.approx(tuple(expected), rel=1e-6)
    low, high = share_bounds(0.0, 150, reach, reach)
    assert low == 0 < high < 0.1
