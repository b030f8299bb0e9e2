"""Training and held-out metrics, by the names of their keys, and what the latter decide."""

from dataclasses import replace

import numpy as np
import pytest
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.findings.heldout import held_out
from sweeper.analysis.findings.study import study
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.splits import (
    counterparts,
    family,
    is_held_out,
    is_training,
    same_quantity,
)
from sweeper.results.registry import Registry

KEYS = [
    *("env/all/reward/total", "env/all/correct", "train/nll", "test/nll", "test/accuracy"),
    *("test/reward", "optim/entropy", "eval/gsm8k/score"),
]


@pytest.mark.parametrize(
    ("metric", "held"),
    [
        ("env/all/reward/total", ["test/reward", "test/accuracy", "eval/gsm8k/score"]),
        ("env/all/correct", ["test/accuracy", "test/reward", "eval/gsm8k/score"]),
        ("train/nll", ["test/nll", "test/reward", "test/accuracy", "eval/gsm8k/score"]),
        ("test/nll", []),
    ],
)
def test_a_metric_of_training_has_held_out_counterparts(metric, held):
    assert list(counterparts(metric, frozenset(KEYS))) == held


def test_the_cookbooks_own_evaluation_comes_first():
    keys = frozenset({"test/reward", "test/env/all/reward/total"})
    assert counterparts("env/all/reward/total", keys)[0] == "test/env/all/reward/total"


def test_key_names_tell_training_from_held_out():
    assert all(is_held_out(key) for key in ("test/nll", "eval/x/score", "val_loss", "held_out/acc"))
    assert not any(is_held_out(key) for key in ("latest/nll", "env/all/correct", "loss"))
    assert is_training("train_mean_nll") and is_training("env/all/correct")
    assert not is_training("test/env/all/correct") and not is_training("nll")
    assert same_quantity("test/env/all/correct", "train_accuracy")
    assert not same_quantity("test/accuracy", "test/nll")


def test_a_family_of_tasks_is_that_of_the_metric_or_the_largest_of_scores():
    names = ("gsm8k", "mbpp", "gpqa")
    scores = {f"eval/{name}/score" for name in names}
    sizes = {f"eval/{name}/num_examples" for name in (*names, "ifeval")}
    keys = frozenset(scores | sizes | {"train/loss", "env/all/correct"})
    assert set(family(keys, "eval/mbpp/score")) == set(family(keys, None)) == scores
    assert family(frozenset({"eval/a/score", "eval/b/score"}), None) == ()


def test_noise_lent_to_the_metric_of_training_tells_nothing_of_what_was_held_out(tmp_path):
    metric = {"name": "train/nll", "goal": "minimize", "at": "last", "failed": "worst"}
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2, 3]}, metric)
    for lr in (1, 2, 3):
        sweep.run({"lr": lr}, 0, [{"step": 1, "train/nll": lr / 100, "test/nll": 0.5 + lr / 10}])
    sweep.run({"lr": 1}, 1, [], "failed")
    data = load(Registry(str(sweep.save() and tmp_path)), "demo", None, None)
    data = replace(data, lent={"early": {"a": [0.5, 0.501], "b": [0.6, 0.601]}})
    ranking = rank(data)
    assert ranking.comparisons
    comparison = held_out(data, ranking)
    assert comparison.judged and comparison.metric.name == "test/nll"
    assert not comparison.ranking.noise.lent
    cell = next(cell for cell in comparison.ranking.cells if cell.name == "lr=1")
    assert cell.values == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(("luck", "warned"), [(0.0, True), (3.0, False)])
def test_a_gap_is_not_told_from_the_luck_of_a_batch_that_all_runs_trained_on_last(
    tmp_path, luck, warned
):
    """All runs have the same data order, so the last batch may be easy for each of them."""
    rng = np.random.default_rng(6)
    batches = luck * rng.normal(0, 1, 30)
    batches[-1] = -luck
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        for seed in range(3):
            rows = [
                {"step": at, "train/nll": 20 + batch + rng.normal(0, 0.3), "test/nll": 21 + luck}
                for at, batch in enumerate(batches)
            ]
            rows[-1]["test/nll"] = 21.5 + rng.normal(0, 0.3)
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    result = study(load(Registry(str(tmp_path)), "demo", None, None))
    assert result.held_out.gap is not None and result.held_out.says_gap == warned
