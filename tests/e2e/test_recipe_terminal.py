"""The terminal recipe in its own process, against the engine, in real environments."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from harness.real import until

from sweeper import sandbox
from sweeper.sandbox.bubblewrap import below
from sweeper.sweep.process import began

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sandbox.missing("bubblewrap") is not None, reason="no bubblewrap here"),
]

TASKS = Path(__file__).parents[2] / "grids" / "terminal"
SMALL = {
    "tasks": TASKS,
    "groups_per_batch": 3,
    "group_size": 6,
    "n_parallel_envs": 4,
    "max_turns": 3,
    "max_tokens": 1,
    "max_output": 200,
    "context_limit": 512,
    "max_steps": 4,
    "save_every": 2,
    "eval_every": 0,
    "learning_rate": 4e-3,
    "entropy_coef": 0.03,
}


@pytest.fixture(scope="module")
def whole(recipes, tmp_path_factory):
    """Return an uninterrupted run with held-out tasks."""
    log_path = tmp_path_factory.mktemp("whole")
    recipes.succeed("terminal", log_path, **SMALL, test_tasks=TASKS)
    return log_path


def trajectories(log_path, step, name="train"):
    path = log_path / f"iteration_{step:06d}" / f"{name}_trajectories.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def episodes_of(log_path):
    """Return the episodes that have ended since the last checkpoint."""
    path = log_path / "episodes.jsonl"
    lines = path.read_text().splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


def rewards(recipes, log_path):
    """Return the metrics of model and training, without those of environments."""
    return [
        {
            k: v
            for k, v in line.items()
            if not k.startswith("test/") and "environment_failures" not in k
        }
        for line in recipes.measured(log_path)
    ]


def test_what_it_leaves_behind(recipes, whole):
    lines = recipes.measured(whole)
    assert [line["step"] for line in lines] == list(range(5))
    for line in lines[:-1]:
        assert line["env/all/total_episodes"] == 18
        assert line["env/all/turns_per_episode"] == 3
        assert line["env/all/environment_failures"] == line["env/all/episodes_lost"] == 0
        # For every token, sampled and trained logprobs differ by less than 1e-5.
        assert 2 * line["optim/kl_sample_train_v2"] * line["num_tokens"] < 1e-10
        rows = trajectories(whole, line["step"])
        earned = [trajectory["extra"]["reward"] for trajectory in rows]
        assert sum(earned) / 18 == pytest.approx(line["env/all/reward/total"])
    assert lines[-2]["env/all/reward/total"] > lines[0]["env/all/reward/total"]
    assert {key for line in (lines[0], lines[-1]) for key in line} >= {"test/reward"}
    assert len(trajectories(whole, 4, "eval_test")) == 3
    trajectory = trajectories(whole, 3)[0]
    assert trajectory["schema_version"] == "ATIF-v1.8"
    assert [step["source"] for step in trajectory["steps"]] == ["user", "agent", "agent", "agent"]
    for step in trajectory["steps"][1:]:
        assert len(step["metrics"]["logprobs"]) == step["metrics"]["completion_tokens"] == 1
        assert step["observation"]["results"][0]["content"]
    summary = recipes.read(whole / "iteration_000003" / "train_rollout_summaries.jsonl")[0]
    assert summary["tags"] == ["terminal", trajectory["extra"]["task"]]
    assert [turn["episode_done"] for turn in summary["steps"]] == [False, False, True]


NOTING = """
import json, os, tinker

train = tinker.TrainingClient.forward_backward


def noting(self, data, *arguments, **options):
    bare = [
        tinker.Datum(
            model_input=datum.model_input,
            loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]},
        )
        for datum in data
    ]
    outputs = self.forward(bare, "cross_entropy").result().loss_fn_outputs
    with open(os.environ["NOTED"], "a") as file:
        for datum, output in zip(data, outputs, strict=True):
            given = {k: v.to_numpy().tolist() for k, v in datum.loss_fn_inputs.items()}
            given["forward"] = output["logprobs"].to_numpy().tolist()
            print(json.dumps(given), file=file)
    return train(self, data, *arguments, **options)


tinker.TrainingClient.forward_backward = noting
"""
"""Makes the recipe call `forward` on its training data, and records both."""


def test_of_200_episodes_all_is_trained_as_it_was_sampled(recipes, tmp_path):
    """The trained logprobs are those of `forward`, and outputs of environments have no weight."""
    (tmp_path / "sitecustomize.py").write_text(NOTING)
    noted = tmp_path / "noted.jsonl"
    env = {"PYTHONPATH": str(tmp_path), "NOTED": str(noted)}
    settings = SMALL | {"group_size": 67, "max_tokens": 3, "max_steps": 1, "n_parallel_envs": 8}
    settings |= {"remove_constant_reward_groups": False, "entropy_coef": 0}
    recipes.succeed("terminal", tmp_path / "run", env, fresh=True, **settings)
    episodes, data = trajectories(tmp_path / "run", 0), recipes.read(noted)
    assert len(episodes) == len(data) == 201
    weighed = 0
    for episode, datum in zip(episodes, data, strict=True):
        sampled = {}
        for step in episode["steps"][1:]:
            metrics = step["metrics"]
            tokens = zip(metrics["completion_token_ids"], metrics["logprobs"], strict=True)
            # The target at a position is the next token.
            sampled |= dict(enumerate(tokens, start=metrics["prompt_tokens"] - 1))
        assert len(sampled) >= 3
        for place, (token, logprob) in sampled.items():
            assert datum["target_tokens"][place] == token
            assert datum["logprobs"][place] == pytest.approx(logprob, abs=1e-6)
            assert datum["forward"][place] == pytest.approx(logprob, abs=1e-5)
        weights = {place for place, weight in enumerate(datum["advantages"]) if weight}
        assert weights <= sampled.keys()
        weighed += len(weights)
    assert weighed


def test_killed_environments_do_not_change_rewards(recipes, whole, tmp_path):
    """Their episodes are repeated and give the same values."""
    over = threading.Event()
    killed: list[int] = []

    def kill_some(process):
        def work():
            # Kill less and less often: otherwise a last episode that takes longer than the pause
            # would never end.
            pause = 0.3
            while not over.wait(pause):
                for pid in below(process.pid):
                    if name_of(pid) == "bwrap":
                        with suppress(ProcessLookupError):  # it has just ended
                            os.kill(pid, signal.SIGKILL)
                            killed.append(pid)
                            pause *= 1.15
                        break

        threading.Thread(target=work, daemon=True).start()

    settings = SMALL | {"environment_retries": 50}
    code, errors = recipes.disturbed("terminal", tmp_path, 0, kill_some, **settings)
    over.set()
    assert (code, errors) == (0, "")
    assert killed
    assert sum(line.get("env/all/environment_failures", 0) for line in recipes.measured(tmp_path))
    assert rewards(recipes, tmp_path) == rewards(recipes, whole)


def in_an_environment(pid: int) -> bool:
    """Return whether a process is in an environment and not a zombie."""
    return began(pid) is not None and name_of(pid) in ("bwrap", "bash")


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_run_resumes_in_the_middle_of_a_step(recipes, whole, tmp_path, signum):
    """Finished episodes are not repeated, and no environment is left."""
    left: list[int] = []
    steps: list[int] = []

    def stop_in_a_step(process):
        """Stop a run in the middle of a step. It is paused while it is inspected."""
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            played = Counter(record["step"] for record in episodes_of(tmp_path))
            step = max(played, default=0)
            if step >= 2 and 5 <= played[step] <= 12:
                steps.append(step)
                left.extend(below(process.pid))
                process.send_signal(signum)
            with suppress(ProcessLookupError):  # SIGKILL ends it even while it is stopped
                process.send_signal(signal.SIGCONT)
            if steps:
                break
            time.sleep(0.05)

    code, errors = recipes.disturbed("terminal", tmp_path, 1, stop_in_a_step, **SMALL)
    assert code == (-9 if signum == signal.SIGKILL else 143), errors
    (step,) = steps
    until(lambda: not any(map(in_an_environment, left)))
    played = {episode["seconds"] for episode in episodes_of(tmp_path) if episode["step"] == step}
    recipes.succeed("terminal", tmp_path, **SMALL)
    assert played
    assert played <= {trajectory["extra"]["seconds"] for trajectory in trajectories(tmp_path, step)}
    assert rewards(recipes, tmp_path) == rewards(recipes, whole)


def test_summaries_and_epochs(recipes, tmp_path):
    """Segments after a summary keep their logprobs; two epochs of three tasks take two steps."""
    settings = SMALL | {"group_size": 2, "max_turns": 6, "n_epochs": 2, "max_steps": 9}
    settings |= {"summarise": True, "context_limit": 300, "save_every": 0}
    recipes.succeed("terminal", tmp_path / "run", **settings)
    lines = recipes.measured(tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[:-1]:
        assert line["env/all/summaries"] > 0
        assert line["num_sequences"] > line["env/all/total_episodes"] == 6
        assert line["num_tokens"] == line["env/all/total_ac_tokens"]
        assert 2 * line["optim/kl_sample_train_v2"] * line["num_tokens"] < 1e-10


def test_mistakes_are_one_line(recipes, tmp_path):
    (tmp_path / "tasks" / "one").mkdir(parents=True)
    done = recipes.run("terminal", tmp_path / "a", **SMALL | {"tasks": tmp_path / "tasks"})
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/tasks/one/task.toml: no such file\n"
    done = recipes.run("terminal", tmp_path / "b", **SMALL, environment="process")
    assert done.returncode == 2
    assert "unsafe=True" in done.stderr


def test_verifiers_that_fail_on_all_episodes_of_a_step_end_the_run(recipes, tmp_path):
    tasks = tmp_path / "tasks"
    subprocess.run(["cp", "-r", str(TASKS), str(tasks)], check=True)
    for path in tasks.glob("*/tests/test.sh"):
        path.write_text("#!/bin/bash\nexit 3\n")
    done = recipes.run("terminal", tmp_path / "run", **SMALL | {"tasks": tasks, "group_size": 2})
    assert done.returncode == 1
    assert done.stderr.startswith("error: the verifier failed on all 6 answers of step 0: ")
    assert done.stderr.count("\n") == 1
    [line] = recipes.measured(tmp_path / "run")
    assert line["env/all/verifier_failures"] == 6
    assert line["env/all/frac_verifier_failed"] == 1.0
    failures = recipes.read(tmp_path / "run" / "iteration_000000" / "reward_failures.jsonl")
    assert len(failures) == 6
    assert all(failure["error"].startswith(f"{failure['question']}: ") for failure in failures)


def test_episodes_in_a_folder_are_the_same(recipes, whole, tmp_path):
    """Without isolation, the same seeds give the same commands and rewards."""
    tasks = tmp_path / "tasks"
    subprocess.run(["cp", "-r", str(TASKS), str(tasks)], check=True)
    for path in tasks.glob("*/*/*"):
        text = path.read_text().replace("/app", "$SWEEPER_TASK_ROOT/app")
        path.write_text(text.replace("/logs", "$SWEEPER_TASK_ROOT/logs"))
    for path in tasks.glob("*/environment/Dockerfile"):
        text = path.read_text().replace("$SWEEPER_TASK_ROOT/app", "/app")
        path.write_text(text.replace(". /app", ". $SWEEPER_TASK_ROOT/app"))
    settings = SMALL | {"tasks": tasks, "environment": "process", "unsafe": True, "max_steps": 1}
    recipes.succeed("terminal", tmp_path / "run", **settings)
    assert recipes.measured(tmp_path / "run")[0]["env/all/verifier_failures"] == 0
