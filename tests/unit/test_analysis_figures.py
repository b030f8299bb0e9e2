"""Learning curves: which runs make the mean, and what is left out of it."""

import math
from pathlib import Path
from types import ModuleType

from analysis.cells import rank
from analysis.figures import curves
from analysis.frames import load
from sweeper.registry import Registry


def test_the_mean_is_over_the_runs_that_count(tmp_path: Path, written: ModuleType):
    sweep = written.Written(tmp_path, axes={"lr": [1]})
    ends = [(1.0, "succeeded"), (3.0, "succeeded"), (math.nan, "succeeded"), (90.0, "failed")]
    for seed, (end, state) in enumerate(ends):
        start = 2.0 if math.isfinite(end) and state == "succeeded" else 50.0
        rows = [{"step": 0, "test/nll": start}, {"step": 1, "test/nll": end}]
        sweep.run({"lr": 1}, seed, rows, state)
    sweep.save()
    figure = curves(rank(load(Registry(str(tmp_path)), "demo", None, None)), "test/nll")
    assert figure is not None
    drawn = {trace["meta"]["role"]: trace for trace in figure["data"]}
    assert drawn["mean"]["y"] == [2.0, 2.0]
    assert drawn["mean"]["name"].endswith("(mean of 2)")
    assert drawn["band"]["y"] == [2.0, 3.0, 1.0, 2.0]
    # The succeeded runs in one line with gaps, the failed one dotted.
    whole, failed = (trace for trace in figure["data"] if trace["meta"]["role"] == "run")
    assert [name for name, _, _ in whole["meta"]["runs"]] == [f"lr=1,seed={s}" for s in range(3)]
    assert [count for _, count, _ in whole["meta"]["runs"]] == [3, 3, 3]
    assert whole["y"] == [2.0, 1.0, None, 2.0, 3.0, None, 50.0, None]
    assert failed["line"]["dash"] == "dot" and failed["meta"]["runs"][0][0].endswith("(failed)")
    assert drawn["end"]["y"] == [50.0]


def test_values_near_the_largest_float_are_drawn_or_left_out(tmp_path: Path, written: ModuleType):
    sweep = written.Written(tmp_path)
    rows = [{"step": s, "test/nll": v} for s, v in enumerate((1.0, 1.7976931348623157e308, 2.0))]
    sweep.run({}, 0, rows)
    sweep.save()
    figure = curves(rank(load(Registry(str(tmp_path)), "demo", None, None)), "test/nll")
    assert figure is not None and figure["data"][0]["y"] == [1.0, None, 2.0]
