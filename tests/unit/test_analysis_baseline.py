"""What the best is compared with: a cell of the grid, or another sweep's winner."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.analysis.findings.baselines import with_baseline
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.page.celltables import cell_table
from sweeper.analysis.page.document import document
from sweeper.analysis.page.html import render
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.last_values import settle
from sweeper.planner.plan import plan
from sweeper.results.registry import Registry
from sweeper.sweep.plan import Baseline, read

_METRIC = {"name": "test/nll", "goal": "minimize", "at": "last"}


def _sweep(root: Path, name: str, lrs: dict[float, float], **more: Any) -> Any:
    made = written.Written(root, name, axes={"lr": list(lrs)}, **more)
    for lr, value in lrs.items():
        for seed, off in enumerate((-0.01, 0.0, 0.011)):
            made.run({"lr": lr, "of": name}, seed, [{"step": 1, "test/nll": value + off}])
    made.save()
    return made


def _study(root: Path, name: str) -> Study:
    registry = Registry(str(root))
    (data,) = settle(load(registry, name, None, None))
    return study(with_baseline(data, registry))


def test_the_verdict_says_by_how_much_the_best_beats_the_baseline(tmp_path):
    baseline = {"cell": "lr=0.3,of=demo"}
    _sweep(tmp_path, "demo", {0.1: 1.0, 0.2: 1.3, 0.3: 1.5}, baseline=baseline)
    study = _study(tmp_path, "demo")
    against = study.verdict.against or ""
    assert against.startswith("the baseline lr=0.3,of=demo is beaten by 0.5")
    assert "(95 % interval 0.4" in against
    assert against in study.verdict.text("demo")
    page = render(study, ())
    assert against[1:] in page.replace("<wbr>", "")
    assert "the baseline lr=0.3,of=demo" in [r["name"] for r in cell_table(study.ranking)["rows"]]
    assert document(study)["verdict"]["baseline"] == "lr=0.3,of=demo"


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ({"cell": "lr=0.1,of=demo"}, "the baseline lr=0.1,of=demo is not beaten by any cell"),
        ({"cell": "eval/base"},
         "the baseline eval/base is not a cell: there is no comparison with a baseline"),
        ({"sweep": "gone"},
         "the baseline gone cannot be read: no sweep 'gone'.*; there is no comparison .*"),
    ],
)  # fmt: skip
def test_the_verdict_explains_why_a_baseline_is_not_beaten(tmp_path, baseline, message):
    _sweep(tmp_path, "demo", {0.1: 1.0, 0.2: 1.3}, baseline=baseline)
    against = _study(tmp_path, "demo").verdict.against
    assert against is not None and re.fullmatch(message, against)


def test_the_winner_of_a_baseline_sweep_is_listed_with_the_cells(tmp_path):
    _sweep(tmp_path, "old", {0.1: 1.6, 0.2: 1.7})
    _sweep(tmp_path, "demo", {0.1: 1.0, 0.2: 1.3}, baseline={"sweep": "old"})
    study = _study(tmp_path, "demo")
    report = document(study)
    assert [row["cell"] for row in report["cells"]] == [
        *("lr=0.1,of=demo", "lr=0.2,of=demo", "old/lr=0.1,of=old")
    ]
    assert "the baseline old/lr=0.1,of=old is beaten by 0.6" in (study.verdict.against or "")
    assert report["completeness"]["planned"] == 6
    assert "6 of 6 runs" in json.dumps(report["verdict"]["checks"])


def test_no_baseline_no_comparison_with_one(tmp_path):
    _sweep(tmp_path, "demo", {0.1: 1.0, 0.2: 1.3})
    assert _study(tmp_path, "demo").verdict.against is None


def _cells(**grid: Any) -> tuple[Baseline | None, list[str]]:
    planned = plan({"name": "n", "command": ["echo"], "metric": _METRIC, **grid})
    assert read(planned.document(), "sweep.json").baseline == planned.baseline
    return planned.baseline, [run.name for run in planned.runs]


def test_the_cell_of_a_baseline_runs_once_beside_the_others():
    lrs = {"grid": {"lr": [1, 2]}}
    assert _cells(**lrs, baseline={"cell": {"lr": 5}}) == (
        Baseline("lr=5"),
        ["lr=1", "lr=2", "lr=5"],
    )
    assert _cells(**lrs, baseline={"cell": {"lr": 2}}) == (Baseline("lr=2"), ["lr=1", "lr=2"])
    grid = {"base": {"x": 1}, "baseline": {"cell": {"x": 2}}}
    assert _cells(**grid) == (Baseline("x=2"), ["x=1", "x=2"])
    cells = _cells(**lrs, seeds=2, baseline={"cell": {}})
    assert cells[0] == Baseline("base") and cells[1][-2:] == ["seed=0", "seed=1"]


def test_the_base_model_is_the_baseline_of_a_stage():
    sft = {"command": ["echo"], "base": {"model_name": "m"}, "grid": {"lr": [1, 2]}}
    later = {"command": ["echo"], "baseline": "base"}
    both = [{"stage": "sft", "take": "each"}, {"base": True}]
    planned = plan({"name": "n", "stages": {"sft": sft, "ev": {**later, "from": both}}})
    assert planned.only("ev").baseline == Baseline("ev/base")
    assert "ev/base" in {run.cell for run in planned.only("ev").runs}
    assert read(planned.document(), "sweep.json").only("ev").baseline == Baseline("ev/base")
