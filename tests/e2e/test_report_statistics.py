"""The report's statistics against statsmodels: slow to load, and no part of what users install."""

import numpy as np
import pytest

from sweeper.analysis.comparison.items import level
from sweeper.analysis.statistics.inference import contrast, holm, paired, wilson
from sweeper.analysis.statistics.noise import fit_noise
from sweeper.analysis.statistics.seeds import against_best, summarise

pytestmark = pytest.mark.e2e

linear = pytest.importorskip("statsmodels.regression.linear_model")
multitest = pytest.importorskip("statsmodels.stats.multitest")
proportion = pytest.importorskip("statsmodels.stats.proportion")
weightstats = pytest.importorskip("statsmodels.stats.weightstats")

GROUPS = {
    "a": [24.0, 28.5, 25.1],
    "b": [27.9, 31.0, 33.2, 30.4],
    "c": [24.1, 24.3, 24.9, 25.0],
    "d": [29.0, 29.9, 30.7, 31.1, 28.2],
}


def close(expected: object) -> object:
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_interval_of_a_cell():
    for values in GROUPS.values():
        interval = summarise(values)
        assert (interval.low, interval.high) == close(
            weightstats.DescrStatsW(values).tconfint_mean()
        )


def test_comparisons_with_the_best_take_welchs_or_the_common_noise():
    """The statistic of each pair, and where there are but two its p value and bounds."""
    two = {name: GROUPS[name] for name in ("a", "b")}
    for kind, usevar in (("own", "unequal"), ("pooled", "pooled")):
        noise = fit_noise(two, kind)
        comparison = against_best(two, "a", noise)["b"]
        means = weightstats.CompareMeans.from_data(two["b"], two["a"])
        statistic, p, df = means.ttest_ind(usevar=usevar)
        assert comparison.difference / comparison.error == close(statistic)
        if comparison.df == close(df):
            assert comparison.p == close(p)
            assert comparison.interval() == close(means.tconfint_diff(usevar=usevar))
        else:
            assert kind == "own" and comparison.df < df
        contrast = noise.contrast([("b", two["b"]), ("a", two["a"])], [1, -1])
        assert (contrast.p, contrast.df) == close((p, df))


def test_differences():
    means = weightstats.CompareMeans.from_data(GROUPS["a"], GROUPS["b"])
    _, p, df = means.ttest_ind(usevar="unequal")
    interval = contrast([GROUPS["a"], GROUPS["b"]], [1, -1])
    assert (interval.p, interval.df) == close((p, df))
    assert (interval.low, interval.high) == close(means.tconfint_diff(usevar="unequal"))


def test_paired_differences():
    ours, other = GROUPS["b"], GROUPS["c"]
    described = weightstats.DescrStatsW(np.subtract(ours, other))
    _, p, df = described.ttest_mean(0)
    interval = paired(dict(enumerate(ours)), dict(enumerate(other)))
    assert (interval.p, interval.df, interval.error) == close((p, df, described.std_mean))
    assert (interval.low, interval.high) == close(described.tconfint_mean())


@pytest.mark.parametrize(("count", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (17, 96)])
def test_wilsons_interval(count: int, trials: int):
    expected = proportion.proportion_confint(count, trials, method="wilson")
    assert wilson(count, trials) == close(expected)


def test_holms_procedure():
    for values in ([0.01, 0.04, 0.03, 0.2, 0.01], [0.9, 0.8], [0.05]):
        assert holm(values) == close(list(multitest.multipletests(values, method="holm")[1]))


def test_errors_clustered_by_item_are_statsmodels():
    rng = np.random.default_rng(8)
    clusters = [i // 4 for i in range(40)]
    scores = rng.normal(0, 1, 40) + rng.normal(0, 1, 10)[clusters]
    interval = level(scores[np.newaxis], None, clusters)
    fitted = linear.OLS(scores, np.ones(40)).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    assert interval.items == pytest.approx(float(fitted.bse[0]) ** 2, abs=1e-9)
