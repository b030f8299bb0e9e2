"""Aggregates over several tasks, compared with scipy and the definitions of rliable."""

import numpy as np
import pytest
from scipy import stats
from support import written

from sweeper.analysis import analyze
from sweeper.analysis.comparison.tasks import improvement, interquartile_mean, interval, profile

RNG = np.random.default_rng(6)


@pytest.mark.parametrize("shape", [(1, 3), (3, 5), (10, 26), (7, 4)])
def test_the_interquartile_mean_is_the_trimmed_mean_of_all_scores(shape):
    scores = RNG.random(shape)
    expected = stats.trim_mean(scores, proportiontocut=0.25, axis=None)
    assert interquartile_mean(scores) == pytest.approx(expected, abs=1e-12)


def test_the_chance_of_an_improvement_is_mann_and_whitneys_u_over_the_tasks():
    first, second = np.round(RNG.random((5, 6)), 1), np.round(RNG.random((3, 6)), 1)
    chances = [
        stats.mannwhitneyu(first[:, task], second[:, task], alternative="greater").statistic / 15
        for task in range(6)
    ]
    assert improvement(first, second) == pytest.approx(np.mean(chances), abs=1e-12)
    assert improvement(first, first) == pytest.approx(0.5, abs=1e-12)


def test_a_profile_is_the_share_of_scores_above_each_level():
    scores = np.array([[0.2, 0.5], [0.5, 1.0]])
    assert profile(scores, (0.0, 0.2, 0.5, 0.9, 1.0)) == [1.0, 0.75, 0.25, 0.25, 0.0]


def test_the_interval_of_three_runs_holds_the_truth():
    """200 tables of 10 tasks: at 93 % coverage, fewer than 178 has a probability of 1 in 100."""
    rng = np.random.default_rng(9)
    levels = np.linspace(0.3, 0.7, 10)
    many = levels + rng.normal(0, 0.05, (4000, 10))
    held = 0
    truth = np.mean([interquartile_mean(many[at : at + 3]) for at in range(0, 3999, 3)])
    for _ in range(200):
        low, high = interval(levels + rng.normal(0, 0.05, (3, 10)))
        held += low <= truth <= high
    assert held >= 178


def test_the_report_has_a_table_of_checkpoints_by_benchmark(tmp_path):
    metric = {"name": "eval/gsm8k/score", "goal": "maximize"}
    sweep = written.Written(tmp_path, "m", {"rank": [4, 8]}, metric)
    for rank in (4, 8):
        for seed in (0, 1):
            rows = [
                {
                    "step": step,
                    "eval/gsm8k/score": rank * step / 200 + seed / 50,
                    "eval/ifeval/score": 0.5,
                }
                for step in (0, 10)
            ]
            checkpoint = {"name": "last-one", "batch": 10, "sampler_path": "tinker://x"}
            sweep.run({"rank": rank}, seed, rows, checkpoints=[checkpoint])
    sweep.save()
    report = analyze(str(tmp_path), "m", out=tmp_path / "out", pictures=True)
    table = report.document["checkpoints"]
    assert table["suites"] == ["gsm8k", "ifeval"]
    assert [(row["cell"], row["checkpoint"], row["runs"]) for row in table["rows"]] == [
        ("rank=8", "step 0", 2), ("rank=8", "last-one", 2), ("rank=4", "last-one", 2)
    ]  # fmt: skip
    assert table["rows"][1]["scores"] == {"gsm8k": pytest.approx(0.41), "ifeval": 0.5}
    assert "| rank=8 | last-one | 2 | 0.410 | 0.500 |" in (tmp_path / "out/report.md").read_text()
    assert "Checkpoints by benchmark" in (tmp_path / "out/report.html").read_text()
