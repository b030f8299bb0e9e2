"""Requested comparisons of DataFrames, sweeps and cells."""

import json
import math
from pathlib import Path
from typing import Any

import pandas
import plotly.graph_objects as go
import pytest
from scipy import stats
from support import written

from sweeper import analysis
from sweeper.analysis.page.markdown import escape, fenced
from sweeper.cli import main
from sweeper.errors import NotFound, UsageError
from sweeper.results.registry import Registry

LOW, HIGH = [0.20, 0.22, 0.21], [0.60, 0.63, 0.59]


def frame(**cells: list[float]) -> pandas.DataFrame:
    rows = [
        {"cell": cell, "seed": seed, "state": "succeeded", "value": value}
        for cell, values in cells.items()
        for seed, value in enumerate(values)
    ]
    return pandas.DataFrame(rows)


def test_a_frame_is_compared_as_scipy_would():
    comparison = analysis.compare(frame(a=HIGH, b=LOW))
    assert (comparison.best, comparison.tied, comparison.told_apart) == ("b", (), ("a",))
    pair = comparison.pairs.iloc[0]
    expected: Any = stats.ttest_ind(HIGH, LOW, equal_var=False)
    assert (pair["a"], pair["b"]) == ("b", "a")
    assert pair["p"] == pytest.approx(expected.pvalue, abs=1e-9)
    paired: Any = stats.ttest_rel(HIGH, LOW)
    assert pair["paired_p"] == pytest.approx(paired.pvalue, abs=1e-9)
    assert list(comparison.cells["n"]) == [3, 3]
    assert "b is best" in comparison.text and "1 cell worse" in comparison.text
    go.Figure(comparison.figure)
    assert "<script" not in comparison._repr_html_()


def test_the_best_of_cells_that_were_not_compared_is_the_best_of_all_of_them():
    alone = analysis.compare(frame(a=LOW)).cells.iloc[0]
    among = analysis.compare(frame(a=LOW, b=[0.3], c=[0.4])).cells.iloc[0]
    assert among["low"] == alone["low"] and among["high"] > alone["high"]


def test_failed_runs_and_missing_values_are_left_out():
    given = frame(a=[*LOW, 9.0], b=HIGH)
    given.loc[3, "state"] = "failed"
    given.loc[len(given)] = ["b", 3, "succeeded", math.nan]
    comparison = analysis.compare(given, goal="maximize")
    assert comparison.best == "b" and list(comparison.cells["n"]) == [3, 3]


def test_cells_are_what_the_columns_say():
    given = frame(a=LOW, b=HIGH).assign(sweep="s", lr=[1, 1, 1, 2, 2, 2])
    assert list(analysis.compare(given, by="lr").cells["cell"]) == ["1", "2"]
    several = pandas.concat([given, given.assign(sweep="t")])
    assert set(analysis.compare(several).cells["cell"]) == {"s/a", "s/b", "t/a", "t/b"}
    assert analysis.compare(given.iloc[:0]).best is None
    with pytest.raises(UsageError, match="no column 'nothing'"):
        analysis.compare(given, metric="nothing")
    with pytest.raises(UsageError, match="minimize or maximize"):
        analysis.compare(given, goal="less")


@pytest.fixture
def two(tmp_path: Path) -> Registry:
    """Write sweeps `a` and `b` with different batch sizes; `b` is better at lr 1 only."""
    for name, batch, shift in (("a", 32, 0.0), ("b", 64, -0.1)):
        sweep = written.Written(tmp_path, name, axes={"lr": [1, 2]})
        for lr in (1, 2, *([3] if name == "b" else [])):
            for seed, value in enumerate(LOW):
                end = value + (shift if lr == 1 else 0.001 * (seed - 1)) + lr
                rows = [{"step": 0, "test/nll": end}]
                sweep.run({"lr": lr}, seed, rows, config={"batch": batch})
        sweep.save()
    return Registry(str(tmp_path))


def test_sweeps_are_joined_by_their_settings(two):
    comparison = analysis.versus(two, "a", "b")
    rows = {row["cell"]: row for row in comparison.document["cells"]}
    assert set(rows) == {"lr=1", "lr=2"}
    assert comparison.changed == (("batch", "32", "64"),)
    assert (comparison.only_a, comparison.only_b) == ((), ("lr=3",))
    expected: Any = stats.ttest_ind([v - 0.1 for v in LOW], LOW, equal_var=False)
    # Holm's correction for two tests.
    assert rows["lr=1"]["p"] == pytest.approx(2 * expected.pvalue, abs=1e-9)
    assert rows["lr=1"]["difference"] == pytest.approx(-0.1)
    assert "B better" in comparison.text and "noise can explain it" in comparison.text
    assert len(comparison.table) == 2
    json.dumps(comparison.document, allow_nan=False)


def test_two_cells_are_compared_seed_by_seed(two):
    comparison = analysis.versus(two, "a/lr=1", "a/lr=2")
    (row,) = comparison.rows
    assert row.over_seeds is not None and row.difference.value == pytest.approx(1.0)
    assert ("lr", "1", "2") in comparison.changed and "A better" in comparison.text


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ("a", "a/lr=1", UsageError, "two sweeps, or two cells"),
        ("a/lr", "a/lr=1", UsageError, "matches 2 cells"),
        ("a/x", "a/lr=1", NotFound, "no cell 'x'"),
        ("a", "c", NotFound, "no sweep"),
    ],
)
def test_sweeps_and_cells_that_cannot_be_compared_are_refused(two, a, b, error, message):
    with pytest.raises(error, match=message):
        analysis.versus(two, a, b)


def test_markdown_shows_text_as_it_is():
    assert escape("a|b") == "a\\|b" and escape("\x1b[31m`x`") == "\\`x\\`"
    assert escape("<b>[x](y)</b>\n# z") == "&lt;b&gt;\\[x\\]\\(y\\)&lt;/b&gt; \\# z"
    assert fenced("a\n````\nb", "yaml") == "`````yaml\na\n````\nb\n`````"


def test_sweeps_that_are_judged_at_different_values_compare_at_one(tmp_path, capsys):
    for name, at in (("one", "last"), ("two", "best")):
        metric = {"name": "test/nll", "goal": "minimize", "at": at}
        means = {(1e-4, 8): 0.9, (1e-3, 8): 0.2}
        written.grid_of_means(tmp_path, means, name=name, metric=metric)
    registry = Registry(str(tmp_path))
    message = "one and two are not judged in the same way .last value of test/nll, minimize; best "
    with pytest.raises(UsageError, match=f"{message}value of test/nll, minimize.: choose --at$"):
        analysis.versus(registry, "one", "two")
    with pytest.raises(UsageError, match=r"choose --at$"):
        analysis.analyze(registry, ["one", "two"])
    comparison = analysis.versus(registry, "one", "two", at="best")
    assert comparison.metric.at == "best" and "best value of each run" in comparison.text
    assert [row.difference.value for row in comparison.rows] == [0.0, 0.0]
    typed = ["compare", "one", "two", "--root", str(tmp_path)]
    assert main(typed) == 2 and "choose --at" in capsys.readouterr().err
    assert main([*typed, "--at", "best"]) == 0
    assert "best value of each run" in capsys.readouterr().out
