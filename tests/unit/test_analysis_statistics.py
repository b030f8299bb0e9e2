"""The statistics, compared with scipy's procedures and published examples."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from sweeper.analysis.statistics.distributions import (
    maximum_quantile,
    maximum_tail,
    range_quantile,
    range_tail,
    student_quantile,
    student_tail,
)
from sweeper.analysis.statistics.noise import Noise, NoiseRule, Spread, fit_noise
from sweeper.analysis.statistics.seeds import (
    Chosen,
    Comparison,
    Summary,
    against_best,
    summarise,
    summarise_chosen,
)
from sweeper.results.cells import Scale, choose_scale, comparable, on_scale


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0, 5.0], [0.41, 0.47, 0.39]])
def test_the_interval_is_that_of_a_one_sample_t_test(values):
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    summary = summarise(values)
    assert (summary.low, summary.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert summary.mean == pytest.approx(np.mean(values))
    assert (summary.minimum, summary.maximum, summary.n) == (min(values), max(values), len(values))


def test_one_value_and_identical_values_have_no_interval():
    assert summarise([2.0])[:5] == (1, 2.0, None, None, None)
    same = summarise([0.1] * 3)
    assert same.mean == 0.1 and same.low is None and same.high is None and same.identical
    assert summarise([]).mean is None


GROUPS = {"a": [24.0, 28.5, 25.1], "b": [27.9, 31.0, 33.2, 30.4], "c": [24.1, 24.3, 24.9, 25.0]}


def compared(
    groups: Mapping[str, Sequence[float]],
    best: str,
    noise_rule: NoiseRule = "auto",
    scale: Scale = "linear",
) -> dict[str, Comparison]:
    noise = fit_noise(
        {name: on_scale(values, scale) for name, values in groups.items()}, noise_rule
    )
    return against_best(groups, best, noise, 1.0, scale)


def test_the_bounds_of_cells_that_share_their_noise_are_tukeys_and_kramers():
    by_cell = compared(GROUPS, "c", "pooled")
    expected = stats.tukey_hsd(*GROUPS.values()).confidence_interval(0.95)
    for cell, row in (("a", 0), ("b", 1)):
        against = by_cell[cell]
        assert (against.df, against.family) == (8, 3)
        low, high = expected.low[row, 2], expected.high[row, 2]
        reach = against.reach * against.error
        bounds = (against.difference - reach, against.difference + reach)
        assert bounds == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_cell_may_be_the_best_if_the_nearest_means_that_make_it_so_are_near_enough(seed):
    """The nearest means by constrained least squares, the p value by an F test."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, 9)
    groups = {str(i): list(rng.normal(rng.normal(0, 1), 1, size)) for i, size in enumerate(sizes)}
    means = np.array([np.mean(values) for values in groups.values()])
    total = float(sum(sizes) - 9)
    pooled = sum(np.var(values, ddof=1) * (len(values) - 1) for values in groups.values()) / total
    root = np.sqrt(sizes / pooled)
    by_cell = compared(groups, str(means.argmin()), "pooled")
    assert len(by_cell) == 8
    for cell, against in by_cell.items():
        # Each mean is that of this cell plus a non-negative amount.
        more = np.delete(np.eye(9), int(cell), axis=1)
        least = np.column_stack([np.ones(9), -np.ones(9), more])
        weights, distance = optimize.nnls(least * root[:, np.newaxis], means * root)
        touched = int((weights[2:] < 1e-9).sum())
        p = float(stats.f.sf(distance**2 / touched, touched, total)) if touched else 1.0
        alone = float(2 * stats.t.sf(against.difference / against.error, total))
        assert against.p == pytest.approx(max(p, alone), abs=1e-9)


def test_cells_with_noise_of_their_own_are_compared_as_in_welchs_test():
    by_cell = compared(GROUPS, "c", "own")
    assert set(by_cell) == {"a", "b"}
    for cell, against in by_cell.items():
        expected = stats.ttest_ind(GROUPS[cell], GROUPS["c"], equal_var=False)
        statistic = against.difference / against.error
        assert statistic == pytest.approx(expected.statistic, abs=1e-9)
        assert against.df == pytest.approx(min(expected.df, 2 / 3 * (len(GROUPS[cell]) + 2)))
        alone = 2 * stats.t.sf(statistic, against.df)
        assert against.p == pytest.approx(alone)  # Bonferroni: twice the one-sided p value


def test_the_bounds_of_a_difference_say_what_the_test_says():
    """The interval excludes 0 exactly when the test tells two cells apart."""
    some = [0.0, 0.5, -0.5]
    groups = {str(i): [i / 1e3 + x for x in some] for i in range(30)}
    groups["last"] = [1.75 + x for x in some]
    last = compared(groups, "0", "pooled")["last"]
    assert last.difference > last.reach * last.error and not last.told_apart
    assert last.interval() == (0.0, pytest.approx(last.difference + last.reach * last.error))
    alone = {str(i): [1.0 + i / 1e3 + x for x in some] for i in range(40)} | {"first": some}
    second = compared(alone, "first", "pooled")["0"]
    assert second.difference < second.reach * second.error and second.told_apart
    assert second.interval()[0] == 0.0


def test_two_cells_are_compared_two_sided():
    groups = {"a": [1.0, 2.0, 1.4], "b": [3.1, 2.9, 3.9]}
    against = compared(groups, "a", "pooled")["b"]
    assert against.p == pytest.approx(float(stats.ttest_ind(*groups.values()).pvalue), abs=1e-9)


def test_the_best_is_alone_where_it_is_ahead_of_the_second_as_if_there_were_but_two():
    """Many cells far behind do not weaken the test against the second."""
    groups = {str(i): [9.0 + i, 9.5 + i, 8.5 + i] for i in range(28)}
    groups |= {"best": [0.0, 0.5, -0.5], "second": [0.95, 1.45, 0.45]}
    by_cell = compared(groups, "best")
    second = float(2 * stats.t.sf(0.95 / (0.25 * 2 / 3) ** 0.5, 60))
    assert by_cell["second"].p == pytest.approx(second, abs=1e-9)
    assert all(against.told_apart for against in by_cell.values())
    assert range_tail(0.95 / (0.25 / 3) ** 0.5, 30, 60.0) > 0.1


def test_a_best_that_is_noisier_than_the_others_is_alone_by_its_own_noise_only():
    """Bartlett's test lets six cells share noise; an F test finds the best noisier (p = 0.02)."""
    groups = {str(i): [5.0 + i, 5.5 + i, 4.5 + i] for i in range(5)}
    groups["best"] = [2.9, 4.1, 1.7]
    noise = fit_noise(groups)
    rest = np.mean([np.var(groups[str(i)], ddof=1) for i in range(5)])
    f = float(np.var(groups["best"], ddof=1) / rest)
    assert stats.f.sf(f, 2, 10) == pytest.approx(0.0217, abs=1e-4)
    assert noise.shared and noise.noisier == {"best": (pytest.approx(1.2), 2.0, 0.0)}
    by_cell = against_best(groups, "best", noise)
    assert [cell for cell, against in by_cell.items() if not against.told_apart] == ["0"]
    pooled = (5 * 0.25 + 1.44) / 6
    assert by_cell["0"].error == pytest.approx(((1.44 + pooled) / 3) ** 0.5)
    calm = against_best(groups | {"best": [2.9, 3.4, 2.4]}, "best", fit_noise(groups, "pooled"))
    assert all(against.told_apart for against in calm.values())
    assert fit_noise(groups, "pooled").noisier == {}


@pytest.mark.parametrize(("noise_rule", "second_mean"), [("own", 1.4), ("pooled", 0.95)])
def test_the_differences_from_a_lone_winner_are_bounded_for_all_cells_at_once(
    noise_rule, second_mean
):
    """Simultaneous bounds are wider than pairwise tests, and end at 0 if the two disagree."""
    groups = {str(i): [9.0 + i, 9.5 + i, 8.5 + i] for i in range(28)}
    groups |= {"best": [0.0, 0.5, -0.5], "second": [second_mean + d for d in (0, 0.5, -0.5)]}
    by_cell = compared(groups, "best", noise_rule)
    assert all(against.told_apart for against in by_cell.values())
    second, far = by_cell["second"], by_cell["27"]
    if noise_rule == "pooled":
        reaches = [range_quantile(0.95, 30, 60.0) / 2**0.5] * 2
    else:
        reaches = [float(-stats.t.ppf(0.05 / 29 / 30, against.df)) for against in (second, far)]
    near, wide = (reach * cell.error for reach, cell in zip(reaches, (second, far), strict=True))
    assert second.interval() == pytest.approx((0.0, second_mean + near), abs=1e-6)
    assert far.interval() == pytest.approx((36 - wide, 36 + wide), abs=1e-6)


def test_cells_without_noise_of_their_own_are_not_compared_unless_it_is_shared():
    groups = {"a": [1.0, 1.1], "one": [5.0], "same": [7.0, 7.0], "b": [3.0, 3.1]}
    assert not comparable(groups["one"]) and not comparable(groups["same"])
    assert set(compared(groups, "a")) == {"b"} and compared(groups, "one") == {}
    assert compared({"a": [1.0, 2.0]}, "a") == {}
    assert set(compared(groups, "a", "pooled")) == {"one", "same", "b"}


def test_nearly_equal_values_pass_without_a_warning():
    assert compared({"a": [1.0, 1.0 + 1e-15], "b": [2.0, 2.0 + 4e-16]}, "a")["b"].told_apart


def test_a_chosen_cell_has_the_wider_interval_on_its_worse_side():
    values = [1.0, 2.0, 3.0]

    def of(count: int, sign: float, df: float = 40.0) -> Summary:
        noise = Noise("pooled", {"a": Spread(1.0, df)}, 1, df)
        return summarise_chosen(values, "linear", noise, Chosen("a", count, sign))

    plain, chosen = summarise(values, spread=Spread(1.0, 40.0)), of(20, 1)
    assert chosen.low == plain.low and chosen.high is not None and plain.high is not None
    assert chosen.high > plain.high
    best = of(20, -1)
    assert best.high == plain.high and best.low == pytest.approx(4.0 - chosen.high)
    assert of(1, 1) == plain
    # The largest of twenty: with so many degrees of freedom the values are normal, and each
    # exceeds the bound with probability 1 - 0.95 ** (1 / 20).
    wide = of(20, 1, 1e7).high
    assert wide == pytest.approx(2 + stats.norm.ppf(0.95 ** (1 / 20)) / 3**0.5, abs=1e-5)


def test_noise_alone_seldom_makes_a_lone_winner():
    rng = np.random.default_rng(3)
    lone = 0
    for _ in range(25):
        groups = {str(cell): list(rng.normal(0, 1, 3)) for cell in range(3)}
        best = min(groups, key=lambda cell: float(np.mean(groups[cell])))
        lone += all(c.told_apart for c in compared(groups, best).values())
    assert lone <= 4  # 25 trials at 5 % or less: more than 4 has a chance under 1 %


def test_noise_alone_seldom_makes_a_winner_on_a_chosen_scale():
    rng = np.random.default_rng(4)
    lone = logs = apart = 0
    for _ in range(25):
        levels = {"a": 0.1, "b": 0.1, "c": 1.5}  # a and b are equally good
        groups = {k: list(v * np.exp(rng.normal(0, 0.3, 3))) for k, v in levels.items()}
        scale = choose_scale(groups.values())
        means = {k: summarise(v, scale).mean or 0.0 for k, v in groups.items()}
        by_cell = compared(groups, min(means, key=means.__getitem__), scale=scale)
        lone += all(c.told_apart for c in by_cell.values())
        logs += scale == "log"
        apart += by_cell["c"].told_apart
    assert lone <= 4
    assert logs >= 20 and apart >= 20


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
        (PROPORTIONAL[:2], "linear"),  # the means span less than a factor of ten
        ([[0.09, 0.1, 0.11], [0.49, 0.5, 0.51], [1.49, 1.5, 1.51]], "linear"),  # even noise
        ([[0.1], [0.2], [9.0]], "linear"),  # the noise is unknown
        ([[0.1, 0.1], [9.0, 9.0]], "linear"),
        ([[5e-324, 1e-323], [1e308, 1.5e308]], "linear"),
        ([], "linear"),
    ],
)
def test_the_scale_follows_from_sign_span_and_noise(groups, expected):
    assert choose_scale(groups) == expected


def test_on_the_log_scale_means_are_geometric_and_comparisons_ratios():
    groups = {str(i): values for i, values in enumerate(PROPORTIONAL)}
    logs = {cell: list(np.log(values)) for cell, values in groups.items()}
    geometric, plain = summarise(groups["2"], "log"), summarise(logs["2"])
    assert geometric.mean == pytest.approx(stats.gmean(groups["2"]))
    expected = np.exp([plain.low, plain.high])
    assert (geometric.low, geometric.high) == pytest.approx(tuple(expected))
    assert geometric.sd == pytest.approx(plain.sd)
    assert (geometric.minimum, geometric.maximum) == (1.26, 1.80)
    ratio, difference = compared(groups, "0", scale="log")["2"], compared(logs, "0")["2"]
    assert ratio.p == pytest.approx(difference.p)
    assert ratio.ratio == pytest.approx(stats.gmean(groups["2"]) / stats.gmean(groups["0"]))
    assert difference.ratio is None
    assert ratio.interval() == pytest.approx(tuple(np.exp(difference.interval())))


def test_enormous_values_have_the_figures_of_small_ones():
    small, large = summarise([1.0, 1.5, 1.75]), summarise([1e308, 1.5e308, 1.75e308])
    assert large[1:3] == pytest.approx([value * 1e308 for value in small[1:3] if value])
    few = {"a": [1.0, 1.1, 1.2], "b": [1.6, 1.7, 1.65]}
    many = {cell: [v * 1e308 for v in values] for cell, values in few.items()}
    assert compared(many, "a")["b"].p == pytest.approx(compared(few, "a")["b"].p)
    assert summarise([-1.7e308, 1.7e308]).mean == 0.0


@pytest.mark.parametrize("df", [1.0, 1.3, 2.0, 3.7, 20.0, 400.0])
@pytest.mark.parametrize("means", [2, 6, 35])
def test_the_studentized_range_is_scipys(means, df):
    for statistic in (0.01, 1.0, 3.5, 9.0, 40.0):
        expected = float(stats.studentized_range.sf(statistic, means, df))
        assert range_tail(statistic, means, df) == pytest.approx(expected, abs=1e-9)
    assert range_tail(range_quantile(0.95, means, df), means, df) == pytest.approx(0.05, abs=1e-9)


def test_students_distribution_is_scipys():
    for df in (1.0, 2.5, 40.0):
        quantile = float(stats.t.ppf(0.975, df))
        assert student_quantile(0.975, df) == pytest.approx(quantile, rel=1e-12)
        for statistic in (0.0, -2.2, 30.0):
            expected = 2 * float(stats.t.sf(abs(statistic), df))
            assert student_tail(statistic, df) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("df", [1.0, 3.7, 40.0])
def test_the_largest_of_some_values_is_distributed_as_the_definition_says(df):
    """For one value it is Student's t, for more a mixture of powers."""
    assert maximum_tail(1.7, 1, df) == pytest.approx(float(stats.t.sf(1.7, df)), abs=1e-9)

    def density(s: float) -> float:
        return (1 - stats.norm.cdf(1.7 * s) ** 9) * stats.chi.pdf(s * df**0.5, df) * df**0.5

    expected = integrate.quad(density, 0, 12, epsabs=1e-12, limit=200)[0]
    assert maximum_tail(1.7, 9, df) == pytest.approx(expected, abs=1e-9)
    assert maximum_tail(maximum_quantile(0.95, 9, df), 9, df) == pytest.approx(0.05, abs=1e-9)
