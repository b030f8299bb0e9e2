"""The statistics against independent figures: scipy's own procedures and published examples."""

import numpy as np
import pytest
from scipy import stats

from sweeper.analysis.distributions import (
    range_quantile,
    range_tail,
    student_quantile,
    student_tail,
)
from sweeper.analysis.statistics import against_best, summarise
from sweeper.results.cells import choose_scale, comparable


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
}


def test_comparisons_are_games_howell():
    names = list(GROUPS)
    whole = stats.tukey_hsd(*GROUPS.values(), equal_var=False)
    found = against_best(GROUPS, "a")
    assert set(found) == {"b", "c"}
    for cell, comparison in found.items():
        i = names.index(cell)
        assert comparison.p == pytest.approx(whole.pvalue[i, 0], abs=1e-9)
        assert comparison.difference == pytest.approx(whole.statistic[i, 0], abs=1e-9)


def test_the_interval_ends_where_the_difference_would_just_be_told_apart():
    low, high = against_best(GROUPS, "a")["b"].interval()
    assert low < high
    for bound in (low, high):
        moved = [[value - bound for value in GROUPS["b"]], GROUPS["a"], GROUPS["c"]]
        assert stats.tukey_hsd(*moved, equal_var=False).pvalue[0, 1] == pytest.approx(0.05)


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
    for _ in range(25):
        groups = {str(cell): list(rng.normal(0, 1, 3)) for cell in range(3)}
        best = min(groups, key=lambda cell: float(np.mean(groups[cell])))
        lone += all(c.told_apart for c in against_best(groups, best).values())
    assert lone <= 4  # 25 trials at 5 % or less: more than 4 has a chance under 1 %


def test_nor_where_the_noise_is_in_proportion_and_the_scale_is_chosen():
    rng = np.random.default_rng(4)
    lone = logs = apart = 0
    for _ in range(25):
        levels = {"a": 0.1, "b": 0.1, "c": 1.5}  # a and b are equally good
        groups = {k: list(v * np.exp(rng.normal(0, 0.3, 3))) for k, v in levels.items()}
        scale = choose_scale(groups.values())
        means = {k: summarise(v, scale).mean or 0.0 for k, v in groups.items()}
        found = against_best(groups, min(means, key=means.__getitem__), scale)
        lone += all(c.told_apart for c in found.values())
        logs += scale == "log"
        apart += found["c"].told_apart
    assert lone <= 4
    # In 20 000 such trials: 1.4 % lone winners, 94 % on the log scale, and c told apart in 99.5 %,
    # against 58 % of them with the values as they are.
    assert logs >= 20 and apart >= 21


PROPORTIONAL = [[0.07, 0.08, 0.10], [0.12, 0.15, 0.20], [1.26, 1.54, 1.80]]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (PROPORTIONAL, "log"),
        ([[10 * v for v in values] for values in PROPORTIONAL], "log"),
        ([[1e307 * v for v in values] for values in PROPORTIONAL], "log"),
        ([[1e-300 * v for v in values] for values in PROPORTIONAL], "log"),
        ([*PROPORTIONAL, []], "log"),
        ([*PROPORTIONAL, [0.0, 0.1]], "linear"),
        ([[-v for v in values] for values in PROPORTIONAL], "linear"),
        (PROPORTIONAL[:2], "linear"),  # no factor of ten
        ([[0.09, 0.1, 0.11], [0.49, 0.5, 0.51], [1.49, 1.5, 1.51]], "linear"),  # even noise
        ([[0.1], [0.2], [9.0]], "linear"),  # nothing is known of the noise
        ([[0.1, 0.1], [9.0, 9.0]], "linear"),
        ([[5e-324, 1e-323], [1e308, 1.5e308]], "linear"),
        ([], "linear"),
    ],
)
def test_the_scale_follows_from_sign_span_and_noise(groups: list[list[float]], expected: str):
    assert choose_scale(groups) == expected


def test_on_the_log_scale_means_are_geometric_and_comparisons_ratios():
    groups = {str(i): values for i, values in enumerate(PROPORTIONAL)}
    logs = {cell: list(np.log(values)) for cell, values in groups.items()}
    found, plain = summarise(groups["2"], "log"), summarise(logs["2"])
    assert found.mean == pytest.approx(stats.gmean(groups["2"]))
    expected = np.exp([plain.low, plain.high])
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert found.sd == pytest.approx(plain.sd)
    assert (found.minimum, found.maximum) == (1.26, 1.80)
    compared, own = against_best(groups, "0", "log")["2"], against_best(logs, "0")["2"]
    assert compared.p == pytest.approx(own.p)
    assert compared.ratio == pytest.approx(stats.gmean(groups["2"]) / stats.gmean(groups["0"]))
    assert own.ratio is None
    assert compared.interval() == pytest.approx(tuple(np.exp(own.interval())))


def test_enormous_values_have_the_figures_of_small_ones():
    small, large = summarise([1.0, 1.5, 1.75]), summarise([1e308, 1.5e308, 1.75e308])
    assert large[1:3] == pytest.approx([value * 1e308 for value in small[1:3] if value])
    few = {"a": [1.0, 1.1, 1.2], "b": [1.6, 1.7, 1.65]}
    many = {cell: [v * 1e308 for v in values] for cell, values in few.items()}
    assert against_best(many, "a")["b"].p == pytest.approx(against_best(few, "a")["b"].p)
    assert summarise([-1.7e308, 1.7e308]).mean == 0.0


@pytest.mark.parametrize("df", [1.0, 1.3, 2.0, 3.7, 20.0, 400.0])
@pytest.mark.parametrize("means", [2, 6, 35])
def test_the_studentized_range_is_scipys(means: int, df: float):
    for statistic in (0.01, 1.0, 3.5, 9.0, 40.0):
        expected = float(stats.studentized_range.sf(statistic, means, df))
        assert range_tail(statistic, means, df) == pytest.approx(expected, abs=1e-9)
    assert range_tail(range_quantile(0.95, means, df), means, df) == pytest.approx(0.05, abs=1e-9)


def test_students_distribution_is_scipys():
    for df in (1.0, 2.5, 40.0):
        assert student_quantile(0.975, df) == pytest.approx(
            float(stats.t.ppf(0.975, df)), rel=1e-12
        )
        for statistic in (0.0, -2.2, 30.0):
            expected = 2 * float(stats.t.sf(abs(statistic), df))
            assert student_tail(statistic, df) == pytest.approx(expected, rel=1e-12)
