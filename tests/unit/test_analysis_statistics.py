"""The statistics against independent figures: scipy's own procedures and published examples."""

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import against_best, comparable, summarise


def test_the_interval_is_students():
    # t(0.975, 4) = 2.776445 from any table; mean 3, sd sqrt(2.5).
    found = summarise([1.0, 2.0, 3.0, 4.0, 5.0])
    reach = 2.7764451051977987 * 2.5**0.5 / 5**0.5
    assert found.mean == 3.0
    assert found.low == pytest.approx(3.0 - reach, abs=1e-9)
    assert found.high == pytest.approx(3.0 + reach, abs=1e-9)
    assert (found.minimum, found.maximum, found.n) == (1.0, 5.0, 5)


def test_the_interval_is_that_of_a_one_sample_t_test():
    values = [0.41, 0.47, 0.39]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = summarise(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_value_and_identical_values_have_no_interval():
    assert summarise([2.0])[:5] == (1, 2.0, None, None, None)
    same = summarise([0.1] * 3)
    assert same.mean == 0.1 and same.low is None and same.high is None and same.identical
    assert summarise([]).mean is None


GROUPS = {
    "a": [24.0, 28.5, 25.1],
    "b": [27.9, 31.0, 33.2, 30.4],
    "c": [24.1, 24.3, 24.9, 25.0],
    "d": [40.0, 29.0, 35.0],
}


def test_comparisons_are_games_howell():
    names = list(GROUPS)
    whole = stats.tukey_hsd(*GROUPS.values(), equal_var=False)
    bounds = whole.confidence_interval(0.95)
    found = against_best(GROUPS, "a")
    assert set(found) == {"b", "c", "d"}
    j = names.index("a")
    for cell, comparison in found.items():
        i = names.index(cell)
        assert comparison.p == pytest.approx(whole.pvalue[i, j], abs=1e-9)
        assert comparison.difference == pytest.approx(whole.statistic[i, j], abs=1e-9)
        expected = (bounds.low[i, j], bounds.high[i, j])
        assert comparison.interval() == pytest.approx(expected, abs=1e-9)


def test_two_cells_compare_as_in_welchs_test():
    found = against_best({"a": GROUPS["a"], "b": GROUPS["b"]}, "a")["b"]
    expected = stats.ttest_ind(GROUPS["b"], GROUPS["a"], equal_var=False)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-7)


def test_cells_without_noise_of_their_own_are_not_compared():
    groups = {"a": [1.0, 1.1], "one": [5.0], "same": [7.0, 7.0], "b": [3.0, 3.1]}
    assert not comparable(groups["one"]) and not comparable(groups["same"])
    assert set(against_best(groups, "a")) == {"b"}
    assert against_best(groups, "one") == {}
    assert against_best({"a": [1.0, 2.0]}, "a") == {}


def test_nearly_equal_values_pass_without_a_warning():
    found = against_best({"a": [1.0, 1.0 + 1e-15], "b": [2.0, 2.0 + 4e-16]}, "a")
    assert found["b"].told_apart


def test_noise_alone_seldom_makes_a_lone_winner():
    rng = np.random.default_rng(3)
    lone = 0
    for _ in range(60):
        groups = {str(cell): list(rng.normal(0, 1, 3)) for cell in range(3)}
        best = min(groups, key=lambda cell: float(np.mean(groups[cell])))
        lone += all(c.told_apart for c in against_best(groups, best).values())
    assert lone <= 6  # 60 trials at 5 % or less: more than 6 has a chance under 2 %
