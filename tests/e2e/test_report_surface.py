"""The effects of axes without a grid: a random search with known effects, and its page."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.items import level
from sweeper.analysis.figures.gallery import gallery
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import load
from sweeper.analysis.statistics.distributions import noncentrality
from sweeper.analysis.statistics.regression import Column, column, fit, log_spread
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e
NULL = ("beta", "clip", "decay", "dropout", "seed_of_data")


def searched(root: Path, points: int = 60) -> None:
    """Write a sweep with a valley over log rate, a slope and a category. Five axes do nothing."""
    noise = random.Random(11)
    cells: list[tuple[dict[str, Any], list[float]]] = []
    for _ in range(points):
        rate, warmup = noise.uniform(-5, -2), noise.uniform(0, 1)
        kind = noise.choice("abc")
        settings: dict[str, Any] = {"lr": 10**rate, "warmup": warmup, "kind": kind}
        settings |= {key: noise.uniform(1, 2) for key in NULL}
        level = 5 + (rate + 3.5) ** 2 + 1.5 * warmup + (kind == "a")
        cells.append((settings, [level + noise.gauss(0, 0.3)]))
    written.measured(root, cells, axes=tuple(cells[0][0]))


def studied(root: Path) -> Study:
    return study(load(Registry(str(root)), "demo", None, None))


def findings_of(result: Study, kind: str) -> list[Any]:
    return [finding for finding in result.findings if finding.kind == kind]


def test_a_random_search_tells_the_axes_that_matter_and_no_others(tmp_path: Path):
    searched(tmp_path)
    result = studied(tmp_path)
    assert result.surface is not None and result.surface.cells == 60
    assert {axis.key for axis in result.surface.axes if axis.certain} == {"lr", "warmup", "kind"}
    assert result.surface.axes[0].key == "lr"
    rate = result.surface.of("lr")
    assert rate is not None and rate.log and rate.side == ""
    for axis in result.surface.axes:
        assert (axis.importance.low > 0) == axis.certain
    (trend,) = findings_of(result, "trend")
    assert trend.evidence["axis"] == "warmup" and trend.evidence["side"] == "smallest"
    place = findings_of(result, "optimum")[0]
    assert place.evidence["axis"] == "lr" and place.text.startswith("lr: the best 9 of 60 cells")
    assert place.evidence["low"] <= 10**-3.5 <= place.evidence["high"]
    assert set(findings_of(result, "no_effect")[0].evidence["axes"]) == set(NULL)
    assert not findings_of(result, "interaction") and not findings_of(result, "edge")


def test_the_curve_of_a_loss_that_breaks_off_has_a_kink(tmp_path: Path):
    """A parabola would put the lowest point of a slow fall and a steep rise elsewhere."""
    noise = random.Random(12)
    cells: list[tuple[dict[str, Any], list[float]]] = []
    for _ in range(60):
        rate, warmup = noise.uniform(-5, -2), noise.uniform(0, 1)
        level = 5 - (rate + 2.8) + 10 * max(rate + 2.8, 0) + 3 * warmup
        cells.append(({"lr": 10**rate, "warmup": warmup}, [level + noise.gauss(0, 0.3)]))
    written.measured(tmp_path, cells, axes=("lr", "warmup"))
    result = studied(tmp_path)
    rate = result.surface.of("lr") if result.surface is not None else None
    xs = np.log10(np.array(rate.xs, dtype=float))
    middle = float(np.mean([settings["warmup"] for settings, _ in cells]))
    truth = 5 - (xs + 2.8) + 10 * np.maximum(xs + 2.8, 0) + 3 * middle
    assert np.mean((truth >= rate.low) & (truth <= rate.high)) > 0.9
    assert abs(xs[int(np.argmin(rate.means))] + 2.8) < 0.1


def test_every_axis_of_a_random_search_is_drawn_or_named(tmp_path: Path):
    searched(tmp_path, points=26)
    result = studied(tmp_path)
    assert result.pairs == ()  # 26 by 26 values are too many for a table
    panels = {panel.name for panel in gallery(result) if panel.section == "axes"}
    assert panels == {"lr", "warmup", "kind", *NULL}
    report = analysis.analyze(str(tmp_path), "demo")
    page = Path(report.html_path).read_text()
    left = re.search(r"The 7 of 8 settings with the largest effects; left out: ([a-z_]+)\.", page)
    assert left is not None and left[1] in panels
    assert "How much each axis matters" in page and '<table class="heat">' not in page
    assert set(report.document["model"]["axes"][0]) >= {"importance", "permuted"}


def test_axes_that_are_not_modelled_are_named_with_the_reason(tmp_path: Path):
    noise = random.Random(2)
    cells = [({"lr": noise.random(), "prompt": f"text {i}"}, [noise.random()]) for i in range(30)]
    written.measured(tmp_path, cells, axes=("lr", "prompt"))
    (finding,) = findings_of(studied(tmp_path), "not_modelled")
    assert "prompt (it has 30 values other than numbers)" in finding.text


def test_few_cells_make_no_model(tmp_path: Path):
    searched(tmp_path, points=8)
    (finding,) = findings_of(studied(tmp_path), "not_modelled")
    assert "8 cells are too few" in finding.text


def made(rng: np.random.Generator, count: int) -> list[Column]:
    numbers = [rng.uniform(0, 1, count).tolist(), (10 ** rng.uniform(-5, -2, count)).tolist()]
    texts = rng.choice(["a", "b", "c"], count).tolist()
    columns = [column("x", numbers[0], []), column("lr", numbers[1], []), column("t", [], texts)]
    return [made_column for made_column in columns if isinstance(made_column, Column)]


def test_the_model_is_least_squares_as_statsmodels_has_it():
    rng = np.random.default_rng(3)
    columns = made(rng, 40)
    y = rng.normal(0, 1, 40) + columns[0].at
    model = fit(columns, y)
    theirs = sm.OLS(y, model.design).fit()
    assert model.weights == pytest.approx(theirs.params, abs=1e-9)
    assert model.spread == pytest.approx(theirs.cov_params(), abs=1e-9)
    squares, terms = model.squares(1)
    restriction = np.eye(model.design.shape[1])[3:5]
    test = theirs.f_test(restriction)
    assert squares / terms / model.variance == pytest.approx(float(test.fvalue), rel=1e-9)
    influence = theirs.get_influence()
    assert model.leverage == pytest.approx(influence.hat_matrix_diag, abs=1e-9)
    means, errors = model.part(0, np.array([0.5]))
    row = np.zeros(model.design.shape[1])
    row[0], row[1:3] = 1, columns[0].terms(np.array([0.5]))[0]
    theirs_at = theirs.get_prediction(row)
    assert means[0] == pytest.approx(theirs_at.predicted_mean[0], abs=1e-9)
    assert errors[0] == pytest.approx(theirs_at.se_mean[0], abs=1e-9)


def test_a_p_by_dealing_is_that_of_the_f_test_for_normal_noise():
    rng = np.random.default_rng(5)
    columns = made(rng, 60)
    y = rng.normal(0, 1, 60) + 0.3 * columns[1].at
    model = fit(columns, y)
    squares, terms = model.squares(1)
    exact = float(stats.f.sf(squares / terms / model.variance, terms, model.df))
    assert model.dealt(1, 4999) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("statistic", [1.5, 8.0, 60.0])
def test_the_interval_of_a_share_is_that_of_the_noncentral_f(statistic: float):
    for share in (0.025, 0.975):
        shift = noncentrality(share, 2, 40, statistic)
        if shift > 0:
            assert float(stats.ncf.cdf(statistic, 2, 40, shift)) == pytest.approx(share, abs=1e-6)
        else:
            assert float(stats.f.cdf(statistic, 2, 40)) <= share


def test_two_axes_that_depend_on_each_other_are_reported(tmp_path: Path):
    noise = random.Random(7)
    cells: list[tuple[dict[str, Any], list[float]]] = []
    for _ in range(50):
        settings = {key: noise.uniform(-1, 1) for key in "xyz"}
        cells.append((settings, [settings["x"] * settings["y"] + noise.gauss(0, 0.2)]))
    written.measured(tmp_path, cells, axes=("x", "y", "z"))
    result = studied(tmp_path)
    (finding,) = findings_of(result, "interaction")
    assert {finding.evidence["x"], finding.evidence["y"]} == {"x", "y"}
    assert result.surface is not None and result.surface.pairs[0].certain
    corners = np.array(result.surface.pairs[0].means)[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners == pytest.approx([1, -1, -1, 1], abs=0.35)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1e-4, 1e-3, 1e-2], True),
        ([1, 2, 3, 4], False),
        ([8, 16, 32, 64], True),
        ([0, 0.1, 0.2], False),
        ([10 ** (-5 + i / 20) for i in range(60)], True),
        ([i / 60 + 0.01 for i in range(60)], False),
    ],
)
def test_numbers_lie_on_the_scale_on_which_they_are_even(values: list[float], log: bool):
    assert log_spread(values) == log


def test_errors_clustered_by_item_are_statsmodels():
    rng = np.random.default_rng(8)
    clusters = [i // 4 for i in range(40)]
    scores = rng.normal(0, 1, 40) + rng.normal(0, 1, 10)[clusters]
    interval = level(scores[np.newaxis], None, clusters)
    fitted = sm.OLS(scores, np.ones(40)).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    assert interval.items == pytest.approx(float(fitted.bse[0]) ** 2, abs=1e-9)
