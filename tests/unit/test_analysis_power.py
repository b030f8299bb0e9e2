"""Which leads a number of seeds can find, and the advice about it."""

from pathlib import Path

import numpy as np
import pytest
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.comparison.power import before_launch, lead_found, power_table, seeds_for
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.frames import load
from sweeper.analysis.statistics.noise import fit_noise
from sweeper.analysis.statistics.seeds import against_best
from sweeper.cli import main
from sweeper.grid import parse_grid
from sweeper.results.registry import Registry

GRID = "recipe: sft\ngrid: {lr: [1, 2, 3, 4]}\nseeds: 3\nmetric: {name: test/nll, goal: minimize}\n"


@pytest.mark.parametrize(("cells", "seeds"), [(6, 3), (12, 3), (2, 5)])
def test_the_lead_is_found_in_four_of_five_sweeps(cells, seeds):
    """With the report's comparison of 100 sweeps; 65 to 93 is within 3.5 standard errors."""
    rng = np.random.default_rng(2)
    lead, named = lead_found(cells, seeds), 0
    for _ in range(100):
        values = rng.normal(0, 1, (cells, seeds)) - lead * (np.arange(cells) == 0)[:, np.newaxis]
        groups = {str(cell): runs.tolist() for cell, runs in enumerate(values)}
        best = str(int(values.mean(axis=1).argmin()))
        comparisons = against_best(groups, best, fit_noise(groups))
        named += best == "0" and all(comparison.told_apart for comparison in comparisons.values())
    assert 65 <= named <= 93


def test_more_seeds_find_smaller_leads_and_100_may_be_too_few():
    leads = [lead_found(6, seeds) for seeds in (2, 3, 5, 10, 100)]
    assert leads == sorted(leads, reverse=True)
    assert seeds_for(leads[2], 6) == 5 and seeds_for(1e-3, 6) is None


def _tied(root: Path, name: str, **metric: object) -> Study:
    rng = np.random.default_rng(3)
    cells = [({"lr": lr}, rng.normal(1, 0.1, 3).tolist()) for lr in (1, 2, 3, 4)]
    written.measured(root, cells, name=name, grid=GRID, metric=written.METRIC | metric)
    return study(load(Registry(str(root)), name, None, None))


def test_the_advice_promises_no_power_for_the_difference_that_happened_to_be_seen(tmp_path):
    """It says which lead the next grid finds. That grid costs at most three times the sweep."""
    tied = _tied(tmp_path, "plain")
    (step,) = tied.verdict.steps
    assert "or launch next.yaml" in step and "find a lead of" in step and "in 4 of 5 sweeps" in step
    assert tied.next.runs <= 3 * 12


def test_seeds_are_advised_for_a_difference_that_is_relevant(tmp_path):
    coarse = _tied(tmp_path, "coarse", relevant=0.4)
    assert coarse.needed is not None and coarse.needed <= 8
    fine = _tied(tmp_path, "fine", relevant=0.1)
    assert fine.needed is not None and fine.needed > 9
    assert f"a lead of 0.1 needs {fine.needed}." in fine.verdict.steps[0]
    assert fine.next.runs <= 3 * 12
    finest = _tied(tmp_path, "finest", relevant=1e-6)
    assert "100 seeds of each would not find a lead of 1e-6" in finest.verdict.steps[0]


def test_a_plan_says_which_lead_its_seeds_find_by_the_noise_of_an_earlier_sweep(tmp_path):
    _tied(tmp_path, "demo")
    registry = Registry(str(tmp_path))
    advice = before_launch(registry, registry.sweep("demo").plan)
    assert advice.startswith("3 seeds find a lead of 0.")
    assert advice.endswith("in 4 of 5 sweeps (by the noise of demo)")
    table = power_table(rank(load(registry, "demo", None, None)))
    assert [row.seeds for row in table][:3] == [2, 3, 4]


def test_the_relevant_difference_is_read_from_the_grid():
    text = GRID.replace("goal: minimize", "goal: minimize, relevant: 0.01")
    metric = parse_grid(text, "g.yaml").metric
    assert metric.relevant == 0.01


def test_analyze_prints_the_leads_that_seeds_find(tmp_path, capsys):
    _tied(tmp_path, "demo")
    words = ["analyze", "demo", "--root", str(tmp_path), "--no-pictures", "--power"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        "the smallest lead of the best cell over all others that 4 of 5 sweeps would detect" in out
    )
    table = [line.split() for line in out.splitlines()]
    assert ["seeds", "lead"] in table and any(row[:1] == ["3"] for row in table)


@pytest.mark.parametrize(("goal", "sign"), [("minimize", 1), ("maximize", -1)])
def test_a_best_that_was_only_just_named_may_be_as_bad_as_the_worse_end_of_its_interval(
    tmp_path, goal, sign
):
    rng = np.random.default_rng(0)
    ends = {lr: rng.normal(-0.05 * (lr == 3), 0.03, 4) for lr in (1, 2, 3, 4)}
    cells = [({"lr": lr}, (2 + sign * deviations).tolist()) for lr, deviations in ends.items()]
    written.measured(tmp_path, cells, metric=written.METRIC | {"goal": goal})
    result = study(load(Registry(str(tmp_path)), "demo", None, None))
    best = result.ranking.best
    assert best.name == "lr=3" and result.verdict.caution is not None
    low, mean, high = best.summary.low, best.summary.mean, best.summary.high
    assert low is not None and mean is not None and high is not None
    longer, shorter = (high - mean, mean - low) if sign > 0 else (mean - low, high - mean)
    assert longer > 1.2 * shorter, "it was chosen"
    bound = result.verdict.caution.partition("may be worse by up to ")[2].split(". ")[0]
    assert float(bound) == pytest.approx(longer, rel=0.05)


def test_cells_that_are_tied_beside_a_single_run_get_one_piece_of_advice(tmp_path):
    cells = [({"lr": 1}, [1.0, 1.1, 0.9]), ({"lr": 2}, [1.0, 1.05, 1.1]), ({"lr": 3}, [1.2, None])]
    written.measured(tmp_path, cells, grid=GRID)
    steps = study(load(Registry(str(tmp_path)), "demo", None, None)).verdict.steps
    assert len([step for step in steps if "next.yaml" in step]) == 1
