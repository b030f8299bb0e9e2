"""Which keys are of training and which were held out, by name."""

import pytest

from sweeper.analysis.splits import counterparts, family, is_held_out, is_training, same_quantity

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
def test_a_metric_of_training_has_held_out_counterparts(metric: str, held: list[str]):
    assert list(counterparts(metric, frozenset(KEYS))) == held


def test_the_cookbooks_own_evaluation_comes_first():
    keys = frozenset({"test/reward", "test/env/all/reward/total"})
    assert counterparts("env/all/reward/total", keys)[0] == "test/env/all/reward/total"


def test_names_say_what_a_key_is_of():
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
