"""The example grids of GRPO, from random weights and from the end of SFT."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.typed import Typed

import sweeper
from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
SMALL = ["seeds=2", "max_steps=2", "train_size=20", "test_size=4", "eval_every=0"]


WHOLE = "SWEEPER_TEST_WHOLE" in os.environ
PART = {} if WHOLE else {"letters": 2, "test_size": 1, "groups_per_batch": 3}
"""The four words of two letters are learned in half the steps."""


def test_a_run_of_the_grid_goes_from_no_reward_to_nearly_all(recipes, tmp_path):
    """It uses fewer words; `make quickstarts` uses all of them."""
    plan = sweeper.plan(ROOT / "grids" / "grpo.yaml")
    run = max((run for run in plan.runs if run.seed == 0), key=lambda r: r.config["entropy_coef"])
    # With a constant learning rate, fewer steps are the first steps of the full run.
    assert run.config["lr_schedule"] == "constant"
    settings = run.config | {"max_steps": 120 if WHOLE else 62, "eval_every": 0} | PART
    recipes.succeed("rl", tmp_path, **settings, num_groups_to_log=0)
    rewards = [line["env/all/reward/total"] for line in recipes.measured(tmp_path)[:-1]]
    assert max(rewards[:5]) < 0.2
    assert max(rewards) > 0.9
    assert sum(rewards[-10:]) / 10 > 0.85


def execute(folder, *command):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "WANDB_"))}
    environment |= {"SWEEPER_HOME": str(folder / "home"), "SWEEPER_ROOT": str(folder / "sweeps")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_pair_for_addition_continues_from_each_seeds_checkpoint(tmp_path):
    def launch(grid, *settings):
        path = str(ROOT / "grids" / f"{grid}.yaml")
        Typed(tmp_path, ("TINKER_", "WANDB_")).run(
            "launch", path, *settings, "--backend", "local", "--wait"
        )

    [link, compare] = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "grpo.md").read_text(), re.DOTALL
    )
    try:
        launch("addition_sft", *SMALL)
        execute(tmp_path, sys.executable, "-c", link)
        execute(tmp_path, sys.executable, "-c", link)  # a repetition changes nothing
        launch("addition_grpo", *SMALL, "groups_per_batch=4", "group_size=4")
        launch("addition_more_sft", *SMALL)
        assert "addition-more-sft" in execute(tmp_path, sys.executable, "-c", compare)
    finally:
        lifecycle.stop(str(tmp_path / "home"))
    registry = sweeper.Registry(str(tmp_path / "sweeps"))
    warm = {run.seed: run.run for run in registry.runs("addition-sft").itertuples()}
    for sweep in ("addition-grpo", "addition-more-sft"):
        runs = registry.runs(sweep)
        assert sorted(runs["seed"]) == [0, 1]
        assert runs["cell"].nunique() == 1  # the seeds are replicates
        for run in runs.itertuples():
            checkpoints = (
                tmp_path / f"sweeps/addition-sft/runs/{warm[run.seed]}.1/checkpoints.jsonl"
            )
            final = json.loads(checkpoints.read_text().splitlines()[-1])["state_path"]
            log = tmp_path / f"sweeps/{sweep}/attempts/{run.run}.1/stdout.log"
            assert f"starting from {final}\n" in log.read_text()
