"""Sweeps that combine several: each part is judged separately, also in tinker-cookbook's sweep."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import cookbook_sweep as cookbook
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.blocks import find_blocks
from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.comparison.contrasts import rest
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import load
from sweeper.errors import UsageError
from sweeper.grid import parse_grid
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e
COMMON = {"moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2.5", "Qwen/Qwen3-32B"} | {
    "openai/gpt-oss-120b"
}
"""Models with holes whose learning rates are those of most others."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return the study of the cookbook's sweep by model, with the noise of its repeated cells."""
    root = tmp_path_factory.mktemp("cookbook")
    cookbook.write(root, cookbook.read())
    data = load(Registry(str(root)), "sft-sweep", None, None)
    assert data.metric is not None
    return study(replace(data, metric=replace(data.metric, noise="pooled", by="model_name")))


def expected() -> dict[str, Any]:
    """Return the means of each model, best first, computed from the numbers."""
    values: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in cookbook.read():
        if row.test_nll is not None:
            values[row.model][row.rate, row.rank].append(row.test_nll)
    return {
        model: sorted((sum(values) / len(values), at) for at, values in cells.items())
        for model, cells in values.items()
    }


def test_each_model_of_the_cookbooks_sweep_has_its_winner_and_its_ends(judged: Study):
    assert judged.blocks is not None and judged.blocks.ragged
    blocks = {block.value: block for block in judged.blocks.blocks}
    want = expected()
    assert blocks.keys() == want.keys() and len(blocks) == 35
    ranks, rates = set[str](), set[str]()
    for model, means in want.items():
        best = blocks[model].best
        assert best is not None and best.summary.mean == pytest.approx(means[0][0], abs=1e-12)
        rate, rank_ = means[0][1]
        if rank_ == max(mean[1] for _, mean in means) and means[1][0] > means[0][0]:
            ranks.add(model)
        if rate in (max(mean[0] for _, mean in means), min(mean[0] for _, mean in means)):
            rates.add(model)
    blocks_at_edge = {axis: {m for m, b in blocks.items() if _edge(b, axis)} for axis in _AXES}
    assert len(ranks) == 31 and blocks_at_edge["lora_rank"] == ranks
    assert len(rates) == 10 and blocks_at_edge["learning_rate"] >= rates
    # Two more are at the edge for their rank: a larger rate failed or was not tried.
    more = {"Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-32B"}
    assert blocks_at_edge["learning_rate"] - rates == more - rates


_AXES = ("learning_rate", "lora_rank")


def _edge(block: Any, axis: str) -> bool:
    return any(edge.axis == axis for edge in block.edges)


def test_no_model_is_best_of_all_and_the_verdict_speaks_of_each(judged: Study):
    """One claim per model and no best cell overall, since models differ in cells and data."""
    verdict, blocks = judged.verdict, judged.blocks
    assert blocks is not None and judged.ranking.best is None
    assert (verdict.kind, verdict.number, verdict.checkpoint) == ("blocks", None, None)
    assert verdict.headline == "35 best cells, one for each model_name"
    ahead = sum(not block.tied for block in blocks.blocks)
    assert verdict.checks[0].answer == f"in {ahead} of 35" and 0 < ahead < 35
    assert {"edge", "at_end", "tied", "separated"}.isdisjoint(f.kind for f in judged.findings)
    best = {block.best.name for block in blocks.blocks if block.best is not None}
    assert set(judged.ranking.leaders.values()) == best
    for name, comparison in judged.ranking.comparisons.items():
        assert name not in best and comparison.difference >= 0
    assert verdict.text("sft-sweep").count("\n    ") > 12


def test_without_by_the_report_mentions_blocks(tmp_path: Path):
    cookbook.write(tmp_path, cookbook.read())
    result = study(load(Registry(str(tmp_path)), "sft-sweep", None, None))
    assert result.blocks is not None and not result.ranking.leaders
    (step,) = [step for step in result.verdict.steps if "--by" in step]
    assert step.endswith("sweeper analyze sft-sweep --by model_name.")


def test_the_place_of_the_best_rate_is_counted_and_holds_that_of_33_models(judged: Study):
    """A curve fitted to these rates has its lowest point where no model has its best rate."""
    (place,) = [
        finding.evidence
        for finding in judged.findings
        if finding.kind == "optimum" and finding.evidence["axis"] == "learning_rate"
    ]
    assert place is not None and dict(place["counts"])[3e-4] == 22
    rates = [means[0][1][0] for means in expected().values()]
    assert (place["low"], place["high"]) == (3e-4, 1e-3)
    assert sum(place["low"] <= rate <= place["high"] for rate in rates) >= 33


def test_holes_are_what_other_models_have(judged: Study):
    holes = {block.value: len(block.holes) for block in judged.blocks.blocks if block.holes}
    assert sum(holes[model] for model in COMMON) == 11 and judged.blocks.holes == 28
    (qwen,) = [block for block in judged.blocks.blocks if block.value == "Qwen/Qwen3-32B"]
    assert qwen.holes == tuple(
        (("learning_rate", "1e-3"), ("lora_rank", rank)) for rank in ("4", "16", "64")
    )
    planned = {(c.settings["model_name"], rest(c, "model_name")) for c in judged.ranking.cells}
    every = [(block.value, row) for block in judged.blocks.blocks for row in block.holes]
    missing = [cell for cell in every if cell not in planned]
    assert judged.next is not None and judged.next.kind == "holes"
    assert judged.next.cells == len(missing) == judged.next.yaml.count("- {model_name: ")


def test_what_blocks_lack_is_what_to_run_next_and_then_what_may_be_their_best(tmp_path: Path):
    """First the holes, then fresh seeds of the best cells and of those within their noise."""
    grid = (
        "recipe: sft  # as ever\ngrid: {model: [a, b], lr: [1, 2], rank: [1, 2]}\nseeds: 3\n"
        "exclude: [{model: b, lr: 2, rank: 2}]\nmetric: {name: test/nll, goal: minimize}\n"
    )
    metric = written.METRIC | {"by": "model"}

    def following(name: str, **levels: float) -> Study:
        """Return the study of cells that are given by model, rate and rank."""
        cells = [
            ({"model": at[0], "lr": int(at[1]), "rank": int(at[2])}, [level, level + 0.1])
            for at, level in levels.items()
        ]
        axes = ("model", "lr", "rank")
        written.measured(tmp_path, cells, axes=axes, name=name, grid=grid, metric=metric)
        return study(load(Registry(str(tmp_path)), name, None, None))

    others = {"a12": 9.0, "a22": 8.0, "b11": 3.0, "b21": 2.0, "b12": 4.0}
    holed = following("holed", a11=1.0, a21=1.05, **others)
    assert holed.next is not None and holed.next.kind == "holes"
    assert (holed.next.cells, holed.next.runs) == (1, 2)
    assert "- {model: b, lr: 2, rank: 2}" in holed.next.yaml and "# as ever" in holed.next.yaml
    (step,) = [step for step in holed.verdict.steps if step.startswith("Fill")]
    assert step.endswith("launch next.yaml (2 new runs, finished ones are kept).")
    whole = following("whole", a11=1.0, a21=1.05, b22=5.0, **others)
    assert whole.next is not None and whole.next.kind == "confirm"
    assert (whole.next.cells, whole.next.runs) == (2, 8)
    assert parse_grid(whole.next.yaml, "next.yaml").name == "whole-confirm"
    for lr in (1, 2):
        assert f"- {{model: a, lr: {lr}, rank: 1}}" in whole.next.yaml
    proposal = following("told", a11=1.0, a21=7.0, b22=5.0, **others)
    assert proposal.next is None and proposal.no_next is None


def test_a_block_of_single_runs_gets_fresh_seeds_of_its_first_two(tmp_path: Path):
    cells = [({"model": m, "lr": lr}, [lr + len(m)]) for m in ("a", "bb") for lr in (1, 2, 4)]
    grid = "recipe: sft\ngrid: {model: [a, bb], lr: [1, 2, 4]}\nseeds: 1\n"
    written.measured(tmp_path, cells, axes=("model", "lr"), grid=grid)
    report = analysis.analyze(str(tmp_path), "demo", by="model")
    following = report.document["next_grid"]
    assert (following["kind"], following["cells"], following["runs"]) == ("confirm", 4, 12)
    assert "lr: 4" not in following["yaml"] and "seeds: [1, 2, 3]" in following["yaml"]


def test_repeated_cells_lend_their_noise_and_margins_within_it_are_ties(judged: Study):
    noise = judged.ranking.noise
    assert (noise.kind, noise.repeated, noise.total) == ("pooled", 66, 66.0)
    # Three cells at rates where most others diverged have 98 % of the sum of squares.
    assert noise.trend == "learning_rate toward divergence"
    sds = {c.settings["learning_rate"]: noise.spreads[c.name].sd for c in judged.ranking.measured}
    assert sds[4e-5] == pytest.approx(0.00013, rel=0.1) and sds[3e-3] > 0.002
    by = {block.value: block for block in judged.blocks.blocks}
    assert by["Qwen/Qwen3.5-9B"].compared == 15
    assert sum(block.ahead for block in by.values()) == 30
    assert not by["meta-llama/Llama-3.2-1B"].tied  # ahead by four standard deviations
    for block in by.values():
        calm = [c for c in block.tied if c.settings["learning_rate"] <= 1e-3]
        reach = [c.summary.mean - block.best.summary.mean for c in calm]  # type: ignore[union-attr, operator]
        assert max(reach, default=0.0) < 0.001


def _two_models(seeds: int) -> list[tuple[dict[str, Any], list[float]]]:
    """Return cells in which one model prefers the smaller rate and the other the larger."""
    noise = random.Random(4)
    cells = [("a", lr, abs(lr - 1)) for lr in (1, 2, 4)] + [
        ("b", lr, 5 - lr) for lr in (1, 2, 4, 8)
    ]
    return [
        ({"model": model, "lr": lr}, [level + noise.gauss(0, 0.1) for _ in range(seeds)])
        for model, lr, level in cells
    ]


def test_blocks_are_found_where_the_optimum_moves(tmp_path: Path):
    written.measured(tmp_path, _two_models(3), axes=("model", "lr"))
    result = study(load(Registry(str(tmp_path)), "demo", None, None))
    assert result.blocks is not None and not result.blocks.requested and result.blocks.by == "model"
    ends = {b.value: [(e.value, e.side, e.told) for e in b.edges] for b in result.blocks.blocks}
    assert ends == {"a": [(1, "smallest", True)], "b": [(8, "largest", True)]}


def test_equal_models_make_no_blocks(tmp_path: Path):
    noise = random.Random(4)
    cells = [
        ({"model": model, "lr": lr}, [noise.gauss(1, 0.1) for _ in range(3)])
        for model in "abc"
        for lr in (1, 2, 4)
    ]
    written.measured(tmp_path, cells, axes=("model", "lr"))
    assert study(load(Registry(str(tmp_path)), "demo", None, None)).blocks is None


def test_a_report_by_blocks(tmp_path: Path):
    written.measured(tmp_path, _two_models(1), axes=("model", "lr"))
    report = analysis.analyze(str(tmp_path), "demo", by="model")
    rows = {row["value"]: row for row in report.document["blocks"]["rows"]}
    assert rows["a"]["best"] == "model=a,lr=1" and rows["b"]["best"] == "model=b,lr=8"
    page, markdown = (Path(report.files[f"report.{kind}"]).read_text() for kind in ("html", "md"))
    assert '<section id="blocks"' in page and "## By model" in markdown
    assert report.document["verdict"]["kind"] == "blocks"
    assert report.document["verdict"]["best"] is None
    assert [line for line in report.verdict.splitlines() if line.startswith("    a: lr 1, 0.")]


def test_blocks_are_made_by_a_setting_that_differs(tmp_path: Path):
    written.measured(tmp_path, _two_models(1), axes=("model", "lr"))
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    with pytest.raises(
        UsageError, match="'modle': all cells have the same value; they differ in model"
    ):
        find_blocks(ranking, 1.0, "modle")
    grid = "recipe: sft\ngrid: {lr: [1, 2]}\nmetric: {name: x, goal: minimize, by: model_name}\n"
    metric = parse_grid(grid, "g.yaml").metric
    assert metric is not None and metric.by == "model_name"


def test_the_numbers_are_those_of_the_results_page():
    text = (
        "## org/M\n| 4e-05 | 1 | 0.6090 | 0.6195 | 331 |\n| 4e-05 | 1 | 0.61 | 0.62 | 3 |\n"
        "> **Note:** 2 run(s) diverged (test_nll > 2.0) at lr={3e-03} with rank={1, 2} and are\n"
    )
    rows = cookbook.parse(text)
    assert [(row.rate, row.rank, row.test_nll) for row in rows] == [
        (4e-05, 1, 0.609),
        (4e-05, 1, 0.61),
        (0.003, 1, None),
        (0.003, 2, None),
    ]
    assert sum(row.test_nll is not None for row in cookbook.read()) == 548
