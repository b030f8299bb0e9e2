"""Blocks of a sweep, each of them judged by itself."""

from dataclasses import replace

import pytest
from support import written

from sweeper.analysis import analyze
from sweeper.analysis.comparison.blocks import find_blocks
from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.findings.study import find
from sweeper.analysis.reading.commands import analysing
from sweeper.analysis.reading.frames import load
from sweeper.analysis.statistics.regression import column
from sweeper.errors import UsageError
from sweeper.results.registry import Registry


def test_holes_with_other_settings_each_have_one_order(tmp_path):
    keys = [f"x{i}" for i in range(6)]
    alone = [({"model": "a", key: "nan"}, [0.5, 0.6]) for key in keys]
    whole = ({"model": "b"} | dict.fromkeys(keys, "nan"), [0.4, 0.5])
    written.measured(tmp_path, [*alone, whole], axes=("model",))
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    blocks = find_blocks(ranking, 1.0, "model")
    (block,) = [candidate for candidate in blocks.blocks if candidate.value == "b"]
    assert block.holes == tuple(((key, "nan"),) for key in keys)


def test_edges_in_blocks_are_corrected_for_their_number(tmp_path):
    """The end beats the value before by 2.4 standard errors (first model) and 6 (second)."""
    ends = {"a": 0.304, "b": 1.51} | dict.fromkeys("cdef", 2.6)
    cells = [
        ({"model": model, "lr": lr}, [level + noise for noise in (-0.1, 0, 0.1)])
        for model, end in ends.items()
        for lr, level in ((1, 3.0), (2, {"a": 0.5, "b": 2.0}.get(model, 2.5)), (4, end))
    ]
    written.measured(tmp_path, cells, axes=("model", "lr"))
    data = load(Registry(str(tmp_path)), "demo", None, None)
    ranking = rank(data)
    blocks = find_blocks(ranking, 1.0, "model")
    edges = {block.value: [edge.told for edge in block.edges] for block in blocks.blocks}
    assert edges == {"a": [False], "b": [True]} | {model: [] for model in "cdef"}
    kinds = {finding.kind for finding in find(data, ranking, blocks)}
    assert "at_end" in kinds and "edge" not in kinds


def test_a_setting_that_all_cells_have_alike_makes_no_blocks(tmp_path):
    """As in a grid that confirms cells of one model."""
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2]})
    for lr in (1, 2):
        rows = [{"step": 1, "test/nll": lr / 2}]
        sweep.run({"lr": lr}, 0, rows, config={"model": {"name": "a"}})
    ranking = rank(load(Registry(str(sweep.save() and tmp_path)), "demo", None, None))
    assert find_blocks(ranking, 1.0, "model.name") is None
    with pytest.raises(
        UsageError, match="'modle': all cells have the same value; they differ in lr"
    ):
        find_blocks(ranking, 1.0, "modle")


def test_blocks_by_two_settings_have_a_best_for_each_combination(tmp_path):
    best = {("a", 4): 1, ("a", 8): 2, ("b", 4): 2, ("b", 8): 1}
    cells = [
        ({"model": model, "rank": rank, "lr": lr}, [level + noise for noise in (-0.01, 0, 0.01)])
        for (model, rank), right in best.items()
        for lr, level in ((1, 0.5 if right == 1 else 0.9), (2, 0.5 if right == 2 else 0.9))
    ]
    written.measured(tmp_path, cells, axes=("model", "rank", "lr"))
    out = tmp_path / "out"
    report = analyze(str(tmp_path), "demo", by="model,rank", out=out, pictures=True)
    blocks = report.document["blocks"]
    assert blocks["by"] == "model, rank"
    assert {tuple(row["value"]): row["best"] for row in blocks["rows"]} == {
        (model, rank): f"model={model},rank={rank},lr={lr}" for (model, rank), lr in best.items()
    }
    assert "one for each model, rank" in report.verdict
    assert "- a, 8: 2, " in (out / "report.md").read_text()
    with pytest.raises(UsageError, match="by 'rnk': all cells have the same value"):
        analyze(str(tmp_path), "demo", by="model,rnk", out=out, pictures=False)


@pytest.mark.parametrize("axis", [None, "model"])
def test_the_command_that_makes_a_report_again_says_its_blocks(tmp_path, axis):
    metric = written.METRIC | ({} if axis is None else {"by": axis})
    written.measured(tmp_path, [({"lr": 1, "model": "a"}, [0.5])], metric=metric)
    data = load(Registry(str(tmp_path)), "demo", None, None)
    assert data.metric is not None and "--by" not in analysing(data, {})
    data = replace(data, metric=replace(data.metric, by="lr"))
    assert "--by lr" in analysing(data, {})


def test_an_axis_of_many_texts_is_left_out_by_name():
    """Each text is a column of the model, which is fitted a thousand times."""
    too_many = column("prompt", [], [f"p{i % 41}" for i in range(1000)])
    assert too_many == "it has 41 values other than numbers"
    enough = column("prompt", [], [f"p{i % 40}" for i in range(1000)])
    assert not isinstance(enough, str) and len(enough.names) == 40
