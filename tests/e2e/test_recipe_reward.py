"""A preference model, and the rewards and penalties of `rl`, against the engine."""

import json
import signal

import pytest

pytestmark = pytest.mark.e2e

TASK = {"task": "sorting", "length": 2, "letters": 4, "test_size": 4}
PAIRS = TASK | {"max_steps": 100, "learning_rate": 1e-2, "eval_every": 0, "batch_size": 16}
RL = TASK | {"max_tokens": 3, "groups_per_batch": 8, "group_size": 8, "learning_rate": 1e-3}
SCORE = """
def score(question, response, answer):
    if len(response) == 1:
        raise ValueError("one letter")
    return sum(a == b for a, b in zip(response, answer)) / max(len(response), len(answer), 1)
"""


@pytest.fixture(scope="module")
def judge(recipes, tmp_path_factory):
    """Return a run of `reward` that tells right answers from nearly right ones."""
    log_path = tmp_path_factory.mktemp("judge")
    recipes.succeed("reward", log_path, **PAIRS)
    return log_path


@pytest.fixture(scope="module")
def warm(recipes, tmp_path_factory):
    log_path = tmp_path_factory.mktemp("warm")
    recipes.succeed("sft", log_path, **TASK, max_steps=20, eval_every=0)
    return log_path


def test_a_preference_model_learns(recipes, judge):
    lines = recipes.measured(judge)
    assert lines[0]["accuracy"] == pytest.approx(0.5, abs=0.35)
    assert sum(line["accuracy"] for line in lines[-11:-1]) / 10 > 0.9
    assert lines[-1]["test/margin"] > lines[0]["test/margin"]
    assert {"reward_loss", "margin", "chosen_reward", "num_pairs"} <= set(lines[0])


def test_a_killed_preference_model_resumes_to_the_same_values(recipes, judge, tmp_path):
    settings = PAIRS | {"max_steps": 10, "save_every": 4, "eval_every": 5, "batch_size": 4}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    recipes.succeed("reward", whole, **settings)
    recipes.resumes("reward", whole, stopped, 6, signal.SIGKILL, **settings)


def test_the_three_stages_of_rlhf(recipes, judge, tmp_path):
    first, last = tmp_path / "sft", tmp_path / "rl"
    recipes.succeed("sft", first, **TASK, max_steps=12, eval_every=0)
    settings = RL | {"load_checkpoint_path": first, "reward_model": judge, "max_steps": 20}
    settings |= {"kl_penalty_coef": 0.1, "eval_every": 0}
    recipes.succeed("rl", last, **settings)
    lines = recipes.measured(last)
    # Probabilities of being preferred to the right answer, which itself would get 0.5.
    rewards = [line["env/all/reward/total"] for line in lines[:-1]]
    assert all(0 < reward < 1 for reward in rewards)
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 5 * 0.05
    # The policy starts at its reference and moves away.
    assert lines[0]["kl_policy_base"] == pytest.approx(0, abs=1e-4)
    assert lines[-2]["kl_policy_base"] > 0.01


def test_a_users_function_is_tried_first_and_its_failures_are_kept(recipes, warm, tmp_path):
    function = tmp_path / "score.py"
    settings = RL | {"load_checkpoint_path": warm, "max_steps": 2, "eval_every": 0}
    settings |= {"reward_function": f"{function}:score"}
    function.write_text("def score(question, response, answer):\n    return None\n")
    done = recipes.run("rl", tmp_path / "run", **settings)
    assert done.returncode == 1
    assert "the function returned NoneType, not a number" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    function.write_text(SCORE)
    recipes.succeed("rl", tmp_path / "run", **settings)
    for line in recipes.measured(tmp_path / "run")[:-1]:
        folder = tmp_path / "run" / f"iteration_{line['step']:06d}"
        episodes = recipes.read(folder / "train_rollout_summaries.jsonl")
        step_logs = [episode["steps"][0]["logs"] for episode in episodes]
        failed = sum(len(logs["response"]) == 1 for logs in step_logs)
        assert line["env/all/reward_failures"] == failed
        failures = folder / "reward_failures.jsonl"
        assert len(recipes.read(failures) if failures.exists() else []) == failed
        for episode, logs in zip(episodes, step_logs, strict=True):
            scope = {}
            exec(SCORE, scope)  # noqa: S102  the test's own text
            wrong = len(logs["response"]) == 1
            expected = (
                0 if wrong else scope["score"]("", logs["response"], logs["reference_answer"])
            )
            assert episode["total_reward"] == pytest.approx(expected)


def test_a_function_that_fails_on_all_answers_of_a_step_ends_the_run(recipes, tmp_path):
    """All rewards would be 0, and nothing would be learned."""
    function = tmp_path / "score.py"
    body = "    if response != answer:\n        raise KeyError(response[:1])\n    return 1.0\n"
    function.write_text(f"def score(question, response, answer):\n{body}")
    settings = RL | {"max_steps": 3, "eval_every": 0, "reward_function": f"{function}:score"}
    settings |= {"length": 6, "letters": 8}
    done = recipes.run("rl", tmp_path / "run", **settings)
    assert done.returncode == 1
    message = f"reward_function {function}:score failed on all 64 answers of step 0: KeyError: "
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert message in done.stdout
    [line] = recipes.measured(tmp_path / "run")
    assert line["env/all/frac_reward_failed"] == 1.0
    # With the function fixed, the same run continues.
    function.write_text("def score(question, response, answer):\n    return 0.5\n")
    recipes.succeed("rl", tmp_path / "run", **settings | {"max_steps": 3})
    lines = recipes.measured(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["env/all/frac_reward_failed"] == lines[-1]["test/env/all/reward_failures"] == 0


STALE = RL | {"max_steps": 12, "save_every": 4, "group_size": 4, "max_steps_off_policy": 2}
STALE |= {"eval_every": 5, "kl_penalty_coef": 0.05}


@pytest.fixture(scope="module")
def whole(recipes, warm, tmp_path_factory):
    """Return an uninterrupted run on samples of older weights."""
    log_path = tmp_path_factory.mktemp("whole")
    recipes.succeed("rl", log_path, load_checkpoint_path=warm, **STALE)
    return log_path


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_samples_of_older_weights_change_nothing_when_a_run_is_stopped(
    recipes, warm, whole, tmp_path, signum
):
    settings = STALE | {"load_checkpoint_path": warm}
    stopped = tmp_path / "stopped"
    recipes.resumes("rl", whole, stopped, 6, signum, **settings)
    lines = recipes.measured(stopped)
    stale = [line["optim/staleness"] for line in lines[:-1]]
    assert stale == [0, 1, 2, 2, 0, 1, 2, 2, 0, 1, 2, 2]
    path = stopped / "iteration_000003" / "train_rollout_summaries.jsonl"
    assert json.loads(path.read_text().splitlines()[0])["sampling_client_step"] == 1
    # Trainer and sampler differ by then, which ppo's ratio corrects.
    assert lines[3]["optim/kl_sample_train_v2"] > lines[0]["optim/kl_sample_train_v2"]
