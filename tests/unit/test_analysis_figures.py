"""Learning curves: which runs make the mean, and what is left out of it."""

import math

import numpy as np
import pytest
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.figures.curves import smooth
from sweeper.analysis.figures.learning_curves import WINDOWS, curves
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.series import Series
from sweeper.results.registry import Registry


def test_the_mean_is_over_the_runs_that_count(tmp_path):
    sweep = written.Written(tmp_path, axes={"lr": [1]})
    ends = [(1.0, "succeeded"), (3.0, "succeeded"), (math.nan, "succeeded"), (90.0, "failed")]
    for seed, (end, state) in enumerate(ends):
        start = 2.0 if math.isfinite(end) and state == "succeeded" else 50.0
        rows = [{"step": 0, "test/nll": start}, {"step": 1, "test/nll": end}]
        sweep.run({"lr": 1}, seed, rows, state)
    sweep.save()
    figure = curves(rank(load(Registry(str(tmp_path)), "demo", None, None)), "test/nll")
    drawn = {trace["meta"]["role"]: trace for trace in figure["data"]}
    assert drawn["mean"]["y"] == [2.0, 2.0] and drawn["mean"]["name"].endswith("(mean of 2)")
    assert drawn["band"]["y"] == [2.0, 3.0, 1.0, 2.0]
    # The succeeded runs in one line with gaps, the failed one dotted.
    whole, failed = (trace for trace in figure["data"] if trace["meta"]["role"] == "run")
    assert [name for name, _, _ in whole["meta"]["runs"]] == [f"lr=1,seed={s}" for s in range(3)]
    assert [count for _, count, _ in whole["meta"]["runs"]] == [3, 3, 3]
    assert whole["y"] == [2.0, 1.0, None, 2.0, 3.0, None, 50.0, None]
    assert failed["line"]["dash"] == "dot" and failed["meta"]["runs"][0][0].endswith("(failed)")
    assert drawn["end"]["y"] == [50.0]


def test_values_near_the_largest_float_are_drawn_or_left_out(tmp_path):
    sweep = written.Written(tmp_path)
    rows = [{"step": s, "test/nll": v} for s, v in enumerate((1.0, 1.7976931348623157e308, 2.0))]
    sweep.run({}, 0, rows)
    sweep.save()
    figure = curves(rank(load(Registry(str(tmp_path)), "demo", None, None)), "test/nll")
    assert figure["data"][0]["y"] == [1.0, None, 2.0]


def test_smoothed_is_one_window_for_runs_mean_and_band(tmp_path):
    sweep = written.Written(tmp_path)
    for seed in range(3):
        sweep.run({}, seed, written.curve(0.2 + seed / 100, steps=200, every=1, noise=0.3))
    sweep.save()
    figure = curves(rank(load(Registry(str(tmp_path)), "demo", None, None)), "test/nll")
    drawn = {trace["meta"]["role"]: trace for trace in figure["data"]}
    even = {role: trace["meta"]["smooth"][WINDOWS.index(0.05)] for role, trace in drawn.items()}
    count = len(drawn["mean"]["x"])
    high, low = even["band"][:count], even["band"][count:][::-1]
    runs = [even["run"][i * (count + 1) : i * (count + 1) + count] for i in range(3)]
    for run in runs:
        assert all(a <= value <= b for a, value, b in zip(low, run, high, strict=True))
    means = np.mean(runs, axis=0)
    assert even["mean"] == pytest.approx(means.tolist(), rel=1e-3)
    # Much of the noise is gone, and the ends are unchanged.
    raw = drawn["run"]["y"][:count]
    assert np.std(np.diff(runs[0])) < 0.3 * np.std(np.diff(raw))
    assert (runs[0][0], runs[0][-1]) == (raw[0], raw[-1])


def test_many_cells_in_grey_are_one_line_each_of_one_trace(tmp_path):
    means = {(1e-4 * i, 8): i / 10 for i in range(1, 41)}
    written.grid_of_means(tmp_path, means, seeds=2)
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    figure = curves(ranking, "test/nll")
    grey = [trace for trace in figure["data"] if trace["meta"]["tone"] < 0]
    (trace,) = grey
    assert trace["meta"]["cells"] == list(range(8, 40)) and len(figure["data"]) == 1 + 3 * 8
    start = 0
    for position, (_, count, _) in zip(trace["meta"]["cells"], trace["meta"]["runs"], strict=True):
        end = [value for value in trace["y"][start : start + count] if value is not None][-1]
        assert end == pytest.approx(ranking.cells[position].summary.mean, rel=1e-4)
        start += count
    assert start == len(trace["y"]) + 1 == len(trace["x"]) + 1


def test_a_window_is_of_steps_and_gaps_stay_gaps():
    steps, values = np.array([0.0, 1, 2, 3, 10]), np.array([4.0, math.nan, 0.0, 8.0, 2.0])
    smoothed = smooth(Series(steps, values, np.arange(5)), 4.0)
    assert smoothed.values[2] == pytest.approx(4.0)  # 0, 2 and 3: nothing else is within two steps
    assert math.isnan(smoothed.values[1]) and smoothed.values[[0, 4]].tolist() == [4.0, 2.0]
    huge = Series(steps, np.array([1.7e308, -1.7e308, 1.7e308, 1.7e308, 1.7e308]), np.arange(5))
    assert np.isfinite(smooth(huge, 4.0).values).all()
