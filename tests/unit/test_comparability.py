"""Runs that are not comparable are reported first, and give no clear winner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import written

from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import load
from sweeper.results.registry import Registry


def judged(root: Path, at: str | None = None) -> Study:
    return study(load(Registry(str(root)), "demo", None, None, at))


def curved(root: Path, curves: dict[int, Any], key: str = "lr", at: str = "last") -> None:
    """Write three seeds of each cell, with the cell's curve as a function of the seed."""
    metric = {"name": "test/nll", "goal": "minimize", "at": at}
    sweep = written.Written(root, axes={key: list(curves)}, metric=metric)
    for value, curve in curves.items():
        for seed in range(3):
            rows = [{"step": step, "test/nll": loss} for step, loss in curve(seed)]
            sweep.run({key: value}, seed, rows)
    sweep.save()


def learning(steps: int, floor: float = 0.0) -> Any:
    return lambda seed: [(s, floor + 2.0 / (1 + s) + seed / 1e4) for s in range(0, steps + 1, 2)]


def test_runs_of_very_different_lengths_are_no_clear_winner(tmp_path):
    """The shorter run is better at the step that both reached."""
    curved(tmp_path, {1: learning(12), 2: learning(200, 0.01)})
    study = judged(tmp_path)
    assert study.verdict.kind == "ahead" and "different lengths" in study.verdict.label
    first = study.verdict.believe[0]
    assert (first.kind, first.level) == ("unequal_steps", "warning")
    assert "lr=1 ended at step 12, lr=2 at 200" in first.text
    assert "At step 12 the best is lr=1." in first.text and "Run all to the same step" in first.text


def test_different_lengths_are_fine_if_an_axis_sets_them(tmp_path):
    curves = {12: learning(12), 200: learning(200)}
    curved(tmp_path, curves, "max_steps")
    study = judged(tmp_path)
    assert study.verdict.label.startswith("clear winner")
    (finding_of_steps,) = [finding for finding in study.findings if finding.kind == "unequal_steps"]
    assert finding_of_steps.level == "note"


@pytest.mark.parametrize("last", [99, 100])
def test_runs_that_end_almost_together_are_alike(tmp_path, last):
    curves = {1: learning(100), 2: lambda seed: [*learning(98, 1.0)(seed), (last, 1.0 + seed / 99)]}
    curved(tmp_path, curves)
    assert "unequal_steps" not in {finding.kind for finding in judged(tmp_path).findings}


def evaluated(sd: float, count: int = 30) -> Any:
    def curve(seed: int) -> list[tuple[int, float]]:
        noise = np.random.default_rng([seed, int(1000 * sd)]).normal(0, sd, count)
        return [(step, 1.0 + float(value)) for step, value in enumerate(noise)]

    return curve


@pytest.mark.parametrize(
    ("noises", "kind", "text"),
    [
        ((0.01, 0.06), "noisier_best", "--at last"),
        # So few evaluations cannot show a noise ratio of 1.6, which alone makes a lead.
        ((0.05, 0.08), "maybe_noisier", "this alone could explain the lead"),
    ],
)
def test_a_lead_by_noisier_evaluations_is_not_clear(tmp_path, noises, kind, text):
    curved(tmp_path, {cell: evaluated(sd) for cell, sd in enumerate(noises, 1)}, at="best")
    study = judged(tmp_path)
    first = study.verdict.believe[0]
    assert study.verdict.kind != "clear" and first.kind == kind and text in first.text
    assert not study.ranking.tied or kind == "noisier_best"
    assert kind not in {finding.kind for finding in judged(tmp_path, "last").findings}


def test_equal_noise_of_evaluations_is_seldom_called_unequal(tmp_path):
    """Less than once in a hundred."""
    wrong = 0
    for world in range(40):
        root = tmp_path / str(world)

        def curve(seed: int, *, cell: int, world: int = world) -> list[tuple[int, float]]:
            values = np.random.default_rng([world, cell, seed]).normal(1.0, 0.05, 30)
            return list(enumerate(values.tolist()))

        cells = {n: lambda seed, n=n: curve(seed, cell=n) for n in range(1, 7)}
        curved(root, cells, at="best")
        wrong += "noisier_best" in {finding.kind for finding in judged(root).findings}
    assert wrong <= 1


def test_runs_of_different_code_are_reported_first(tmp_path):
    from sweeper import analysis

    cells = [({"lr": lr}, [lr + d for d in (0.0, 0.1, 0.2)]) for lr in (1, 5)]
    launches = [
        {"launch": "code/b.json", "time": "2026-11-21T02:00:00Z", "commit": "b" * 40, "code": "c2"},
        {"launch": "code/a.json", "time": "2026-11-21T01:00:00Z", "commit": "a" * 40, "code": "c1"},
    ]
    launches = [{**clean, "dirty": False} for clean in launches]
    sweep = written.measured(tmp_path, cells, launches=launches[1:], provenance=launches[0])
    for run in sweep.document["runs"]:
        launch = "code/a.json" if run["config"]["lr"] == 1 else "code/b.json"
        for path in (sweep.folder / "state" / run["id"]).glob("*.json"):
            path.write_text(path.read_text()[:-1] + f', "launch": "{launch}"}}')
    study = judged(tmp_path)
    assert study.verdict.believe[0].kind == "executed"
    assert study.verdict.kind == "ahead" and "different code" in study.verdict.label
    report = analysis.analyze(str(tmp_path), "demo")
    for name in ("report.html", "report.md"):
        text = Path(report.files[name]).read_text()
        assert text.count("aaaaaaaa") >= 2 and text.count("bbbbbbbb") >= 2
