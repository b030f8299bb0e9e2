"""Reports of sweeps judged by training metrics, and of single runs recorded item by item."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import example_sweeps as examples
from support import written

from sweeper import analysis
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import load
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e


def studied(root: Path, name: str) -> Study:
    return study(load(Registry(str(root)), name, None, None))


def kinds(result: Study) -> dict[str, Any]:
    return {finding.kind: finding for finding in result.findings}


def test_a_winner_of_training_is_not_called_one_of_what_was_held_out(tmp_path: Path):
    examples.make(tmp_path, "grpo")
    result = studied(tmp_path, "grpo")
    verdict, findings = result.verdict, kinds(result)
    assert verdict.label.startswith("clear winner in training, tied held out")
    assert verdict.kind == "unproven"
    assert verdict.number == "0.633" and "in training 0.992" in (verdict.spread or "")
    assert "a value on training data" in findings["judged_in_training"].text
    gap = findings["gap"].evidence
    assert gap["low"] < 0.22 < gap["high"] and gap["p"] < 1e-4
    assert any("--metric test/reward" in step for step in verdict.steps)
    assert findings["items"].evidence["items"] == 8
    # Judged by the held-out reward, the sweep has no clear winner.
    held = study(load(Registry(str(tmp_path)), "grpo", "test/reward", None))
    assert held.verdict.kind != "clear" and "judged_in_training" not in kinds(held)


def test_no_gap_is_reported_where_there_is_none(tmp_path: Path):
    sweep = written.Written(tmp_path, "fair", {"lr": [1, 2, 3, 4]}, {
        "name": "train/nll", "goal": "minimize", "at": "last",
    })  # fmt: skip
    rng = random.Random(4)
    for lr in (1, 2, 3, 4):
        for seed in range(3):
            ends = [lr + rng.gauss(0, 0.02) for _ in range(2)]
            sweep.run({"lr": lr}, seed, [{"step": 1, "train/nll": ends[0], "test/nll": ends[1]}])
    sweep.save()
    result = studied(tmp_path, "fair")
    assert result.held_out is not None and result.held_out.judged
    assert "gap" not in kinds(result)
    assert result.verdict.label.startswith("clear winner in training, and ahead held out")


def answers(folder: Path, right: int, of: int) -> None:
    lines = [{"item": f"q{i}", "score": int(i < right), "task": "test"} for i in range(of)]
    (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_single_runs_have_an_interval_over_their_items(tmp_path: Path):
    metric = {"name": "test/accuracy", "goal": "maximize", "at": "last"}
    sweep = written.Written(tmp_path, "once", {"lr": [1, 2]}, metric)
    for lr, right in ((1, 150), (2, 190)):
        run = sweep.run({"lr": lr}, None, [{"step": 1, "test/accuracy": right / 200}])
        answers(sweep.folder / "runs" / f"{run}.1", right, 200)
    sweep.save()
    result = studied(tmp_path, "once")
    assert result.verdict.kind == "unproven", "another seed may differ"
    assert "over 200 questions the 95 % interval is 0.9" in result.verdict.spread
    (item,) = result.items
    assert item.parted[0].told_apart and item.parted[0].worse == 40
    text = kinds(result)["items"].text
    assert "ahead of lr=1" in text and "not how models of other seeds would" in text
    report = analysis.analyze(str(tmp_path), "once")
    assert "Question by question" in Path(report.html_path).read_text()
    assert "Question by question: test" in Path(report.files["report.md"]).read_text()
    assert report.document["items"][0]["cells"][0]["over"] == "items"


def test_no_interval_of_a_share_leaves_0_to_1(tmp_path: Path):
    metric = {"name": "eval/gsm8k/score", "goal": "maximize", "at": "last"}
    sweep = written.Written(tmp_path, "shares", {"lr": [1, 2]}, metric)
    for lr, values in ((1, (0.99, 1.0, 0.97)), (2, (0.01, 0.0, 0.05))):
        for seed, value in enumerate(values):
            row = {"step": 1, "eval/gsm8k/score": value, "eval/gsm8k/num_examples": 100}
            sweep.run({"lr": lr}, seed, [row])
    sweep.save()
    for cell in studied(tmp_path, "shares").ranking.cells:
        low, high = cell.summary.low, cell.summary.high
        assert low is not None and high is not None and 0 < low < high < 1


def test_cells_over_several_tasks_have_rliables_figures(tmp_path: Path):
    examples.make(tmp_path, "tasks")
    result = studied(tmp_path, "tasks")
    assert result.tasks.tasks == ("gpqa", "gsm8k", "ifeval", "math500", "mbpp")
    first, *others = result.tasks.cells
    assert first.improves == 0.5 and all(figures.iqm <= first.iqm for figures in others)
    assert first.low is None, "two runs are too few to draw from"
    assert result.items[0].task == "gsm8k", "the metric's own first"
    report = analysis.analyze(str(tmp_path), "tasks")
    assert "performance profiles" in report.figures
    page = Path(report.html_path)
    assert "Over 5 tasks" in page.read_text()
    text = page.with_name("report.md").read_text()
    assert "## Over 5 tasks" in text
    pictures = [picture.name for picture in page.parent.glob("*.png")]
    assert "tasks-1.png" in pictures
    assert [name for name in pictures if f"]({name})" not in text] == []
