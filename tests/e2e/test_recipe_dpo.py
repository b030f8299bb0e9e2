"""The DPO recipe against the engine: its gradient, learning and resuming."""

import gc
import json
import math
import signal
from typing import Any

import chz
import numpy as np
import pytest
import tinker
from support import small_torch

from sweeper.recipes import dpo, pairs, rundir, service

pytestmark = [
    pytest.mark.e2e,
    # The garbage collector closes the SDK's sockets, possibly in any test of this file.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASK = {"task": "sorting", "length": 3, "letters": 6, "test_size": 16, "train_size": 150}
WARM = TASK | {"max_steps": 80, "learning_rate": 1e-2, "eval_every": 0}


@pytest.fixture(scope="module")
def warm(recipes, tmp_path_factory):
    """Return a run of SFT that answers in the right form, and often correctly."""
    log_path = tmp_path_factory.mktemp("warm")
    recipes.succeed("sft", log_path, **WARM)
    return log_path


@pytest.fixture(scope="module")
def connection(recipes):
    """Yield a client of the engine in this process."""
    client = tinker.ServiceClient(base_url=recipes.url, api_key=recipes.key)
    made = [service.Service(client, recipes.url)]
    yield made[0]
    made.pop().close()
    del client
    gc.collect()  # close the SDK's sockets here, where a ResourceWarning is no error


def published_loss(ratios, beta):
    """Compute the loss as the paper writes it."""
    return -sum(math.log(1 / (1 + math.exp(-beta * (c - r)))) for c, r in ratios) / len(ratios)


def by_differences(rendered, baseline, beta, total):
    """Return the loss as a custom loss of the SDK, with slopes by finite differences."""

    def loss(_data, leaves):
        flat = [example for pair in rendered for example in pair]
        values = [np.array(leaf, np.float64) for leaf in leaves]

        def value():
            sums = [
                float(v[example.answer - 1 :].sum())
                for v, example in zip(values, flat, strict=True)
            ]
            pairs = zip(sums[::2], sums[1::2], baseline, strict=True)
            return published_loss([(c - a, r - b) for c, r, (a, b) in pairs], beta)

        gradients = []
        for leaf, leaf_values in zip(leaves, values, strict=True):
            slopes = np.zeros(len(leaf_values))
            for at in range(len(leaf_values)):
                ends = []
                for move in (1e-4, -1e-4):
                    leaf_values[at] += move
                    ends.append(value())
                    leaf_values[at] -= move
                slopes[at] = (ends[0] - ends[1]) / 2e-4
            gradients.append((leaf, slopes))
        return total(value(), gradients), {}

    return loss


def test_its_gradient_is_that_of_the_sdks_own_custom_loss(connection, warm, tmp_path, monkeypatch):
    from tinker.lib.public_interfaces import training_client

    monkeypatch.setattr(training_client, "torch", small_torch.Torch)
    config = dpo.Config(**TASK, load_checkpoint_path=str(warm), batch_size=6, dpo_beta=0.7)

    def logprobs_after(loss_kind):
        log_path = str(tmp_path / loss_kind)
        directory = rundir.open_run(log_path, {}, frozenset())
        data = pairs.load_pairs(config)
        trainer = dpo.PreferenceTrainer(
            chz.replace(config, log_path=log_path), directory, connection, data, service.Stop()
        )
        trainer.wait(trainer.train_on(trainer.begin(0)).optim_step)  # makes margins differ from 0
        passed = trainer.begin(1)
        if loss_kind == "ours":
            stepped = trainer.train_on(passed).optim_step
        else:
            passed.forward()  # asks the reference
            baseline = trainer.begin_baseline(passed.batch)()
            given = [dpo.weighted(example, 1.0) for pair in passed.batch for example in pair]
            loss = by_differences(passed.batch, baseline, config.dpo_beta, small_torch.total)
            trainer.training.forward_backward_custom(given, loss)
            stepped = trainer.training.optim_step(trainer.adam(1))
        metrics: Any = trainer.wait(stepped).metrics
        given = [dpo.weighted(example, 1.0) for pair in passed.batch for example in pair]
        outputs = trainer.wait(trainer.training.forward(given, "cross_entropy")).loss_fn_outputs
        return metrics, [output["logprobs"].to_numpy() for output in outputs]

    norm = "unclipped_grad_l2:mean"
    ours, differences = logprobs_after("ours")
    theirs, expected = logprobs_after("theirs")
    assert ours[norm] == pytest.approx(theirs[norm], rel=1e-4)
    assert ours[norm] > 1e-3
    for actual, other in zip(differences, expected, strict=True):
        np.testing.assert_allclose(actual, other, atol=2e-3)


def test_it_learns_to_prefer_and_so_to_answer(recipes, warm, tmp_path):
    settings = TASK | {"max_steps": 60, "eval_every": 20, "load_checkpoint_path": warm}
    recipes.succeed("dpo", tmp_path, **settings)
    lines = recipes.measured(tmp_path)
    evaluations = [line for line in lines if "test/margin" in line]
    assert [line["step"] for line in evaluations] == [0, 20, 40, 60]
    first, last = evaluations[0], evaluations[-1]
    # The run starts from its own reference, so nothing is gained yet.
    assert first["test/margin"] == pytest.approx(0, abs=1e-5)
    assert first["test/preference_accuracy"] == 0.5
    assert first["test/dpo_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert last["test/margin"] > 0.2
    assert last["test/preference_accuracy"] > 0.75
    assert last["test/dpo_loss"] < first["test/dpo_loss"] - 0.05
    keys = {"dpo_loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "num_pairs"}
    assert keys <= set(lines[0])
    [final] = recipes.read(tmp_path / "checkpoints.jsonl")
    assert (final["name"], final["batch"], final["final"]) == ("final", 60, True)


def test_a_killed_run_resumes_to_the_same_values(recipes, warm, tmp_path):
    settings = TASK | {"max_steps": 20, "eval_every": 5, "save_every": 4}
    settings |= {"batch_size": 4, "test_size": 4}
    parent = tmp_path / "parent"
    parent.mkdir()
    records = recipes.read(warm / "checkpoints.jsonl")
    (parent / "checkpoints.jsonl").write_text(json.dumps(records[-1]) + "\n")
    settings |= {"load_checkpoint_path": parent}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    recipes.succeed("dpo", whole, **settings)
    assert recipes.stopped_after("dpo", stopped, 9, signal.SIGKILL, **settings) == (-9, "")
    # The parent run has continued training, which must not change the reference.
    trained = recipes.read(whole / "checkpoints.jsonl")[-1]
    (parent / "checkpoints.jsonl").write_text(json.dumps(trained) + "\n")
    resumed = recipes.run("dpo", stopped, **settings)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "resuming after " in resumed.stdout
    assert recipes.measured(stopped) == recipes.measured(whole)


def test_pairs_from_a_file(recipes, tmp_path):
    rows = [
        {"prompt": f"colour {n}", "chosen": "red" if n % 2 else "blue", "rejected": "grey"}
        for n in range(40)
    ]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data": data, "test_size": 8, "max_steps": 10, "eval_every": 0}
    recipes.succeed("dpo", tmp_path / "run", **settings, reference_model_name="tiny/qwen3")
    last = recipes.measured(tmp_path / "run")[-1]
    assert last["test/preference_accuracy"] == 1.0
    assert "test/accuracy" not in last
