"""Noise that cells share, compared with explicit formulas, and the test for shared noise."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from sweeper.analysis.statistics.inference import contrast
from sweeper.analysis.statistics.noise import FEW, MANY, TOWARD, fit_noise, paired
from sweeper.analysis.statistics.variances import bartlett, squeeze

VARIANCES = np.array([0.8, 0.2, 3.1, 9.7, 0.05, 1.4, 0.6, 2.2, 0.01, 5.0, 0.3, 1.1])
DFS = np.array([2.0, 2.0, 2.0, 4.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 3.0, 2.0])


def cells(count: int, seeds: int, spread: float = 1.0, seed: int = 1) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    sds = np.exp(np.linspace(0, math.log(spread), count))
    return {str(i): list(rng.normal(i, sd, seeds)) for i, sd in enumerate(sds)}


def test_moderated_variances_are_those_of_smyth():
    """The moments of log variances and their inverse, with scipy's own functions and solver."""
    z = np.log(VARIANCES)
    e = z - special.digamma(DFS / 2) + np.log(DFS / 2)
    spread = float(
        np.sum((e - e.mean()) ** 2) / (len(e) - 1) - np.mean(special.polygamma(1, DFS / 2))
    )
    half = optimize.brentq(lambda x: float(special.polygamma(1, x)) - spread, 1e-6, 1e6, xtol=1e-14)
    common = float(np.exp(e.mean() + special.digamma(half) - np.log(half)))
    prior, prior_df, drawn = squeeze(VARIANCES, DFS)
    assert float(prior_df) == pytest.approx(2 * half, rel=1e-9)
    assert float(prior) == pytest.approx(common, rel=1e-9)
    expected = (2 * half * common + DFS * VARIANCES) / (2 * half + DFS)
    assert drawn == pytest.approx(expected, rel=1e-9)


def test_variances_that_spread_as_chance_makes_them_become_one():
    prior, prior_df, drawn = squeeze(np.array([1.0, 1.1, 0.9, 1.0]), np.array([2.0, 2.0, 2.0, 4.0]))
    assert math.isinf(float(prior_df))
    assert drawn == pytest.approx([float(prior)] * 4) and float(prior) == pytest.approx(1.0)


def test_many_sweeps_are_squeezed_at_once_as_each_by_itself():
    table = np.random.default_rng(2).chisquare(2, (5, 12))
    together = squeeze(table, np.array(2.0))
    for row, sweep in enumerate(table):
        for part, whole in zip(squeeze(sweep, np.array(2.0)), together, strict=True):
            assert part == pytest.approx(whole[row], rel=1e-12)


def test_the_statistic_is_bartletts():
    groups = [[1.0, 2.0, 4.0], [1.0, 1.1], [0.0, 3.0, 9.0, 2.0]]
    variances = np.array([np.var(group, ddof=1) for group in groups])
    statistic = bartlett(variances, np.array([len(group) - 1.0 for group in groups]))
    assert float(statistic) == pytest.approx(float(stats.bartlett(*groups).statistic), abs=1e-9)


def test_the_test_refuses_equal_noise_as_often_as_its_level_says():
    """8 of 400 are expected at 2 %; more than 18 has a probability below 1 in 1,000."""
    refused = sum(fit_noise(cells(6, 2, seed=seed)).kind == "own" for seed in range(1000, 1400))
    assert 1 <= refused <= 18


def test_few_cells_keep_their_noise_some_share_one_and_many_are_moderated():
    kinds = [fit_noise(cells(count, 3)).kind for count in (FEW - 1, FEW, MANY - 1)]
    assert kinds == ["own", "pooled", "pooled"]
    many = fit_noise(cells(40, 3, spread=3.0, seed=3))
    assert many.kind == "moderated" and many.prior_df < math.inf
    assert fit_noise(cells(12, 10, spread=30.0)).kind == "own"
    assert fit_noise({"a": [1.0], "b": [2.0]}).kind == "none"
    assert fit_noise({"a": [1.0, 1.0], "b": [2.0, 2.0]}).spreads == {}


def test_a_requested_noise_rule_is_used():
    wild = cells(12, 10, spread=30.0)
    assert fit_noise(wild, "pooled").kind == "pooled"
    assert fit_noise(cells(6, 3), "own").kind == "own"
    pooled = fit_noise({"a": [1.0, 2.0], "b": [5.0, 5.5, 7.0], "c": [9.0]}, "pooled")
    variance = (0.5 + 2 * np.var([5.0, 5.5, 7.0], ddof=1)) / 3
    assert [pooled.of(cell) for cell in "abc"] == [(pytest.approx(variance**0.5), 3.0, 0.0)] * 3


def test_other_sweeps_lend_their_noise_to_single_runs_unless_it_differs():
    single = {"a": [1.0], "b": [2.0]}
    noise = fit_noise(single, lent={"before": cells(5, 3)})
    assert noise.kind == "pooled" and noise.lent == ("before",) and noise.total == 10
    assert noise.of("a") == noise.of("b") and noise.of("a") is not None
    wild = {str(i): [0.0, 1000.0 + i, 3.0] for i in range(5)}
    refused = fit_noise(cells(5, 3), lent={"before": wild})
    assert refused.refused == ("before",) and refused.kind == "pooled" and refused.total == 10
    assert fit_noise(single, lent={"before": cells(5, 3, spread=1e4)}).of("a") is None


def test_equal_values_of_a_metric_that_comes_in_steps_are_no_sign_of_other_noise():
    """Accuracies of 200 questions: two seeds of one cell agree to the last digit."""
    rng = np.random.default_rng(5)
    groups = {str(i): list(rng.binomial(200, 0.7, 2) / 200) for i in range(8)}
    groups["same"] = [0.7, 0.7]
    noise = fit_noise(groups)
    assert noise.shared and noise.of("same") is not None


def test_a_contrast_takes_the_noise_of_each_cell():
    groups = [("a", [1.0, 2.0, 4.0]), ("b", [3.0, 3.5, 6.0])]
    values = [group for _, group in groups]
    separate = fit_noise(dict(groups), "own").contrast(groups, [1, -1])
    assert separate == pytest.approx(contrast(values, [1, -1]), rel=1e-12)
    pooled = fit_noise(dict(groups), "pooled").contrast(groups, [1, -1])
    expected = stats.ttest_ind(*values)
    assert pooled.p == pytest.approx(float(expected.pvalue), rel=1e-9)
    interval = expected.confidence_interval(0.95)
    assert (pooled.low, pooled.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert fit_noise(dict(groups), "own").contrast([("c", [1.0])], [1]).low is None


def test_a_sum_of_many_cells_with_moderated_noise_has_the_variance_of_what_it_sums():
    """Moderated variances are below their mean, so a plain sum understates the error."""
    groups = cells(40, 3, spread=3.0, seed=3)
    noise = fit_noise(groups)
    seventh = noise.of("7")
    assert noise.kind == "moderated"
    alone = noise.contrast([("7", groups["7"])], [1.0])
    assert (alone.df, alone.error) == (seventh.df, pytest.approx(seventh.sd / 3**0.5, rel=1e-9))
    whole = noise.contrast(list(groups.items()), [1 / 40] * 40)
    spreads = [noise.spreads[name] for name in groups]
    variance = sum(s.sd**2 * s.df / (s.df - 2) for s in spreads) / 3 / 40**2
    assert whole.df == 80.0 and whole.error is not None
    assert whole.error**2 * 80 / 78 == pytest.approx(variance, rel=1e-9)


def test_enormous_and_tiny_values_have_the_noise_of_common_ones():
    common = fit_noise(cells(6, 3))
    for factor in (1e300, 1e-300):
        scaled = {n: [v * factor for v in values] for n, values in cells(6, 3).items()}
        noise = fit_noise(scaled)
        for name in scaled:
            actual, expected = noise.of(name), common.of(name)
            assert actual.sd / factor == pytest.approx(expected.sd, rel=1e-9)
            assert actual.df == expected.df


@pytest.mark.parametrize("seeds", [3, 5, 6, 7, 10])
def test_runs_that_are_all_equal_tell_no_noise(seeds):
    """Their mean may have a rounding error. It does not count as noise."""
    values = np.random.default_rng(3).normal(9, 1, 20)
    noise = fit_noise({str(i): [float(value)] * seeds for i, value in enumerate(values)})
    assert noise.kind == "own" and noise.spreads == {}


def on_seeds(cells: int, seeds: int, rho: float, seed: int) -> dict[str, dict[int, float]]:
    rng = np.random.default_rng(seed)
    common = rng.normal(0, rho**0.5, seeds)
    independent = rng.normal(0, (1 - rho) ** 0.5, (cells, seeds))
    return {str(i): dict(enumerate((row + common).tolist())) for i, row in enumerate(independent)}


def test_differences_on_shared_seeds_are_those_of_a_two_way_analysis_of_variance():
    """The effect of a seed on all cells cancels in their differences, but not in their means."""
    table = on_seeds(6, 5, 0.9, 1)
    groups = {name: list(by_seed.values()) for name, by_seed in table.items()}
    noise = paired(fit_noise(groups), table)
    assert noise.between is not None and noise.seeds is not None
    values = np.array(list(groups.values()))
    rest = values - values.mean(0) - values.mean(1)[:, np.newaxis] + values.mean()
    square = float((rest**2).sum()) / 20
    gap = noise.contrast(list(groups.items()), [1, -1, 0, 0, 0, 0])
    assert gap.error == pytest.approx((2 * square / 5) ** 0.5) and gap.df == 20
    mean = noise.contrast(list(groups.items()), [1 / 6] * 6)
    between_seeds = float(values.mean(0).var(ddof=1))
    assert mean.error == pytest.approx((between_seeds / 5) ** 0.5, rel=0.02)


def test_seeds_that_share_nothing_are_not_paired():
    """100 sweeps of 6 unrelated cells: more than 7 has a probability of 0.5 %."""
    tables = [on_seeds(6, 5, 0.0, seed) for seed in range(100)]
    paired_runs = [
        paired(fit_noise({n: list(by_seed.values()) for n, by_seed in table.items()}), table)
        for table in tables
    ]
    assert sum(noise.between is not None for noise in paired_runs) <= 7
    lost = on_seeds(6, 5, 0.9, 1) | {"0": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}}
    plain = fit_noise({n: list(by_seed.values()) for n, by_seed in lost.items()})
    assert paired(plain, lost) is plain


def test_noise_that_grows_along_an_axis_is_larger_at_its_end():
    rng = np.random.default_rng(4)
    place = np.repeat(np.arange(4), 5)
    groups = {str(i): list(rng.normal(0, 3.0**at, 3)) for i, at in enumerate(place)}
    axes = {"lr": {str(i): float(at) for i, at in enumerate(place)}}
    noise = fit_noise(groups, axes=axes)
    assert noise.shared and noise.trend == "lr"
    for cell, at in (("0", 0), ("19", 3)):
        assert 0.5 < noise.spreads[cell].sd / 3.0**at < 2
    flat = fit_noise(cells(20, 3), axes=axes)
    assert flat.trend == "" and flat.shared


def test_the_noise_of_shares_follows_from_their_mean():
    """2 to 20 % of 50 questions are right: the noise differs by cell and is never 0."""
    rng = np.random.default_rng(5)
    shares = np.linspace(0.02, 0.2, 10)
    groups = {str(i): (rng.binomial(50, p, 3) / 50).tolist() for i, p in enumerate(shares)}
    noise = fit_noise(groups | {"none": [0.0, 0.0, 0.0]}, shares=True)
    assert noise.shares and noise.shared
    assert noise.spreads["9"].sd == pytest.approx((0.2 * 0.8 / 50) ** 0.5, rel=0.5)
    assert noise.spreads["9"].sd > 2 * noise.spreads["0"].sd > noise.spreads["none"].sd > 0


def test_cells_beside_divergence_do_not_make_the_others_noisy():
    """Three cells at a rate where most others diverged have nearly all of the noise."""
    groups = cells(30, 2, seed=6)
    wild = {f"w{i}": [0.0, 40.0 + i] for i in range(3)}
    at = {**dict.fromkeys(groups, 0.0), **dict.fromkeys(wild, 1.0)}
    rates = {**{name: float(i % 3) for i, name in enumerate(groups)}, **dict.fromkeys(wild, 3.0)}
    axes = {"lr": rates, "lr" + TOWARD: at}
    noise = fit_noise(groups | wild, "pooled", axes=axes)
    assert noise.trend == "lr" + TOWARD
    assert 0.7 < noise.spreads["0"].sd < 1.4 and noise.spreads["w0"].sd > 10
